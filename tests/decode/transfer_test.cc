#include "decode/transfer.h"

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

using S = TransferState;
using E = TransferEvent;

TEST(TransferTable, HasTheseEdgesAndNoOther) {
  const std::optional<S> none;
  // Rows: from receiving, commit held, complete, failed. Columns: frame, last frame, commit early, commit after all,
  // fault.
  const std::optional<S> expected[kTransferStates][kTransferEvents] = {
      {S::kReceiving, none, S::kCommitHeld, S::kComplete, S::kFailed},
      {S::kCommitHeld, S::kComplete, none, none, S::kFailed},
      {none, none, none, none, none},
      {none, none, none, none, none}};
  for (int from = 0; from < kTransferStates; ++from) {
    for (int event = 0; event < kTransferEvents; ++event) {
      EXPECT_EQ(Next(static_cast<S>(from), static_cast<E>(event)), expected[from][event]) << from << " " << event;
    }
  }
}

TEST(Coverage, TakesRangesInAnyOrderAndMergesThem) {
  Coverage coverage(1, 100);
  for (const int first : {60, 0, 20, 80, 40}) ASSERT_TRUE(coverage.Add(0, first, 20).ok());
  EXPECT_TRUE(coverage.CoversExactly(100));
  EXPECT_FALSE(coverage.CoversExactly(80));
}

TEST(Coverage, RefusesATokenTwice) {
  Coverage coverage(2, 100);
  ASSERT_TRUE(coverage.Add(0, 10, 10).ok());
  EXPECT_FALSE(coverage.Add(0, 10, 10).ok());
  EXPECT_FALSE(coverage.Add(0, 0, 11).ok());
  EXPECT_FALSE(coverage.Add(0, 19, 5).ok());
  EXPECT_FALSE(coverage.Add(0, 12, 2).ok());
  EXPECT_FALSE(coverage.Add(0, 0, 100).ok());
  EXPECT_TRUE(coverage.Add(1, 10, 10).ok());
}

TEST(Coverage, RefusesWhatWasNotReserved) {
  Coverage coverage(2, 100);
  EXPECT_FALSE(coverage.Add(2, 0, 1).ok());
  EXPECT_FALSE(coverage.Add(-1, 0, 1).ok());
  EXPECT_FALSE(coverage.Add(0, 99, 2).ok());
  EXPECT_FALSE(coverage.Add(0, 5, 0).ok());
}

TEST(Coverage, SeesEachMissingTokenInEachLayer) {
  for (int layer = 0; layer < 3; ++layer) {
    for (int missing = 0; missing < 5; ++missing) {
      Coverage coverage(3, 5);
      for (int l = 0; l < 3; ++l) {
        for (int t = 0; t < 5; ++t) {
          if (l == layer && t == missing) continue;
          ASSERT_TRUE(coverage.Add(l, t, 1).ok());
        }
      }
      EXPECT_FALSE(coverage.CoversExactly(5));
      ASSERT_TRUE(coverage.Add(layer, missing, 1).ok());
      EXPECT_TRUE(coverage.CoversExactly(5));
    }
  }
}

TEST(Coverage, AgreesWithABitmapOverRandomRanges) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    Coverage coverage(1, 40);
    std::vector<bool> placed(40, false);
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(rng.Bits() % 40);
      const int tokens = 1 + static_cast<int>(rng.Bits() % 6);
      bool free = first + tokens <= 40;
      for (int t = first; free && t < first + tokens; ++t) free = !placed[static_cast<size_t>(t)];
      ASSERT_EQ(coverage.Add(0, first, tokens).ok(), free) << round << " " << i;
      for (int t = first; free && t < first + tokens; ++t) placed[static_cast<size_t>(t)] = true;
    }
    ASSERT_EQ(coverage.CoversExactly(40), std::count(placed.begin(), placed.end(), true) == 40);
  }
}

TEST(Transfer, CompletesWithTheCommitAfterAllFrames) {
  Transfer transfer(2, 8);
  ASSERT_TRUE(transfer.OnFrame(0, 0, 8).ok());
  ASSERT_TRUE(transfer.OnFrame(1, 0, 8).ok());
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  EXPECT_EQ(transfer.state(), S::kComplete);
}

TEST(Transfer, HoldsACommitThatOvertookFrames) {
  Transfer transfer(2, 8);
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  EXPECT_EQ(transfer.state(), S::kCommitHeld);
  ASSERT_TRUE(transfer.OnFrame(1, 0, 8).ok());
  ASSERT_TRUE(transfer.OnFrame(0, 4, 4).ok());
  EXPECT_EQ(transfer.state(), S::kCommitHeld);
  ASSERT_TRUE(transfer.OnFrame(0, 0, 4).ok());
  EXPECT_EQ(transfer.state(), S::kComplete);
}

TEST(Transfer, CompletesWithoutKvWhereTheCommitNamesNone) {
  Transfer transfer(2, 8);
  ASSERT_TRUE(transfer.OnCommit(0).ok());
  EXPECT_EQ(transfer.state(), S::kComplete);
}

TEST(Transfer, FailsOnFramesBeyondTheCommit) {
  Transfer frame_first(1, 8);
  ASSERT_TRUE(frame_first.OnFrame(0, 0, 8).ok());
  EXPECT_FALSE(frame_first.OnCommit(4).ok());
  EXPECT_EQ(frame_first.state(), S::kFailed);
  Transfer commit_first(1, 8);
  ASSERT_TRUE(commit_first.OnCommit(4).ok());
  EXPECT_FALSE(commit_first.OnFrame(0, 0, 8).ok());
  EXPECT_EQ(commit_first.state(), S::kFailed);
}

TEST(Transfer, FailsOnASecondCommitAndTakesNothingAfterwards) {
  Transfer transfer(1, 8);
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  EXPECT_FALSE(transfer.OnCommit(8).ok());
  EXPECT_EQ(transfer.state(), S::kFailed);
  EXPECT_EQ(transfer.OnFrame(0, 0, 8).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(transfer.OnCommit(8).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice::decode
