#include "prefill/scheduler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);
constexpr SchedulerLimits kLimits = {.batch_tokens_max = 100, .logit_rows_max = 4};

PromptView Waiting(int64_t tokens, int pages = 1) {
  return {.prompt_tokens = tokens, .pages_needed = pages, .deadline = kNow + absl::Minutes(1)};
}

PromptView Started(int64_t tokens, int64_t computed) {
  PromptView prompt = Waiting(tokens);
  prompt.started = true;
  prompt.computed_tokens = computed;
  return prompt;
}

TEST(Scheduler, LongPromptsAreCutToTheStep) {
  EXPECT_THAT(Next(kNow, kLimits, {Started(250, 100)}, 0).chunks, ElementsAre(Chunk{0, 100, 100, false}));
  EXPECT_THAT(Next(kNow, kLimits, {Started(250, 200)}, 0).chunks, ElementsAre(Chunk{0, 200, 50, true}));
}

TEST(Scheduler, ShortPromptsShareAStepInOrderOfArrival) {
  const Decision d = Next(kNow, kLimits, {Started(250, 210), Waiting(30), Waiting(70), Waiting(5)}, 10);
  EXPECT_THAT(d.chunks, ElementsAre(Chunk{0, 210, 40, true}, Chunk{1, 0, 30, true}, Chunk{2, 0, 30, false}));
  EXPECT_THAT(d.start, ElementsAre(1, 2));
}

TEST(Scheduler, NobodyOvertakesAPromptThatWaitsForPages) {
  const Decision d = Next(kNow, kLimits, {Started(250, 210), Waiting(30, 5), Waiting(10, 1)}, 4);
  EXPECT_THAT(d.start, IsEmpty());
  EXPECT_THAT(d.chunks, ElementsAre(Chunk{0, 210, 40, true}));
  EXPECT_THAT(Next(kNow, kLimits, {Waiting(30, 5), Waiting(10, 1)}, 5).start, ElementsAre(0));
  EXPECT_THAT(Next(kNow, kLimits, {Waiting(30, 5), Waiting(10, 1)}, 6).start, ElementsAre(0, 1));
}

TEST(Scheduler, APromptWaitsForTheMemoryToPruneItAsItDoesForPages) {
  PromptView first = Waiting(30), second = Waiting(30);
  first.pruning_bytes_needed = second.pruning_bytes_needed = 60;
  EXPECT_THAT(Next(kNow, kLimits, {first, second, Waiting(10)}, 10, 119).start, ElementsAre(0));
  EXPECT_THAT(Next(kNow, kLimits, {first, second, Waiting(10)}, 10, 120).start, ElementsAre(0, 1, 2));
}

TEST(Scheduler, StartedPromptsBehindOneThatWaitsForPagesGoOn) {
  EXPECT_THAT(Next(kNow, kLimits, {Waiting(30, 5), Started(50, 20)}, 0).chunks, ElementsAre(Chunk{1, 20, 30, true}));
}

TEST(Scheduler, CancelledAndLatePromptsLeaveAndTakeNothing) {
  PromptView cancelled = Waiting(100);
  cancelled.cancelled = true;
  PromptView late = Started(100, 50);
  late.deadline = kNow;
  const Decision d = Next(kNow, kLimits, {cancelled, late, Waiting(100)}, 1);
  EXPECT_THAT(d.cancelled, ElementsAre(0));
  EXPECT_THAT(d.expired, ElementsAre(1));
  EXPECT_THAT(d.start, ElementsAre(2));
  EXPECT_THAT(d.chunks, ElementsAre(Chunk{2, 0, 100, true}));
}

TEST(Scheduler, AStepAsksForNoMoreLogitsThanItHasRowsFor) {
  const std::vector<PromptView> prompts(6, Waiting(2));
  EXPECT_EQ(Next(kNow, kLimits, prompts, 100).chunks.size(), 4u);
}

TEST(Scheduler, WakesAtTheEarliestDeadlineEvenOfPromptsThatCannotRun) {
  PromptView soon = Waiting(10, 99);
  soon.deadline = kNow + absl::Seconds(2);
  EXPECT_EQ(Next(kNow, kLimits, {Started(500, 0), soon}, 0).wake_at, kNow + absl::Seconds(2));
  EXPECT_EQ(Next(kNow, kLimits, {}, 0).wake_at, absl::InfiniteFuture());
}

// Whatever arrives, every prompt ends after a bounded number of steps, no step exceeds its limits, and each token is
// computed exactly once and in order.
TEST(Scheduler, EveryPromptIsComputedWholeWithinTheStepsThatItsTokensNeed) {
  std::vector<PromptView> prompts;
  int64_t tokens = 0;
  for (int i = 0; i < 40; ++i) {
    prompts.push_back(Waiting(1 + i * 37 % 290, 1 + i % 3));
    tokens += prompts.back().prompt_tokens;
  }
  int pages_free = 6;
  int64_t steps = 0;
  while (!prompts.empty()) {
    ASSERT_LE(++steps, tokens) << "no progress";
    const Decision d = Next(kNow, kLimits, prompts, pages_free);
    for (const size_t i : d.start) {
      prompts[i].started = true;
      pages_free -= prompts[i].pages_needed;
    }
    ASSERT_GE(pages_free, 0);
    int64_t step_tokens = 0;
    for (const Chunk& chunk : d.chunks) {
      ASSERT_TRUE(prompts[chunk.prompt].started);
      ASSERT_EQ(chunk.first_token, prompts[chunk.prompt].computed_tokens);
      step_tokens += chunk.tokens;
      prompts[chunk.prompt].computed_tokens += chunk.tokens;
      ASSERT_EQ(chunk.last, prompts[chunk.prompt].computed_tokens == prompts[chunk.prompt].prompt_tokens);
    }
    ASSERT_LE(step_tokens, kLimits.batch_tokens_max);
    ASSERT_GT(step_tokens, 0);
    std::erase_if(prompts, [&](const PromptView& p) {
      const bool done = p.computed_tokens == p.prompt_tokens;
      if (done) pages_free += p.pages_needed;
      return done;
    });
  }
  EXPECT_EQ(pages_free, 6);
}

}  // namespace
}  // namespace sluice::prefill
