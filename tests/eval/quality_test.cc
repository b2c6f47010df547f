// The real model against the reference implementation, on the first tokens of the same text. `sluice eval` does all of
// it: see docs/cache-policies.md.
#include <fstream>

#include "eval/streamed.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/eval/runner_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

constexpr int64_t kTokens = 1025;          // the reference tells means of 1024 predictions
constexpr double kTokenTolerance = 2e-3;   // the reference's own, in f32 from the same weights
constexpr double kMeanTolerance = 1.5e-4;  // 1e-4, and what four decimals leave out

std::string ReferenceName(const StreamedRow& row) {
  if (row.policy.sinks == 0) return absl::StrCat("window ", row.policy.window);
  return absl::StrCat("sink-window ", row.policy.sinks, "+", row.policy.window);
}

TEST(Quality, OfStreamedTextIsTheReferences) {
  const char* path = std::getenv("SLUICE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  auto tensors = ReadGoldenTensors(SLUICE_TEST_DATA "/quality/corpus.safetensors");
  const std::vector<int64_t>& corpus = tensors.at("corpus").i64;
  const std::vector<TokenId> ids(corpus.begin(), corpus.begin() + kTokens);
  std::ifstream file(SLUICE_TEST_DATA "/quality/policies.json");
  std::map<std::string, double> reference;
  const nlohmann::json all = nlohmann::json::parse(file);
  for (const auto& row : all["stream"]["rows"]) reference[row["policy"]] = row["per_1024"][0];

  RunnerFixture model(path);
  std::vector<CacheCase> caches;
  for (const char* name : {"sink-window:4+252", "sink-window:0+256"}) {
    caches.push_back(Must(ParseCacheCase(name)));
  }
  const auto rows = Must(MeasureStreamed(model.runner, {ids}, caches, {.block = 1024}));
  for (const StreamedRow& row : rows) {
    ASSERT_EQ(row.tokens, kTokens - 1);
    EXPECT_NEAR(row.blocks[0], reference.at(ReferenceName(row)), kMeanTolerance) << row.cache.name;
  }
}

TEST(Quality, OfTextInAFullCacheIsTheReferencesTokenByToken) {
  const char* path = std::getenv("SLUICE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  auto tensors = ReadGoldenTensors(SLUICE_TEST_DATA "/quality/corpus.safetensors");
  const std::vector<int64_t>& corpus = tensors.at("corpus").i64;
  const std::vector<TokenId> ids(corpus.begin(), corpus.begin() + 300);
  RunnerFixture model(path);
  const TextOutcome outcome = model.Run({{.ids = ids}})[0];
  for (size_t i = 0; i < outcome.nlls.size(); ++i) {
    EXPECT_NEAR(outcome.nlls[i], tensors.at("corpus_nll_2048").f32[i], kTokenTolerance) << "token " << i + 1;
  }
}

}  // namespace
}  // namespace sluice
