// Which requests leave the pool when pages run out, and that they come back whole.
#include <algorithm>
#include <map>
#include <set>

#include "common/clock.h"
#include "common/rng.h"
#include "decode/reservations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

using S = ReservationState;

constexpr Epoch kEpoch{77};
constexpr int kPageTokens = 4;

class ParkingTest : public testing::Test {
 protected:
  void Create(int pages, int park_pages, int prefix_pages = 0) {
    pool_ = *KvPool::Create(
        {.layout = {.layers = 2, .kv_heads = 1, .head_dim = 16}, .page_tokens = kPageTokens, .pages = pages});
    park_ = *KvPark::Create({.bytes = pool_->page_bytes() * static_cast<size_t>(park_pages)}, pool_->page_bytes());
    reservations_ = std::make_unique<Reservations>(pool_.get(), kEpoch,
                                                   ReservationsOptions{.lease = absl::Seconds(10),
                                                                       .queue_wait_max = absl::Seconds(60),
                                                                       .reservations_max = 100,
                                                                       .prefix_cache_pages = prefix_pages,
                                                                       .prefix_cache_keep = absl::Minutes(5),
                                                                       .growth_tokens = kGrowth,
                                                                       .id_key = 5},
                                                   park_.get());
  }

  StatusOr<std::variant<const Reservation*, NoRoom>> TryReserve(PageDemand demand,
                                                                absl::Span<const TokenId> prompt = {}) {
    return reservations_->Reserve(clock_.Now(), RequestId{++requests_}, demand, clock_.Now() + absl::Hours(9), prompt);
  }
  ReservationId Running(int64_t prompt, int64_t max_tokens, int n = 1, absl::Span<const TokenId> tokens = {}) {
    const auto outcome = TryReserve({prompt, max_tokens, n}, tokens);
    SLUICE_CHECK(outcome.ok() && std::holds_alternative<const Reservation*>(*outcome));
    const ReservationId id = std::get<const Reservation*>(*outcome)->id;
    Start(id);
    return id;
  }
  void Start(ReservationId id) {
    EXPECT_TRUE(reservations_->Attach(clock_.Now(), kEpoch, id).ok());
    EXPECT_TRUE(reservations_->OnCommit(clock_.Now(), id, Tenure{1}));
    if (Find(id).demand.choices > 1) {
      EXPECT_TRUE(reservations_->ForkChoices(id).ok());
    }
  }
  const Reservation& Find(ReservationId id) const { return *reservations_->Find(id); }
  int Pages(ReservationId id, int choice = 0) const {
    return static_cast<int>(Find(id).choices[static_cast<size_t>(choice)].pages().size());
  }
  void Park(ReservationId id) { EXPECT_TRUE(reservations_->Park(clock_.Now(), id).ok()); }
  void Return(ReservationId id) { EXPECT_TRUE(reservations_->Return(clock_.Now(), id).ok()); }
  int Free() const { return pool_->pages_free(); }

  // A mark in each layer of a page.
  void Mark(PageIndex page, uint64_t mark) {
    for (int layer = 0; layer < 2; ++layer) std::memcpy(pool_->Plane(page, layer, 1).codes, &mark, sizeof(mark));
  }
  void ExpectMark(PageIndex page, uint64_t mark) {
    for (int layer = 0; layer < 2; ++layer) {
      uint64_t there = 0;
      std::memcpy(&there, pool_->Plane(page, layer, 1).codes, sizeof(there));
      EXPECT_EQ(there, mark) << "page " << page << ", layer " << layer;
    }
  }

  static constexpr int kGrowth = 8;
  ManualClock clock_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvPark> park_;
  std::unique_ptr<Reservations> reservations_;
  uint64_t requests_ = 0;
};

TEST_F(ParkingTest, ARequestBeginsWithItsPromptAndGrowsToItsWorstCase) {
  Create(64, 64);
  const ReservationId id = Running(10, 101);  // 110 slots at most
  EXPECT_EQ(Free(), 64 - 5);                  // of 10 + 7
  EXPECT_TRUE(reservations_->Grow(id, 0, 20));
  EXPECT_EQ(Free(), 64 - 5);
  EXPECT_TRUE(reservations_->Grow(id, 0, 21));
  EXPECT_EQ(Free(), 64 - 6);
  EXPECT_TRUE(reservations_->Grow(id, 0, 110));
  EXPECT_EQ(Free(), 64 - 28);
  EXPECT_DEATH(reservations_->Grow(id, 0, 113), "more pages than it was promised");
}

TEST_F(ParkingTest, WithoutAParkTheWorstCaseIsLeased) {
  Create(64, 64);
  Reservations plain(pool_.get(), kEpoch,
                     {.lease = absl::Seconds(10), .reservations_max = 9, .growth_tokens = kGrowth});
  const auto outcome = plain.Reserve(clock_.Now(), RequestId{1}, {10, 101, 1}, clock_.Now() + absl::Hours(1));
  const ReservationId id = std::get<const Reservation*>(*outcome)->id;
  EXPECT_EQ(Free(), 64 - 28);
  EXPECT_TRUE(plain.OnCommit(clock_.Now(), id, Tenure{1}));
  EXPECT_TRUE(plain.Grow(id, 0, 110));
  EXPECT_EQ(Free(), 64 - 28);
  EXPECT_FALSE(plain.NextToPark());
}

// 20 + 20 pages; requests of at most 10: what is promised in all may be 40 less the largest.
TEST_F(ParkingTest, WhatPoolAndParkCannotHoldTogetherIsNotPromised) {
  Create(20, 20);
  for (int i = 0; i < 3; ++i) Running(4, 37);
  const auto no_room = std::get<NoRoom>(*TryReserve({4, 37, 1}));
  EXPECT_EQ(no_room.pages_needed, 10);
  EXPECT_EQ(no_room.pages_free, 0);
  EXPECT_TRUE(std::holds_alternative<NoRoom>(*TryReserve({4, 1, 1})));
}

// It could not be parked for one page: but while all worst cases fit into the pool, nobody has to be.
TEST_F(ParkingTest, AParkThatIsSmallerThanARequestTakesNothingAway) {
  Create(20, 3);
  Running(4, 37);
  Running(4, 37);
  const auto no_room = std::get<NoRoom>(*TryReserve({1, 1, 1}));
  EXPECT_EQ(no_room.pages_needed, 1);
  EXPECT_EQ(no_room.pages_free, 0);
}

TEST_F(ParkingTest, TheYoungestLeavesAndTheOldestIsTheFirstToComeBack) {
  Create(20, 40);
  const ReservationId a = Running(12, 37);
  const ReservationId b = Running(12, 37);
  const ReservationId c = Running(12, 37);
  ASSERT_TRUE(reservations_->Grow(a, 0, 36));
  EXPECT_EQ(Free(), 1);
  EXPECT_FALSE(reservations_->Grow(a, 0, 44));
  EXPECT_EQ(reservations_->NextToPark(), c);
  Park(c);
  EXPECT_EQ(Find(c).state, S::kParked);
  EXPECT_EQ(Free(), 6);
  EXPECT_EQ(park_->pages_free(), 35);
  ASSERT_TRUE(reservations_->Grow(a, 0, 48));
  EXPECT_EQ(reservations_->NextToPark(), b);
  Park(b);
  EXPECT_FALSE(reservations_->NextToPark()) << "alone, it has to wait";
  // Pages are free, but those who are parked come first, and need room to grow as well.
  EXPECT_TRUE(std::holds_alternative<NoRoom>(*TryReserve({1, 1, 1})));
  EXPECT_EQ(reservations_->NextToReturn(), b);
  Return(b);
  EXPECT_FALSE(reservations_->NextToReturn());
  EXPECT_TRUE(reservations_->OnFinish(clock_.Now(), a));
  EXPECT_EQ(reservations_->NextToReturn(), c);
  Return(c);
  EXPECT_EQ(Find(c).state, S::kRunning);
  EXPECT_EQ(park_->pages_free(), 40);
  EXPECT_TRUE(std::holds_alternative<const Reservation*>(*TryReserve({1, 1, 1})));
}

TEST_F(ParkingTest, WhoWaitsForItsReaderLeavesFirstKeepsNobodyOutAndComesBackWhenItIsRead) {
  Create(20, 34);
  const ReservationId a = Running(12, 37);
  const ReservationId b = Running(12, 37);
  const ReservationId c = Running(12, 37);
  ASSERT_TRUE(reservations_->Grow(c, 0, 36));
  EXPECT_FALSE(reservations_->Grow(c, 0, 44));
  reservations_->OnReader(a, true);
  EXPECT_EQ(reservations_->NextToPark(), a);
  Park(a);
  ASSERT_TRUE(reservations_->Grow(c, 0, 44));
  EXPECT_FALSE(reservations_->NextToReturn());
  // What it was promised is counted wherever its pages are: of 54, three times 12, and 12 for the largest.
  EXPECT_TRUE(std::holds_alternative<NoRoom>(*TryReserve({1, 4 * 7, 1})));
  const ReservationId d = Running(1, 8);
  EXPECT_EQ(reservations_->NextToPark(), d) << "nobody else waits for a reader";
  reservations_->OnReader(b, true);
  EXPECT_EQ(reservations_->NextToPark(), b);
  reservations_->OnReader(b, false);
  // Read at last, it comes before anybody new, as soon as there is room.
  reservations_->OnReader(a, false);
  EXPECT_TRUE(std::holds_alternative<NoRoom>(*TryReserve({1, 1, 1})));
  EXPECT_FALSE(reservations_->NextToReturn());
  EXPECT_TRUE(reservations_->OnFinish(clock_.Now(), c));
  EXPECT_EQ(reservations_->NextToReturn(), a);
  Return(a);
  EXPECT_EQ(Pages(a), 5);
}

TEST_F(ParkingTest, WhatWaitsForPrefillIsNotParked) {
  Create(10, 40);
  const ReservationId a = Running(4, 33);
  const auto armed = TryReserve({20, 9, 1});
  ASSERT_TRUE(std::holds_alternative<const Reservation*>(*armed));
  EXPECT_FALSE(reservations_->Grow(a, 0, 20));
  EXPECT_FALSE(reservations_->NextToPark());
  const ReservationId b = std::get<const Reservation*>(*armed)->id;
  Start(b);
  EXPECT_EQ(reservations_->NextToPark(), b);
}

TEST_F(ParkingTest, AParkedRequestEndsLikeAnother) {
  Create(20, 40);
  const ReservationId a = Running(12, 37);
  const ReservationId b = Running(12, 37);
  Park(b);
  EXPECT_TRUE(reservations_->Release(kEpoch, b));
  EXPECT_EQ(park_->pages_free(), 40);
  EXPECT_EQ(reservations_->requests_parked(), 0);
  const ReservationId c = Running(12, 37);
  Park(c);
  clock_.Advance(absl::Hours(9));
  EXPECT_THAT(reservations_->Expire(clock_.Now()), testing::SizeIs(2));
  EXPECT_EQ(reservations_->Find(a), nullptr);
  EXPECT_EQ(Free(), 20);
  EXPECT_EQ(park_->pages_free(), 40);
  EXPECT_FALSE(reservations_->NextToReturn());
}

TEST_F(ParkingTest, ChoicesThatShareTheirPromptDoSoAfterwards) {
  Create(40, 40);
  const ReservationId other = Running(4, 9);
  const ReservationId id = Running(12, 9, 3);  // three pages shared, two of each choice
  EXPECT_EQ(Free(), 40 - 3 - 3 - 3 * 2);
  std::map<PageIndex, uint64_t> marks;
  std::vector<std::vector<uint64_t>> expected;
  for (int choice = 0; choice < 3; ++choice) {
    expected.emplace_back();
    for (const PageIndex page : Find(id).choices[static_cast<size_t>(choice)].pages()) {
      const auto [it, fresh] = marks.emplace(page, 100 + marks.size());
      if (fresh) Mark(page, it->second);
      expected.back().push_back(it->second);
    }
  }
  Park(id);
  EXPECT_EQ(park_->pages_free(), 40 - 9);
  const PageLease taken = *pool_->Lease(9);  // so that it comes back elsewhere
  for (const PageIndex page : taken.pages()) Mark(page, 1);
  Return(id);
  EXPECT_EQ(Free(), 40 - 3 - 9 - 9);
  for (int choice = 0; choice < 3; ++choice) {
    for (int i = 0; i < Pages(id, choice); ++i) {
      ExpectMark(Find(id).choices[static_cast<size_t>(choice)].pages()[static_cast<size_t>(i)],
                 expected[static_cast<size_t>(choice)][static_cast<size_t>(i)]);
    }
  }
  EXPECT_TRUE(reservations_->Release(kEpoch, id));
  EXPECT_TRUE(reservations_->Release(kEpoch, other));
  EXPECT_EQ(Free(), 40 - 9);
}

TEST_F(ParkingTest, APrefixThatOthersUseStaysWhereItIs) {
  Create(40, 40, /*prefix_pages=*/40);
  const std::vector<TokenId> prompt(21, 5);
  const ReservationId first = Running(21, 9, 1, prompt);
  reservations_->ReleaseChoice(clock_.Now(), first, 0, prompt);
  EXPECT_TRUE(reservations_->OnFinish(clock_.Now(), first));
  EXPECT_EQ(pool_->pages_cached(), 5);
  const ReservationId a = Running(21, 9, 1, prompt);
  const ReservationId b = Running(21, 9, 1, prompt);
  EXPECT_EQ(Find(b).cached_tokens, 20);
  const std::vector<PageIndex> before(Find(b).choices[0].pages().begin(), Find(b).choices[0].pages().end());
  Park(b);
  EXPECT_EQ(park_->pages_free(), 40 - 2);  // 28 slots are 7 pages
  EXPECT_TRUE(reservations_->Release(kEpoch, a));
  EXPECT_EQ(pool_->pages_cached(), 0) << "the parked request needs them";
  Return(b);
  const absl::Span<const PageIndex> after = Find(b).choices[0].pages();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 5, after.begin()));
  EXPECT_EQ(after.size(), before.size());
  EXPECT_TRUE(reservations_->Release(kEpoch, b));
  EXPECT_EQ(pool_->pages_cached(), 5);
}

// The prompt of a choice that has ended is not cached while others run on it: nobody could park them then.
TEST_F(ParkingTest, AChoiceThatEndsLeavesTheOthersParkable) {
  Create(40, 40, /*prefix_pages=*/40);
  const std::vector<TokenId> prompt(20, 5);
  Running(4, 9);
  const ReservationId id = Running(20, 9, 2, prompt);
  reservations_->ReleaseChoice(clock_.Now(), id, 1, prompt);
  EXPECT_EQ(reservations_->NextToPark(), id);
  Park(id);
  EXPECT_EQ(park_->pages_free(), 40 - 7);
  Return(id);
  reservations_->ReleaseChoice(clock_.Now(), id, 0, prompt);
  EXPECT_TRUE(reservations_->OnFinish(clock_.Now(), id));
  EXPECT_EQ(pool_->pages_cached(), 5);
}

// Requests come, grow, end, are forked, share prefixes, and are parked whenever a page is missing. Always: a page that
// is missing can be had by parking, or somebody who waits for prefill holds it; the oldest request alone can have all
// that it was promised; and every page of every choice says what was written into it.
TEST_F(ParkingTest, WhateverHappensThereIsRoomToParkTheYoungest) {
  int parked = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    uint64_t draws = 0;
    const auto draw = [&](int64_t n) {
      return static_cast<int64_t>(RandomBits(seed, draws++) % static_cast<uint64_t>(n));
    };
    const int pages = 12 + static_cast<int>(draw(40));
    Create(pages, 1 + static_cast<int>(draw(100)), static_cast<int>(draw(2)) * pages);
    struct Live {
      std::vector<TokenId> prompt;
      std::vector<std::vector<uint64_t>> marks;  // by choice, of its pages
      std::vector<int64_t> slots;                // used
    };
    std::map<ReservationId, Live> running;
    uint64_t mark = 1000 * seed;
    const auto check = [&](ReservationId id) {
      for (size_t c = 0; c < running[id].marks.size(); ++c) {
        const auto table = Find(id).choices[c].pages();
        for (size_t i = 0; i < table.size(); ++i) ExpectMark(table[i], running[id].marks[c][i]);
      }
    };
    // Pages without a mark get one; shared ones, and those of a cached prefix, have theirs.
    std::map<PageIndex, uint64_t> cached_marks;
    const auto mark_new = [&](ReservationId id) {
      Live& live = running[id];
      live.marks.resize(Find(id).choices.size());
      std::map<PageIndex, uint64_t> own;
      const int64_t cached = Find(id).cached_tokens / kPageTokens;
      for (size_t c = 0; c < live.marks.size(); ++c) {
        const auto table = Find(id).choices[c].pages();
        for (size_t i = 0; i < table.size(); ++i) {
          if (i < live.marks[c].size()) continue;
          if (static_cast<int64_t>(i) < cached) {
            live.marks[c].push_back(cached_marks.at(table[i]));
            continue;
          }
          const auto [it, fresh] = own.emplace(table[i], mark + 1);
          if (fresh) Mark(table[i], ++mark);
          live.marks[c].push_back(it->second);
        }
      }
    };
    const auto end = [&](ReservationId id) {
      Live& live = running[id];
      if (Find(id).state == S::kRunning) {
        for (size_t c = 0; c < live.marks.size(); ++c) {
          const auto table = Find(id).choices[c].pages();
          for (size_t i = 0; i < std::min(table.size(), live.prompt.size() / kPageTokens); ++i)
            cached_marks[table[i]] = live.marks[c][i];
          reservations_->ReleaseChoice(clock_.Now(), id, static_cast<int>(c), live.prompt);
        }
      }
      EXPECT_TRUE(reservations_->Release(kEpoch, id));
      running.erase(id);
    };
    for (int step = 0; step < 600; ++step) {
      clock_.Advance(absl::Milliseconds(1));
      while (const auto back = reservations_->NextToReturn()) {
        Return(*back);
        check(*back);
      }
      if (draw(4) == 0) {
        const std::vector<TokenId> prompt(static_cast<size_t>(1 + draw(50)), static_cast<TokenId>(draw(3)));
        const PageDemand demand = {static_cast<int64_t>(prompt.size()), 1 + draw(90),
                                   1 + static_cast<int>(draw(3) == 0)};
        const auto outcome = TryReserve(demand, prompt);
        if (outcome.ok() && std::holds_alternative<const Reservation*>(*outcome)) {
          for (const auto& [other, live] : running)
            EXPECT_TRUE(Find(other).state != S::kParked || Find(other).reader_behind);
          const ReservationId id = std::get<const Reservation*>(*outcome)->id;
          running[id].prompt = prompt;
          Start(id);
          mark_new(id);
          running[id].slots.assign(running[id].marks.size(), demand.prompt_tokens);
        }
      }
      if (running.empty()) continue;
      const auto it = std::next(running.begin(), draw(static_cast<int64_t>(running.size())));
      const ReservationId id = it->first;
      if (draw(80) == 0) {
        end(id);
        continue;
      }
      if (draw(20) == 0) reservations_->OnReader(id, !Find(id).reader_behind);
      if (Find(id).reader_behind) continue;
      for (size_t c = 0; c < it->second.slots.size(); ++c) {
        if (Find(id).state != S::kRunning) break;
        if (it->second.slots[c] == Find(id).demand.slots()) continue;
        ++it->second.slots[c];
        while (Find(id).state == S::kRunning && !reservations_->Grow(id, static_cast<int>(c), it->second.slots[c])) {
          const auto youngest = reservations_->NextToPark();
          ASSERT_TRUE(youngest.has_value()) << "a request that runs alone has no page";
          for (const auto& [other, live] : running) {
            // Who would have come before has nothing of its own to give.
            const auto order = [&](ReservationId r) { return std::pair(Find(r).reader_behind, Find(r).age); };
            if (Find(other).state == S::kRunning && order(other) > order(*youngest)) {
              EXPECT_GT(Find(other).cached_tokens, 0);
            }
          }
          ASSERT_TRUE(reservations_->Park(clock_.Now(), *youngest).ok());
          ++parked;
        }
        if (Find(id).state == S::kParked) {
          --it->second.slots[c];
        } else {
          mark_new(id);
          check(id);
        }
      }
    }
    while (!running.empty()) end(running.begin()->first);
    reservations_->ExpirePrefixes(clock_.Now() + absl::Hours(1));
    EXPECT_EQ(Free(), pages);
    EXPECT_EQ(park_->pages_free(), park_->pages_total());
    reservations_.reset();
  }
  EXPECT_GT(parked, 1000);
}

}  // namespace
}  // namespace sluice::decode
