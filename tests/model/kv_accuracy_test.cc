// What storing KV in each codec changes on the real model: a few hundred tokens of the corpus that the reference
// measured over 4094 (tests/bench/kv_accuracy does all of it, see docs/kv-accuracy.md).
#include "tests/model/kv_accuracy.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "tests/model/engine_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

constexpr int64_t kTokens = 192;
constexpr int kBlock = 96;
constexpr double kNllTolerance = 2e-3;  // a token, in f32 from the same weights
constexpr double kKldFactor = 4;        // between a short context and the reference's of 2048
constexpr double kSigmas = 6;

class KvAccuracy : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("SLUICE_TEST_MODEL");
    if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
    auto tensors = ReadGoldenTensors(SLUICE_TEST_DATA "/quality/corpus.safetensors");
    reference_nlls_ = tensors.at("corpus_nll_2048").f32;
    const std::vector<int64_t>& corpus = tensors.at("corpus").i64;
    const std::vector<TokenId> ids(corpus.begin(), corpus.begin() + kTokens);
    const auto checkpoint = Must(OpenCheckpoint(path));
    const auto transformer = Must(Transformer::Create(
        checkpoint.get(), {.threads = 2, .batch_tokens_max = kBlock, .logit_rows_max = kBlock, .exact = true}));
    measured_ = MeasureKvAccuracy(*transformer, ids, kTokens, kBlock);
  }

  std::vector<float> reference_nlls_;
  std::vector<CodecAccuracy> measured_;
};

TEST_F(KvAccuracy, IsTheReferencesWithinWhatAShortTextCanSay) {
  ASSERT_EQ(measured_[0].tokens, kTokens - 1);
  EXPECT_EQ(measured_[0].kld, 0);
  for (size_t i = 0; i < measured_[0].nlls.size(); ++i) {
    EXPECT_NEAR(measured_[0].nlls[i], reference_nlls_[i], kNllTolerance) << "token " << i + 1;
  }
  const auto expected = ReadExpectedAccuracy(SLUICE_TEST_DATA "/quality/codecs.json");
  size_t compared = 0;
  for (const CodecAccuracy& got : measured_) {
    const auto want = std::find_if(expected.begin(), expected.end(),
                                   [&](const ExpectedAccuracy& e) { return e.codec == Name(got.codec); });
    if (want == expected.end()) continue;
    ++compared;
    SCOPED_TRACE(want->codec);
    const auto n = static_cast<double>(got.tokens);
    EXPECT_LT(got.mean_kld(), want->mean_kld * kKldFactor);
    EXPECT_GT(got.mean_kld(), want->mean_kld / kKldFactor);
    // A small change of a distribution moves log p by a variance of twice its KL.
    const double delta = got.mean_nll() - measured_[0].mean_nll();
    EXPECT_LT(std::abs(delta - want->delta_nll), kSigmas * std::sqrt(2 * want->mean_kld * kKldFactor / n));
    const double p = want->top1_agreement;
    EXPECT_GT(got.top1_agreement(), p - kSigmas * std::sqrt(p * (1 - p) / n));
  }
  EXPECT_EQ(compared, expected.size() - 1);  // all but f32's own row
}

}  // namespace
}  // namespace sluice
