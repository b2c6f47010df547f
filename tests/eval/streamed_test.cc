#include "eval/streamed.h"

#include <numeric>

#include "eval/agreement.h"
#include "gtest/gtest.h"
#include "tests/eval/runner_fixture.h"

namespace sluice {
namespace {

std::vector<CacheCase> Cases(const std::vector<std::string>& names) {
  std::vector<CacheCase> cases;
  for (const std::string& name : names) cases.push_back(Must(ParseCacheCase(name)));
  return cases;
}

double Mean(absl::Span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST(Streamed, BlocksAreMeansOverAllTexts) {
  RunnerFixture model(kTinyGqa);
  const std::vector<std::vector<TokenId>> texts = {TinyText(101, 1), TinyText(101, 2)};
  const std::vector<absl::Span<const TokenId>> spans(texts.begin(), texts.end());
  const auto rows = Must(
      MeasureStreamed(model.runner, spans, Cases({"full", "snapkv:20%", "h2o:20%"}), {.block = 40, .budget_of = 101}));
  ASSERT_EQ(rows.size(), 2u);  // snapkv cannot be streamed
  const std::vector<TextOutcome> full = model.Run({{.ids = texts[0]}, {.ids = texts[1], .group = 1}});
  ASSERT_EQ(rows[0].blocks.size(), 3u);
  EXPECT_EQ(rows[0].tokens, 200);
  EXPECT_NEAR(rows[0].nll, (Mean(full[0].nlls) + Mean(full[1].nlls)) / 2, 1e-9);
  const auto last = [](const TextOutcome& o) { return Mean(absl::MakeConstSpan(o.nlls).subspan(80, 20)); };
  EXPECT_NEAR(rows[0].blocks[2], (last(full[0]) + last(full[1])) / 2, 1e-9);
  EXPECT_EQ(rows[1].policy.budget, 20);
}

TEST(Streamed, OnlyAWindowThatMovesGoesBeyondTheContext) {
  RunnerFixture model(kTinyGqa);
  const int64_t context = model.runner.config().context_tokens_max;
  const std::vector<TokenId> text = TinyText(static_cast<size_t>(context) + 50, 1);
  const auto rows = Must(MeasureStreamed(model.runner, {text}, Cases({"full", "sink-window:4+12", "tova:16"}), {}));
  EXPECT_EQ(rows[0].tokens, context - 1);
  EXPECT_EQ(rows[1].tokens, context + 49);
  EXPECT_EQ(rows[2].tokens, context - 1);
}

TEST(Agreement, OfTheFullCacheInF32IsWhole) {
  RunnerFixture model(kTinyGqa);
  const std::vector<std::vector<TokenId>> texts = {TinyText(90, 1), TinyText(90, 2)};
  const std::vector<absl::Span<const TokenId>> spans(texts.begin(), texts.end());
  const auto cases = Cases({"full", "sink-window:4+12", "h2o:100%"});
  const Agreement agreement =
      Must(MeasureAgreement(model.runner, spans, cases, {.prompt_tokens = 60, .greedy_tokens = 10}));
  ASSERT_EQ(agreement.rows.size(), 3u);
  const AgreementRow& full = agreement.rows[0];
  EXPECT_EQ(full.tokens, 2 * 29);
  EXPECT_EQ(full.nll, agreement.full_nll);
  EXPECT_NEAR(full.mean_kld, 0, 1e-12);
  EXPECT_EQ(full.top1_agreement, 1);
  EXPECT_EQ(full.greedy_tokens, 10);
  EXPECT_GT(agreement.rows[1].mean_kld, 1e-3);
  EXPECT_LE(agreement.rows[1].greedy_tokens, 10);
  EXPECT_EQ(agreement.rows[2].policy.budget, 60);
}

}  // namespace
}  // namespace sluice
