#include "decode/transfer.h"

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

using S = TransferState;
using E = TransferEvent;
using Share = Coverage::Share;

KvRange Tokens(int layer, int64_t first, int64_t tokens, int layers = 1) {
  return {.layer = layer, .layers = layers, .first_token = first, .tokens = tokens};
}

TEST(TransferTable, HasTheseEdgesAndNoOther) {
  const std::optional<S> none;
  // Rows: from receiving, commit held, complete, failed. Columns: frame, last frame, damaged, commit early, commit
  // after all, fault.
  const std::optional<S> expected[kTransferStates][kTransferEvents] = {
      {S::kReceiving, none, S::kReceiving, S::kCommitHeld, S::kComplete, S::kFailed},
      {S::kCommitHeld, S::kComplete, S::kCommitHeld, none, none, S::kFailed},
      {none, none, none, none, none, none},
      {none, none, none, none, none, none}};
  for (int from = 0; from < kTransferStates; ++from) {
    for (int event = 0; event < kTransferEvents; ++event) {
      EXPECT_EQ(Next(static_cast<S>(from), static_cast<E>(event)), expected[from][event]) << from << " " << event;
    }
  }
}

TEST(Coverage, TakesRangesInAnyOrderAndMergesThem) {
  Coverage coverage(1, 0, 100);
  for (const int first : {60, 0, 20, 80, 40}) coverage.Add(Tokens(0, first, 20));
  EXPECT_TRUE(coverage.CoversExactly(100));
  EXPECT_FALSE(coverage.CoversExactly(80));
  EXPECT_EQ(coverage.end(), 100);
}

TEST(Coverage, BeginsWhereKvIsAwaitedFrom) {
  Coverage coverage(2, 32, 100);
  EXPECT_FALSE(coverage.Look(Tokens(0, 31, 1)).ok());
  EXPECT_TRUE(coverage.CoversExactly(32));
  coverage.Add(Tokens(0, 32, 68, 2));
  EXPECT_TRUE(coverage.CoversExactly(100));
  EXPECT_FALSE(coverage.CoversExactly(32));
}

TEST(Coverage, KnowsNoneSomeAndAllOfARange) {
  Coverage coverage(3, 0, 100);
  coverage.Add(Tokens(0, 10, 10, 2));
  EXPECT_EQ(*coverage.Look(Tokens(0, 0, 10, 3)), Share::kNone);
  EXPECT_EQ(*coverage.Look(Tokens(2, 10, 10)), Share::kNone);
  EXPECT_EQ(*coverage.Look(Tokens(0, 10, 10, 2)), Share::kAll);
  EXPECT_EQ(*coverage.Look(Tokens(1, 12, 3)), Share::kAll);
  EXPECT_EQ(*coverage.Look(Tokens(0, 10, 10, 3)), Share::kSome);
  EXPECT_EQ(*coverage.Look(Tokens(0, 19, 5)), Share::kSome);
  EXPECT_EQ(*coverage.Look(Tokens(0, 0, 100)), Share::kSome);
}

TEST(Coverage, RefusesWhatWasNotReserved) {
  const Coverage coverage(2, 0, 100);
  for (const KvRange& range :
       {Tokens(2, 0, 1), Tokens(-1, 0, 1), Tokens(0, 99, 2), Tokens(0, 5, 0), Tokens(1, 0, 1, 2), Tokens(0, 0, 1, 0)})
    EXPECT_EQ(coverage.Look(range).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Coverage, SeesEachMissingTokenInEachLayer) {
  for (int layer = 0; layer < 3; ++layer) {
    for (int missing = 0; missing < 5; ++missing) {
      Coverage coverage(3, 0, 5);
      coverage.Add(Tokens(0, 0, 5, 3));
      coverage.Remove(Tokens(layer, missing, 1));
      EXPECT_FALSE(coverage.CoversExactly(5));
      coverage.Add(Tokens(layer, missing, 1));
      EXPECT_TRUE(coverage.CoversExactly(5));
    }
  }
}

TEST(Coverage, AgreesWithABitmapOverRandomRanges) {
  constexpr int kTokens = 40;
  constexpr int kLayers = 3;
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    Coverage coverage(kLayers, 0, kTokens);
    std::vector<bool> there(kLayers * kTokens, false);
    for (int i = 0; i < 60; ++i) {
      const int layer = static_cast<int>(rng.Bits() % kLayers);
      const KvRange range =
          Tokens(layer, static_cast<int64_t>(rng.Bits() % kTokens), 1 + static_cast<int>(rng.Bits() % 6),
                 1 + static_cast<int>(rng.Bits() % static_cast<uint64_t>(kLayers - layer)));
      const StatusOr<Share> share = coverage.Look(range);
      ASSERT_EQ(share.ok(), range.first_token + range.tokens <= kTokens);
      if (!share.ok()) continue;
      int found = 0;
      const auto each = [&](const std::function<void(std::vector<bool>::reference)>& visit) {
        for (int l = range.layer; l < range.layer + range.layers; ++l) {
          for (int64_t t = range.first_token; t < range.first_token + range.tokens; ++t)
            visit(there[static_cast<size_t>(l * kTokens + t)]);
        }
      };
      each([&found](std::vector<bool>::reference bit) { found += bit ? 1 : 0; });
      ASSERT_EQ(*share, found == 0 ? Share::kNone : found == range.layers * range.tokens ? Share::kAll : Share::kSome);
      if (*share == Share::kNone) coverage.Add(range);
      if (*share == Share::kAll && i % 3 == 0) coverage.Remove(range);
      if (*share == Share::kNone || (*share == Share::kAll && i % 3 == 0))
        each([share](std::vector<bool>::reference bit) { bit = *share == Share::kNone; });
    }
    ASSERT_EQ(coverage.CoversExactly(kTokens), std::count(there.begin(), there.end(), true) == kLayers * kTokens);
  }
}

class TransferTest : public testing::Test {
 protected:
  // A frame that comes and is right.
  static void Deliver(Transfer& transfer, const KvRange& range) {
    const StatusOr<bool> lands = transfer.Admit(range);
    ASSERT_TRUE(lands.ok() && *lands) << lands.status();
    transfer.OnPlaced(range);
  }
};

TEST_F(TransferTest, CompletesWithTheCommitAfterAllFrames) {
  Transfer transfer(2, 0, 8);
  Deliver(transfer, Tokens(0, 0, 8));
  Deliver(transfer, Tokens(1, 0, 8));
  ASSERT_TRUE(transfer.AdmitCommit());
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  EXPECT_EQ(transfer.state(), S::kComplete);
}

TEST_F(TransferTest, HoldsACommitThatOvertookFrames) {
  Transfer transfer(2, 0, 8);
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  EXPECT_EQ(transfer.state(), S::kCommitHeld);
  Deliver(transfer, Tokens(1, 0, 8));
  Deliver(transfer, Tokens(0, 4, 4));
  EXPECT_EQ(transfer.state(), S::kCommitHeld);
  Deliver(transfer, Tokens(0, 0, 4));
  EXPECT_EQ(transfer.state(), S::kComplete);
}

TEST_F(TransferTest, WaitsForFramesThatAreStillLanding) {
  Transfer transfer(2, 0, 8);
  ASSERT_TRUE(*transfer.Admit(Tokens(0, 0, 8)));
  ASSERT_TRUE(*transfer.Admit(Tokens(1, 0, 8)));
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  transfer.OnPlaced(Tokens(1, 0, 8));
  EXPECT_EQ(transfer.state(), S::kCommitHeld);
  transfer.OnPlaced(Tokens(0, 0, 8));
  EXPECT_EQ(transfer.state(), S::kComplete);
}

TEST_F(TransferTest, CompletesWithoutKvWhereTheCommitNamesNone) {
  for (const int64_t from : {0, 4}) {
    Transfer transfer(2, from, 8);
    ASSERT_TRUE(transfer.OnCommit(from).ok());
    EXPECT_EQ(transfer.state(), S::kComplete);
  }
}

TEST_F(TransferTest, DoesNotTakeTwiceWhatIsLandingOrThere) {
  Transfer transfer(1, 0, 8);
  ASSERT_TRUE(*transfer.Admit(Tokens(0, 0, 6)));
  EXPECT_FALSE(*transfer.Admit(Tokens(0, 2, 3)));
  transfer.OnPlaced(Tokens(0, 0, 6));
  EXPECT_FALSE(*transfer.Admit(Tokens(0, 0, 6)));
  EXPECT_TRUE(transfer.open());
  EXPECT_FALSE(transfer.Admit(Tokens(0, 5, 3)).ok());
  EXPECT_EQ(transfer.state(), S::kFailed);
}

TEST_F(TransferTest, FailsOnFramesBeyondTheCommit) {
  Transfer frame_first(1, 0, 8);
  Deliver(frame_first, Tokens(0, 0, 8));
  EXPECT_FALSE(frame_first.OnCommit(4).ok());
  EXPECT_EQ(frame_first.state(), S::kFailed);
  Transfer commit_first(1, 0, 8);
  ASSERT_TRUE(commit_first.OnCommit(4).ok());
  EXPECT_FALSE(commit_first.Admit(Tokens(0, 0, 8)).ok());
  EXPECT_EQ(commit_first.state(), S::kFailed);
}

TEST_F(TransferTest, TakesOneCommit) {
  Transfer transfer(1, 0, 8);
  EXPECT_TRUE(transfer.AdmitCommit());
  EXPECT_FALSE(transfer.AdmitCommit());
}

TEST_F(TransferTest, ADamagedRangeIsOpenAgainOnce) {
  Transfer transfer(1, 0, 8);
  ASSERT_TRUE(*transfer.Admit(Tokens(0, 0, 8)));
  ASSERT_TRUE(transfer.OnCommit(8).ok());
  ASSERT_TRUE(transfer.OnDamaged(Tokens(0, 0, 8)).ok());
  EXPECT_EQ(transfer.state(), S::kCommitHeld);
  ASSERT_TRUE(*transfer.Admit(Tokens(0, 4, 4)));
  EXPECT_EQ(transfer.OnDamaged(Tokens(0, 4, 4)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(transfer.state(), S::kFailed);
}

TEST_F(TransferTest, AUselessFrameIsAskedForOnlyWhereItIsMissed) {
  Transfer transfer(2, 0, 8);
  Deliver(transfer, Tokens(0, 0, 8));
  EXPECT_FALSE(*transfer.OnUnusable(Tokens(0, 0, 8)));
  EXPECT_TRUE(*transfer.OnUnusable(Tokens(1, 0, 8)));
  EXPECT_EQ(transfer.OnUnusable(Tokens(1, 0, 8)).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace sluice::decode
