#include "model/kv_pool.h"

#include <cstring>
#include <set>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr KvLayout kLayout = KvLayout::Gqa(3, 2, 8);

std::unique_ptr<KvPool> MakePool(int pages, KvCodec codec = KvCodec::kBf16) {
  return *KvPool::Create({.layout = kLayout, .codec = codec, .page_tokens = 4, .pages = pages});
}

TEST(KvPool, LeasesDistinctPagesAndTakesThemBack) {
  auto pool = MakePool(10);
  {
    PageLease a = *pool->Lease(4);
    PageLease b = *pool->Lease(6);
    std::set<PageIndex> pages(a.pages().begin(), a.pages().end());
    pages.insert(b.pages().begin(), b.pages().end());
    EXPECT_EQ(pages.size(), 10u);
    EXPECT_EQ(pool->pages_free(), 0);
  }
  EXPECT_EQ(pool->pages_free(), 10);
}

TEST(KvPool, RefusesMoreThanIsFreeNamingBothNumbersAndChangesNothing) {
  auto pool = MakePool(5);
  PageLease a = *pool->Lease(3);
  const Status refused = pool->Lease(3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 KV pages needed, 2 of 5 free"));
  EXPECT_EQ(a.Extend(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(a.pages().size(), 3u);
  EXPECT_EQ(pool->pages_free(), 2);
  EXPECT_TRUE(a.Extend(2).ok());
  EXPECT_EQ(pool->pages_free(), 0);
}

TEST(KvPool, MovedLeaseGivesBackOnce) {
  auto pool = MakePool(4);
  PageLease a = *pool->Lease(2);
  PageLease b = std::move(a);
  EXPECT_EQ(pool->pages_free(), 2);
  b = *pool->Lease(1);
  EXPECT_EQ(pool->pages_free(), 3);
  b.Release();
  b.Release();
  EXPECT_EQ(pool->pages_free(), 4);
}

TEST(KvPool, SlotsOfAllPagesAndLayersAreDisjointAndFillTheMemory) {
  auto pool = MakePool(3);
  const size_t half = LayerBytes(kLayout, KvCodec::kBf16, 4) / 2;
  PageLease lease = *pool->Lease(3);
  std::set<std::byte*> starts;
  for (const PageIndex page : lease.pages()) {
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (std::byte* p : {pool->Plane(page, layer, 0).codes, pool->Plane(page, layer, 1).codes}) starts.insert(p);
    }
  }
  std::byte* expected = *starts.begin();
  for (std::byte* start : starts) {
    EXPECT_EQ(start, expected);
    expected += half;
  }
  EXPECT_EQ(starts.size() * half, pool->bytes());
}

TEST(KvPool, ForkSharesWholePagesAndCopiesThePartialOne) {
  auto pool = MakePool(8);
  PageLease prompt = *pool->Lease(3);  // 12 slots, 10 of them used
  std::memset(pool->Plane(prompt.pages()[2], 1, 0).codes, 0x5a, 16);
  PageLease fork = *pool->Fork(prompt, 10);
  ASSERT_EQ(fork.pages().size(), 3u);
  EXPECT_EQ(fork.pages()[0], prompt.pages()[0]);
  EXPECT_EQ(fork.pages()[1], prompt.pages()[1]);
  EXPECT_NE(fork.pages()[2], prompt.pages()[2]);
  EXPECT_EQ(std::memcmp(pool->Plane(fork.pages()[2], 1, 0).codes, pool->Plane(prompt.pages()[2], 1, 0).codes, 16), 0);
  std::memset(pool->Plane(fork.pages()[2], 1, 0).codes, 0x11, 16);
  EXPECT_EQ(*pool->Plane(prompt.pages()[2], 1, 0).codes, std::byte{0x5a});
  EXPECT_EQ(pool->pages_free(), 8 - 4);
}

TEST(KvPool, ForkOfWholePagesTakesNoPage) {
  auto pool = MakePool(4);
  PageLease prompt = *pool->Lease(3);
  PageLease fork = *pool->Fork(prompt, 8);
  EXPECT_EQ(fork.pages().size(), 2u);
  EXPECT_EQ(pool->pages_free(), 1);
  prompt.Release();
  EXPECT_EQ(pool->pages_free(), 2);  // the two shared pages stay until the fork leaves too
  fork.Release();
  EXPECT_EQ(pool->pages_free(), 4);
}

TEST(KvPool, ForkWithoutRoomLeavesEverythingAsItWas) {
  auto pool = MakePool(2);
  PageLease prompt = *pool->Lease(2);
  EXPECT_EQ(pool->Fork(prompt, 5).status().code(), absl::StatusCode::kResourceExhausted);
  prompt.Release();
  EXPECT_EQ(pool->pages_free(), 2);
}

TEST(KvPool, PagesThatOnlyACacheHoldsAreCached) {
  auto pool = MakePool(6);
  PageLease prompt = *pool->Lease(3);
  PageLease cache = pool->Share(prompt.pages().first(2), LeaseFor::kCache);
  EXPECT_EQ(pool->pages_leased(), 3);
  EXPECT_EQ(pool->pages_cached(), 0);
  prompt.Release();
  EXPECT_EQ(pool->pages_leased(), 0);
  EXPECT_EQ(pool->pages_cached(), 2);
  EXPECT_EQ(pool->pages_free(), 4);
  PageLease again = pool->Share(cache.pages(), LeaseFor::kUse);
  EXPECT_EQ(pool->pages_cached(), 0);
  ASSERT_TRUE(again.Extend(1).ok());
  EXPECT_EQ(pool->pages_leased(), 3);
  cache.Release();
  EXPECT_EQ(pool->pages_leased(), 3);
  again.Release();
  EXPECT_EQ(pool->pages_free(), 6);
}

TEST(KvPool, ExchangedPagesAreOthersAndTheRestStays) {
  auto pool = MakePool(6);
  PageLease lease = *pool->Lease(4);
  const std::vector<PageIndex> before(lease.pages().begin(), lease.pages().end());
  const PageLease until_quiet = pool->Share(lease.pages().subspan(1, 2), LeaseFor::kQuiet);
  ASSERT_TRUE(lease.Exchange(1, 2).ok());
  EXPECT_EQ(lease.pages()[0], before[0]);
  EXPECT_EQ(lease.pages()[3], before[3]);
  for (const PageIndex page : lease.pages().subspan(1, 2)) EXPECT_THAT(before, testing::Not(testing::Contains(page)));
  EXPECT_EQ(pool->pages_free(), 0);
  EXPECT_EQ(pool->pages_quarantined(), 2);
  const std::vector<PageIndex> after(lease.pages().begin(), lease.pages().end());
  EXPECT_EQ(lease.Exchange(0, 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(lease.pages(), testing::ElementsAreArray(after));
}

TEST(KvPool, APageThatIsHeldUntilQuietIsQuarantinedOnceNobodyUsesIt) {
  auto pool = MakePool(4);
  PageLease lease = *pool->Lease(3);
  PageLease until_quiet = pool->Share(lease.pages().subspan(0, 2), LeaseFor::kQuiet);
  const PageLease cached = pool->Share(lease.pages().subspan(1, 2), LeaseFor::kCache);
  EXPECT_EQ(pool->pages_leased(), 3);
  EXPECT_EQ(pool->pages_quarantined(), 0);
  lease.Release();
  EXPECT_EQ(pool->pages_quarantined(), 2);  // also the one that is cached too: dropping that makes no room
  EXPECT_EQ(pool->pages_cached(), 1);
  until_quiet.Release();
  EXPECT_EQ(pool->pages_quarantined(), 0);
  EXPECT_EQ(pool->pages_cached(), 2);
}

// A page is held by as many leases as a plain count says, whatever the order of leasing, forking and releasing.
TEST(KvPool, CountsHoldOverRandomHistories) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto pool = MakePool(40);
    Rng rng(seed);
    std::vector<PageLease> leases, caches, until_quiet;
    for (int step = 0; step < 200; ++step) {
      const uint64_t what = rng.Bits() % 5;
      if (what == 0) {
        if (auto lease = pool->Lease(static_cast<int>(rng.Bits() % 6)); lease.ok()) leases.push_back(*std::move(lease));
      } else if (what == 3 && !leases.empty()) {
        const absl::Span<const PageIndex> shared = leases[rng.Bits() % leases.size()].pages();
        caches.push_back(pool->Share(shared, LeaseFor::kCache));
        if (caches.size() > 3) caches.erase(caches.begin());
        until_quiet.push_back(pool->Share(shared.subspan(shared.size() / 2), LeaseFor::kQuiet));
        if (until_quiet.size() > 2) until_quiet.erase(until_quiet.begin());
      } else if (!leases.empty()) {
        PageLease& one = leases[rng.Bits() % leases.size()];
        const auto tokens = static_cast<int64_t>(rng.Bits() % (one.pages().size() * 4 + 1));
        if (what == 1) {
          if (auto fork = pool->Fork(one, tokens); fork.ok()) leases.push_back(*std::move(fork));
        } else {
          std::swap(one, leases.back());
          leases.pop_back();
        }
      }
      std::set<PageIndex> held;
      for (const PageLease& lease : leases) held.insert(lease.pages().begin(), lease.pages().end());
      std::set<PageIndex> quarantined;
      for (const PageLease& each : until_quiet) quarantined.insert(each.pages().begin(), each.pages().end());
      std::erase_if(quarantined, [&held](PageIndex page) { return held.contains(page); });
      std::set<PageIndex> kept;
      for (const PageLease& cache : caches) kept.insert(cache.pages().begin(), cache.pages().end());
      std::erase_if(kept, [&](PageIndex page) { return held.contains(page) || quarantined.contains(page); });
      ASSERT_EQ(pool->pages_leased(), static_cast<int>(held.size())) << "seed " << seed;
      ASSERT_EQ(pool->pages_cached(), static_cast<int>(kept.size())) << "seed " << seed;
      ASSERT_EQ(pool->pages_quarantined(), static_cast<int>(quarantined.size())) << "seed " << seed;
      ASSERT_EQ(pool->pages_free() + static_cast<int>(held.size() + quarantined.size() + kept.size()), 40)
          << "seed " << seed;
    }
  }
}

TEST(KvPool, RefusesSizesThatAreNotPositive) {
  EXPECT_EQ(KvPool::Create({.layout = kLayout, .pages = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvPool::Create({.layout = {}, .pages = 4}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvPool, PagesForRoundsUp) {
  auto pool = MakePool(1);
  EXPECT_EQ(pool->PagesFor(0), 0);
  EXPECT_EQ(pool->PagesFor(1), 1);
  EXPECT_EQ(pool->PagesFor(4), 1);
  EXPECT_EQ(pool->PagesFor(5), 2);
}

}  // namespace
}  // namespace sluice
