#include "decode/scheduler.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr SchedulerLimits kLimits{.batch_sequences_max = 4, .admitted_max = 10};

TEST(Scheduler, RunsEverythingWhileItFitsOneStep) {
  const std::vector<SequenceTurn> turns(3, {.admitted = true, .last_turn = 5});
  EXPECT_THAT(Next(kLimits, turns).step, ElementsAre(0, 1, 2));
}

TEST(Scheduler, AdmitsInOrderOfCommitsUpToTheLimit) {
  std::vector<SequenceTurn> turns(12);
  turns[0].admitted = true;
  const Decision decision = Next(kLimits, turns);
  EXPECT_THAT(decision.admit, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(decision.step, ElementsAre(0, 1, 2, 3));
}

TEST(Scheduler, NewSequencesGoBeforeThoseThatRanAndTheLongestWaitNext) {
  std::vector<SequenceTurn> turns = {{true, false, 9}, {true, false, 7}, {true, false, 8}, {true, false, 6}, {}};
  EXPECT_THAT(Next(kLimits, turns).step, ElementsAre(4, 3, 1, 2));
}

TEST(Scheduler, ASequenceWhoseReaderIsBehindIsNotStepped) {
  std::vector<SequenceTurn> turns = {{true, true, 1}, {true, false, 2}};
  EXPECT_THAT(Next(kLimits, turns).step, ElementsAre(1));
  turns[1].paused = true;
  EXPECT_THAT(Next(kLimits, turns).step, IsEmpty());
}

TEST(Scheduler, ASequenceThatIsParkedIsNeitherAdmittedNorStepped) {
  EXPECT_THAT(Next(kLimits, std::vector<SequenceTurn>{{.parked = true}, {}}).admit, ElementsAre(1));
  EXPECT_THAT(Next(kLimits, std::vector<SequenceTurn>{{.parked = true}, {}}).step, ElementsAre(1));
}

TEST(Scheduler, EachOfNRunsAtLeastEveryNthOfTheBatchSteps) {
  std::vector<SequenceTurn> turns(10);
  std::vector<int> runs(10, 0);
  std::vector<uint64_t> last_step(10, 0);
  uint64_t turns_taken = 0;
  for (uint64_t step = 1; step <= 300; ++step) {
    const Decision decision = Next(kLimits, turns);
    ASSERT_EQ(decision.step.size(), 4u);
    for (const int i : decision.admit) turns[static_cast<size_t>(i)].admitted = true;
    for (const int i : decision.step) {
      SequenceTurn& turn = turns[static_cast<size_t>(i)];
      ASSERT_LE(step - last_step[static_cast<size_t>(i)], 3u) << "sequence " << i << " waited at step " << step;
      last_step[static_cast<size_t>(i)] = step;
      turn.last_turn = ++turns_taken;
      ++runs[static_cast<size_t>(i)];
    }
  }
  EXPECT_THAT(runs, testing::Each(120));
}

}  // namespace
}  // namespace sluice::decode
