#include "decode/reservations.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/clock.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

using S = ReservationState;
using E = ReservationEvent;

constexpr Epoch kEpoch{77};
constexpr int kPageTokens = 4;
constexpr int kPages = 64;

class ReservationsTest : public testing::Test {
 protected:
  // Reserves for one request or fails the test.
  ReservationId Reserve(int64_t prompt, int64_t max_tokens = 1, int n = 1, absl::Duration time = absl::Minutes(10)) {
    auto outcome =
        reservations_.Reserve(clock_.Now(), RequestId{++requests_}, {prompt, max_tokens, n}, clock_.Now() + time);
    SLUICE_CHECK(outcome.ok() && std::holds_alternative<const Reservation*>(*outcome));
    return std::get<const Reservation*>(*outcome)->id;
  }
  ReservationId Running(int64_t prompt, int64_t max_tokens = 1, int n = 1) {
    const ReservationId id = Reserve(prompt, max_tokens, n);
    EXPECT_TRUE(reservations_.OnCommit(clock_.Now(), id, Tenure{1}));
    return id;
  }
  int Free() const { return pool_->pages_free(); }

  ManualClock clock_;
  std::unique_ptr<KvPool> pool_ = *KvPool::Create(
      {.layout = {.layers = 1, .kv_heads = 1, .head_dim = 16}, .page_tokens = kPageTokens, .pages = kPages});
  Reservations reservations_{
      pool_.get(),
      kEpoch,
      {.lease = absl::Seconds(10), .queue_wait_max = absl::Seconds(60), .reservations_max = 30, .id_key = 5}};
  uint64_t requests_ = 0;
};

TEST(ReservationTable, HasTheseEdgesAndNoOther) {
  const std::optional<S> none;
  // Columns: frame, commit, prefill here, transfer failed, rearm, park, return, finish, finish unread, attach, release,
  // expire.
  const std::optional<S> expected[kReservationStates][kReservationEvents] = {
      {S::kReceiving, S::kRunning, S::kPrefilling, S::kBroken, S::kArmed, none, none, none, none, S::kArmed, S::kEnded,
       S::kEnded},  // armed
      {S::kReceiving, S::kRunning, none, S::kBroken, S::kArmed, none, none, none, none, S::kReceiving, S::kEnded,
       S::kEnded},  // receiving
      {none, S::kRunning, none, none, none, none, none, none, none, S::kPrefilling, S::kEnded,
       S::kEnded},                                                                                    // prefilling
      {none, none, none, none, S::kArmed, none, none, none, none, S::kBroken, S::kEnded, S::kEnded},  // broken
      {none, none, none, none, none, S::kParked, none, S::kEnded, S::kUnread, S::kRunning, S::kEnded,
       S::kEnded},                                                                                      // running
      {none, none, none, none, none, none, S::kRunning, none, none, S::kParked, S::kEnded, S::kEnded},  // parked
      {none, none, none, none, none, none, none, none, none, S::kEnded, S::kEnded, S::kEnded},          // unread
      {none, none, none, none, none, none, none, none, none, none, none, none}};                        // ended
  for (int from = 0; from < kReservationStates; ++from) {
    for (int event = 0; event < kReservationEvents; ++event) {
      EXPECT_EQ(Next(static_cast<S>(from), static_cast<E>(event)), expected[from][event]) << from << " " << event;
    }
  }
}

TEST(PagesNeeded, CountsTheWorstCaseOfEachChoice) {
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 1, .max_tokens = 1}, 16), 1);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 16, .max_tokens = 1}, 16), 1);  // the last token needs no slot
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 16, .max_tokens = 2}, 16), 2);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 17, .max_tokens = 16}, 16), 2);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 17, .max_tokens = 17}, 16), 3);
  // Each further choice shares the prompt's whole page and needs the rest for itself.
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 17, .max_tokens = 17, .choices = 4}, 16), 3 + 3 * 2);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 16, .max_tokens = 1, .choices = 4}, 16), 1);
}

TEST(PagesNeeded, IsForWhatAPolicyKeepsAndAStep) {
  const CachePolicy bounded = {.kind = CachePolicyKind::kH2o, .budget = 31, .window = 8};
  const CachePolicy pruned = {.kind = CachePolicyKind::kSnapKv, .budget = 32, .window = 8, .pool = 5};
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 1000, .max_tokens = 500, .policy = bounded}, 16), 2);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 10, .max_tokens = 7, .policy = bounded}, 16), 1);  // never full
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 1000, .max_tokens = 17, .policy = pruned}, 16), 3);
  // Nobody shares slots that are written over.
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 1000, .max_tokens = 500, .choices = 3, .policy = bounded}, 16), 6);
}

TEST_F(ReservationsTest, ReserveLeasesTheWorstCaseAndReleaseGivesItBack) {
  const ReservationId id = Reserve(6, 3, 2);  // 8 slots: 2 pages, and 1 unshared for the second choice
  EXPECT_EQ(Free(), kPages - 3);
  EXPECT_TRUE(reservations_.Release(kEpoch, id));
  EXPECT_EQ(Free(), kPages);
}

TEST_F(ReservationsTest, ReleaseTwiceOrOfTheUnknownIsNoError) {
  const ReservationId id = Reserve(6);
  EXPECT_TRUE(reservations_.Release(kEpoch, id));
  EXPECT_FALSE(reservations_.Release(kEpoch, id));
  EXPECT_FALSE(reservations_.Release(kEpoch, ReservationId{12345}));
}

TEST_F(ReservationsTest, ReleaseOfAnotherEpochTouchesNothing) {
  const ReservationId id = Reserve(6);
  EXPECT_FALSE(reservations_.Release(Epoch{78}, id));
  EXPECT_NE(reservations_.Find(id), nullptr);
}

TEST_F(ReservationsTest, NoRoomNamesWhatIsNeededFreeAndThere) {
  Reserve(kPageTokens * (kPages - 2));
  const auto outcome =
      reservations_.Reserve(clock_.Now(), RequestId{9}, {kPageTokens * 3, 1, 1}, absl::InfiniteFuture());
  ASSERT_TRUE(outcome.ok());
  const NoRoom& no_room = std::get<NoRoom>(*outcome);
  EXPECT_EQ(no_room.pages_needed, 3);
  EXPECT_EQ(no_room.pages_free, 2);
  EXPECT_EQ(no_room.pages_total, kPages);
  EXPECT_GT(no_room.retry_after, absl::ZeroDuration());
  EXPECT_EQ(Free(), 2);
}

TEST_F(ReservationsTest, LargerThanThePoolIsRefusedForGoodWithBothNumbers) {
  const auto outcome =
      reservations_.Reserve(clock_.Now(), RequestId{9}, {kPageTokens * kPages + 1, 1, 1}, absl::InfiniteFuture());
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(outcome.status().message()),
              testing::AllOf(testing::HasSubstr("65"), testing::HasSubstr("64")));
}

TEST_F(ReservationsTest, TooManyReservationsAreRefusedWhateverTheirSize) {
  for (int i = 0; i < 30; ++i) Reserve(1);
  const auto outcome = reservations_.Reserve(clock_.Now(), RequestId{99}, {1, 1, 1}, absl::InfiniteFuture());
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ReservationsTest, ReservationExpiresWhenPrefillNeverWrites) {
  const ReservationId id = Reserve(6);
  clock_.Advance(absl::Seconds(10) - absl::Milliseconds(1));
  EXPECT_THAT(reservations_.Expire(clock_.Now()), testing::IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  const auto expired = reservations_.Expire(clock_.Now());
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].id, id);
  EXPECT_EQ(expired[0].was, S::kArmed);
  EXPECT_FALSE(expired[0].request_over);
  EXPECT_EQ(Free(), kPages);
}

TEST_F(ReservationsTest, AReaderKeepsAnUnstartedReservationForTheQueueWait) {
  const ReservationId id = Reserve(6);
  ASSERT_TRUE(reservations_.Attach(clock_.Now(), kEpoch, id).ok());
  clock_.Advance(absl::Seconds(59));
  EXPECT_THAT(reservations_.Expire(clock_.Now()), testing::IsEmpty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(reservations_.Expire(clock_.Now()), testing::SizeIs(1));
}

TEST_F(ReservationsTest, EachFrameRenewsButNeverPastTheRequestsDeadline) {
  const ReservationId id = Reserve(6, 1, 1, absl::Seconds(25));
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(8));
    ASSERT_THAT(reservations_.Expire(clock_.Now()), testing::IsEmpty());
    ASSERT_TRUE(reservations_.OnFrame(clock_.Now(), id, Tenure{1}));
  }
  EXPECT_EQ(reservations_.NextDeadline(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  const auto expired = reservations_.Expire(clock_.Now());
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_TRUE(expired[0].request_over);
}

TEST_F(ReservationsTest, ASilentTransferExpiresThoughAReaderListens) {
  const ReservationId id = Reserve(6);
  ASSERT_TRUE(reservations_.Attach(clock_.Now(), kEpoch, id).ok());
  ASSERT_TRUE(reservations_.OnFrame(clock_.Now(), id, Tenure{1}));
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(reservations_.Expire(clock_.Now()), testing::SizeIs(1));
}

TEST_F(ReservationsTest, OneLiveReservationDoesNotKeepTwentyDeadOnes) {
  const ReservationId live = Reserve(1);
  for (int i = 0; i < 20; ++i) Reserve(2);
  clock_.Advance(absl::Seconds(9));
  ASSERT_TRUE(reservations_.OnFrame(clock_.Now(), live, Tenure{1}));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(reservations_.Expire(clock_.Now()), testing::SizeIs(20));
  EXPECT_NE(reservations_.Find(live), nullptr);
  EXPECT_EQ(Free(), kPages - 1);
}

TEST_F(ReservationsTest, ARunningRequestThatIsReadLivesUntilItsOwnDeadline) {
  const ReservationId id = Running(6);
  ASSERT_TRUE(reservations_.Attach(clock_.Now(), kEpoch, id).ok());
  EXPECT_EQ(reservations_.NextDeadline(), reservations_.Find(id)->request_deadline);
}

TEST_F(ReservationsTest, ARunningRequestThatNobodyReadsExpires) {
  Running(6);
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(reservations_.Expire(clock_.Now()), testing::SizeIs(1));
}

TEST_F(ReservationsTest, AnAnswerWithoutAReaderGivesItsPagesBackAndWaitsForHim) {
  const ReservationId id = Running(6);
  ASSERT_TRUE(reservations_.OnFinish(clock_.Now(), id));
  EXPECT_EQ(Free(), kPages);
  ASSERT_NE(reservations_.Find(id), nullptr);
  EXPECT_EQ(reservations_.NextDeadline(), clock_.Now() + absl::Seconds(10));
  EXPECT_TRUE(reservations_.Attach(clock_.Now(), kEpoch, id).ok());
  EXPECT_EQ(reservations_.Find(id), nullptr);
  EXPECT_EQ(reservations_.Attach(clock_.Now(), kEpoch, id).code(), absl::StatusCode::kAborted);
}

TEST_F(ReservationsTest, ASecondReaderIsRefused) {
  const ReservationId id = Reserve(6);
  ASSERT_TRUE(reservations_.Attach(clock_.Now(), kEpoch, id).ok());
  EXPECT_EQ(reservations_.Attach(clock_.Now(), kEpoch, id).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ReservationsTest, RearmBeginsATenureAndTheOldOneCountsNoMore) {
  const ReservationId id = Reserve(6);
  ASSERT_TRUE(reservations_.OnFrame(clock_.Now(), id, Tenure{1}));
  const auto rearmed = reservations_.Rearm(clock_.Now(), kEpoch, id);
  ASSERT_TRUE(rearmed.ok());
  EXPECT_EQ((*rearmed)->tenure, Tenure{2});
  EXPECT_EQ((*rearmed)->state, S::kArmed);
  EXPECT_FALSE(reservations_.OnFrame(clock_.Now(), id, Tenure{1}));
  EXPECT_FALSE(reservations_.OnTransferFailed(clock_.Now(), id, Tenure{1}));
  EXPECT_FALSE(reservations_.OnCommit(clock_.Now(), id, Tenure{1}));
  EXPECT_TRUE(reservations_.OnFrame(clock_.Now(), id, Tenure{2}));
}

TEST_F(ReservationsTest, ABrokenTransferTakesNothingUntilRearmed) {
  const ReservationId id = Reserve(6);
  ASSERT_TRUE(reservations_.OnTransferFailed(clock_.Now(), id, Tenure{1}));
  EXPECT_FALSE(reservations_.OnFrame(clock_.Now(), id, Tenure{1}));
  EXPECT_FALSE(reservations_.OnCommit(clock_.Now(), id, Tenure{1}));
  EXPECT_LT(Free(), kPages);
  ASSERT_TRUE(reservations_.Rearm(clock_.Now(), kEpoch, id).ok());
  EXPECT_TRUE(reservations_.OnCommit(clock_.Now(), id, Tenure{2}));
}

TEST_F(ReservationsTest, RearmIsRefusedWhereItRunsOrIsGoneOrOfAnotherEpoch) {
  const ReservationId id = Running(6);
  ASSERT_TRUE(reservations_.Attach(clock_.Now(), kEpoch, id).ok());
  EXPECT_EQ(reservations_.Rearm(clock_.Now(), kEpoch, id).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reservations_.Rearm(clock_.Now(), Epoch{1}, id).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(reservations_.OnFinish(clock_.Now(), id));
  EXPECT_EQ(reservations_.Rearm(clock_.Now(), kEpoch, id).status().code(), absl::StatusCode::kAborted);
}

TEST_F(ReservationsTest, ForkedChoicesShareWholePromptPagesAndNothingElse) {
  const ReservationId id = Running(6, 4, 3);  // 9 slots: 3 pages, of which the first is shared
  const int leased = kPages - Free();
  ASSERT_TRUE(reservations_.ForkChoices(id).ok());
  EXPECT_EQ(kPages - Free(), leased);
  std::multiset<PageIndex> pages;
  for (const PageLease& choice : reservations_.Find(id)->choices) {
    ASSERT_EQ(choice.pages().size(), 3u);
    pages.insert(choice.pages().begin(), choice.pages().end());
  }
  EXPECT_EQ(pages.count(reservations_.Find(id)->choices[0].pages()[0]), 3u);
  EXPECT_EQ(std::set<PageIndex>(pages.begin(), pages.end()).size(), 7u);
}

TEST_F(ReservationsTest, AChoiceThatEndsGivesBackWhatItDoesNotShare) {
  const ReservationId id = Running(6, 4, 3);
  ASSERT_TRUE(reservations_.ForkChoices(id).ok());
  const int free = Free();
  reservations_.ReleaseChoice(clock_.Now(), id, 0, {});
  EXPECT_EQ(Free(), free + 2);
  EXPECT_TRUE(reservations_.OnFinish(clock_.Now(), id));
  EXPECT_EQ(Free(), kPages);
}

// Random operations against a model that knows what must be leased; after each, no page has two owners, and free and
// leased pages are all there are.
class ConservationTest : public ReservationsTest, public testing::WithParamInterface<uint64_t> {
 protected:
  void CheckConservation() {
    int leased = 0;
    std::map<PageIndex, ReservationId> owners;
    for (const ReservationId id : reservations_.ids()) {
      std::set<PageIndex> mine;
      const Reservation& reservation = *reservations_.Find(id);
      for (const PageLease& choice : reservation.choices) mine.insert(choice.pages().begin(), choice.pages().end());
      mine.insert(reservation.spare.pages().begin(), reservation.spare.pages().end());
      for (const PageIndex page : mine) ASSERT_TRUE(owners.emplace(page, id).second) << "page " << page << " twice";
      ASSERT_EQ(static_cast<int64_t>(mine.size()),
                reservation.state == S::kUnread ? 0 : PagesNeeded(reservation.demand, kPageTokens));
      leased += static_cast<int>(mine.size());
    }
    ASSERT_EQ(Free() + leased, kPages);
    ASSERT_EQ(owners.size(), static_cast<size_t>(leased));
  }

  ReservationId AnyId(Rng& rng) {
    const std::vector<ReservationId> ids = reservations_.ids();
    if (ids.empty() || rng.Bits() % 8 == 0) return ReservationId{rng.Bits()};
    return ids[rng.Bits() % ids.size()];
  }
  Tenure AnyTenure(Rng& rng, ReservationId id) {
    const Reservation* reservation = reservations_.Find(id);
    return Tenure{reservation == nullptr || rng.Bits() % 4 == 0 ? rng.Bits() % 4 : reservation->tenure.value};
  }

  void DoSomething(Rng& rng) {
    const absl::Time now = clock_.Now();
    const ReservationId id = AnyId(rng);
    const Epoch epoch = rng.Bits() % 8 == 0 ? Epoch{1} : kEpoch;
    switch (rng.Bits() % 10) {
      case 0:
      case 1:
        (void)reservations_.Reserve(now, RequestId{rng.Bits()},
                                    {1 + static_cast<int64_t>(rng.Bits() % 40),
                                     1 + static_cast<int64_t>(rng.Bits() % 20), 1 + static_cast<int>(rng.Bits() % 4)},
                                    now + absl::Milliseconds(rng.Bits() % 40'000));
        break;
      case 2:
        (void)reservations_.Rearm(now, epoch, id);
        break;
      case 3:
        reservations_.Release(epoch, id);
        break;
      case 4:
        reservations_.OnFrame(now, id, AnyTenure(rng, id));
        break;
      case 5:
        if (reservations_.OnCommit(now, id, AnyTenure(rng, id))) {
          ASSERT_TRUE(reservations_.ForkChoices(id).ok());
        }
        break;
      case 6:
        reservations_.OnTransferFailed(now, id, AnyTenure(rng, id));
        break;
      case 7:
        reservations_.OnFinish(clock_.Now(), id);
        break;
      case 8:
        (void)reservations_.Attach(now, epoch, id);
        break;
      case 9:
        clock_.Advance(absl::Milliseconds(rng.Bits() % 2'000));
        for (const auto& expired : reservations_.Expire(clock_.Now()))
          ASSERT_EQ(reservations_.Find(expired.id), nullptr);
        ASSERT_GT(reservations_.NextDeadline(), clock_.Now());
        break;
    }
  }
};

TEST_P(ConservationTest, FreeAndLeasedPagesAreAlwaysAllPages) {
  Rng rng(GetParam());
  for (int i = 0; i < 5'000; ++i) {
    DoSomething(rng);
    CheckConservation();
    if (HasFatalFailure()) FAIL() << "operation " << i;
  }
  clock_.Advance(absl::Hours(1));
  reservations_.Expire(clock_.Now());
  EXPECT_EQ(Free(), kPages);
  EXPECT_EQ(reservations_.size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ConservationTest, testing::Range<uint64_t>(1, 6));

TEST_F(ReservationsTest, ChoicesUnderAPolicyHaveCopiesAndLeaveNothingBehind) {
  ReservationsOptions options = {.lease = absl::Seconds(10),
                                 .queue_wait_max = absl::Seconds(60),
                                 .reservations_max = 30,
                                 .prefix_cache_pages = kPages,
                                 .prefix_cache_keep = absl::Minutes(1),
                                 .id_key = 5};
  Reservations reservations(pool_.get(), kEpoch, options);
  std::vector<TokenId> prompt(20);
  const PageDemand demand = {.prompt_tokens = 20,
                             .max_tokens = 9,
                             .choices = 2,
                             .policy = {.kind = CachePolicyKind::kH2o, .budget = 7, .window = 2}};
  for (int again = 0; again < 2; ++again) {
    auto outcome =
        reservations.Reserve(clock_.Now(), RequestId{++requests_}, demand, clock_.Now() + absl::Minutes(1), prompt);
    ASSERT_TRUE(outcome.ok());
    const Reservation& reservation = *std::get<const Reservation*>(*outcome);
    EXPECT_EQ(reservation.cached_tokens, 0);  // the same prompt was here before
    EXPECT_EQ(Free(), kPages - 2 * 2);
    const ReservationId id = reservation.id;
    ASSERT_TRUE(reservations.OnCommit(clock_.Now(), id, Tenure{1}));
    const KvPlane first = pool_->Plane(reservation.choices[0].pages()[1], 0, 0);
    first.codes[5] = std::byte{77};
    ASSERT_TRUE(reservations.ForkChoices(id).ok());
    const PageIndex theirs = reservation.choices[1].pages()[1];
    EXPECT_NE(theirs, reservation.choices[0].pages()[1]);
    EXPECT_EQ(pool_->Plane(theirs, 0, 0).codes[5], std::byte{77});
    std::vector<TokenId> tokens(28);
    reservations.ReleaseChoice(clock_.Now(), id, 0, tokens);
    reservations.ReleaseChoice(clock_.Now(), id, 1, tokens);
    ASSERT_TRUE(reservations.Release(kEpoch, id));
    EXPECT_EQ(Free(), kPages);
    EXPECT_EQ(pool_->pages_cached(), 0);
  }
}

}  // namespace
}  // namespace sluice::decode
