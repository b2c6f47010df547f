#include "eval/needles.h"

#include "eval/needle_text.h"
#include "eval/sample_text.h"
#include "gmock/gmock.h"
#include "tests/eval/runner_fixture.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(SampleText, IsTheSameOfTheSameSeedAndGrowsAtItsEnd) {
  const std::string text = SampleText(1, 3000);
  EXPECT_EQ(SampleText(1, 3000), text);
  EXPECT_NE(SampleText(2, 3000), text);
  EXPECT_THAT(SampleText(1, 5000), StartsWith(text));
}

TEST(NeedleText, TheFactStandsOnceAtItsDepth) {
  for (const double depth : {0.0, 0.3, 0.99}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const NeedleText text = MakeNeedleText(seed, 80, depth);
      const std::string fact = text.answer_start + text.answer + "\".";
      const size_t at = text.context.find(fact);
      ASSERT_NE(at, std::string::npos) << text.context;
      EXPECT_EQ(text.context.find(fact, at + 1), std::string::npos);
      EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(text.context.size()), depth, 0.12);
      EXPECT_THAT(text.answer_start, HasSubstr(text.question.substr(12, text.question.size() - 13)));
    }
  }
}

TEST(Needles, RowsTellSeenFromAfterAndFullHasNoDifference) {
  RunnerFixture model(kTinyGqa);
  std::vector<NeedlePrompt> prompts;
  for (size_t i = 0; i < 3; ++i) prompts.push_back({TinyText(90, i), TinyText(7, i + 10), TinyText(4, i + 20)});
  const std::vector<CacheCase> caches = {Must(ParseCacheCase("full")), Must(ParseCacheCase("snapkv:20%")),
                                         Must(ParseCacheCase("sink-window:4+12"))};
  const std::vector<NeedleRow> rows = Must(MeasureNeedles(model.runner, prompts, caches));
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[1].question, QuestionAt::kSeen);
  EXPECT_EQ(rows[4].question, QuestionAt::kAfter);
  EXPECT_EQ(rows[4].cache.name, "snapkv:20%");
  EXPECT_NEAR(rows[0].mean_nll(), rows[3].mean_nll(), 1e-4);
  EXPECT_NE(rows[1].mean_nll(), rows[4].mean_nll());
  // What the answer's tokens cost, from a run of our own.
  std::vector<TokenId> text = prompts[2].context;
  for (const auto* part : {&prompts[2].question, &prompts[2].answer})
    text.insert(text.end(), part->begin(), part->end());
  const TextOutcome outcome =
      model.Run({{.ids = text, .policy = Must(Resolve(caches[2].policy, 90)), .prompt_tokens = 90}})[0];
  double nll = 0;
  for (size_t i = outcome.nlls.size() - 4; i < outcome.nlls.size(); ++i) nll += outcome.nlls[i] / 4.0;
  EXPECT_NEAR(rows[5].answers[2].nll, nll, 1e-12);
}

}  // namespace
}  // namespace sluice
