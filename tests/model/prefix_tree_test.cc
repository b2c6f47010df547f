#include "model/prefix_tree.h"

#include <algorithm>
#include <optional>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int kPageTokens = 2;
using Tokens = std::vector<TokenId>;

absl::Time At(int64_t second) { return absl::FromUnixSeconds(second); }

std::unique_ptr<KvPool> MakePool(int pages) {
  return *KvPool::Create({.layout = KvLayout::Gqa(1, 1, 8), .page_tokens = kPageTokens, .pages = pages});
}

class PrefixTreeTest : public ::testing::Test {
 protected:
  // Computes `tokens` on pages of its own, as a cold request does, and leaves them to the tree.
  std::vector<PageIndex> Keep(int64_t second, const Tokens& tokens, KvPolicyId policy = kFullPolicy) {
    const PageLease lease = *pool_->Lease(pool_->PagesFor(static_cast<int64_t>(tokens.size())));
    const PrefixTree::Pin pin = tree_.Insert(At(second), policy, tokens, lease.pages());
    return {lease.pages().begin(), lease.pages().end()};
  }
  std::vector<PageIndex> Pages(int64_t second, const Tokens& tokens, KvPolicyId policy = kFullPolicy) {
    const PrefixTree::Hit hit = tree_.Match(At(second), policy, tokens);
    EXPECT_EQ(hit.tokens, static_cast<int64_t>(hit.pages.pages().size()) * kPageTokens);
    return {hit.pages.pages().begin(), hit.pages.pages().end()};
  }

  std::unique_ptr<KvPool> pool_ = MakePool(12);
  PrefixTree tree_{pool_.get(), 6};
};

TEST_F(PrefixTreeTest, FindsTheLongestPrefixInWholePages) {
  const auto pages = Keep(1, {1, 2, 3, 4, 5});
  EXPECT_THAT(Pages(2, {1, 2, 3, 4, 5}), ElementsAre(pages[0], pages[1]));  // the fifth token's page is not whole
  EXPECT_THAT(Pages(2, {1, 2, 3}), ElementsAre(pages[0]));
  EXPECT_THAT(Pages(2, {1, 2, 9, 4}), ElementsAre(pages[0]));
  EXPECT_THAT(Pages(2, {2, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(Pages(2, {1}), IsEmpty());
  EXPECT_EQ(pool_->pages_cached(), 2);
}

TEST_F(PrefixTreeTest, TheSameTokensBehindOthersAreAnotherPage) {
  const auto a = Keep(1, {1, 2, 7, 8});
  const auto b = Keep(2, {3, 4, 7, 8});
  EXPECT_THAT(Pages(3, {1, 2, 7, 8}), ElementsAreArray(a));
  EXPECT_THAT(Pages(3, {3, 4, 7, 8}), ElementsAreArray(b));
}

TEST_F(PrefixTreeTest, PagesOfOnePolicyNeverServeAnother) {
  const auto pruned = Keep(1, {1, 2, 3, 4}, /*policy=*/7);
  EXPECT_THAT(Pages(2, {1, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(Pages(2, {1, 2, 3, 4}, 7), ElementsAreArray(pruned));
}

TEST_F(PrefixTreeTest, WhatIsHereIsNotKeptTwice) {
  const auto first = Keep(1, {1, 2, 3, 4});
  const auto second = Keep(2, {1, 2, 5, 6});
  EXPECT_EQ(tree_.pages(), 3);
  EXPECT_EQ(pool_->pages_cached(), 3);
  EXPECT_THAT(Pages(3, {1, 2, 5, 6}), ElementsAre(first[0], second[1]));
}

TEST_F(PrefixTreeTest, CoarserPagesServeOnlyWhomTheySufficeAndGiveWay) {
  PageLease coarse = *pool_->Lease(2);
  tree_.Insert(At(1), kFullPolicy, {1, 2, 3, 4}, coarse.pages(), /*coarseness=*/2).Release();
  const std::vector<PageIndex> coarse_pages(coarse.pages().begin(), coarse.pages().end());
  coarse.Release();
  EXPECT_THAT(Pages(2, {1, 2, 3, 4}), IsEmpty());
  PrefixTree::Hit hit = tree_.Match(At(3), kFullPolicy, Tokens{1, 2, 3, 4}, 2);
  EXPECT_THAT(hit.pages.pages(), ElementsAreArray(coarse_pages));
  EXPECT_EQ(hit.coarseness, 2);
  (void)Keep(4, {1, 2, 3, 4});  // while the others are in use
  EXPECT_THAT(Pages(5, {1, 2, 3, 4}), IsEmpty());
  hit = {};
  const auto pages = Keep(6, {1, 2});
  EXPECT_THAT(Pages(7, {1, 2, 3, 4}), ElementsAreArray(pages));
  EXPECT_EQ(tree_.Match(At(8), kFullPolicy, Tokens{1, 2, 3, 4}, 2).tokens, 4);
  EXPECT_EQ(tree_.pages(), 2);
  EXPECT_EQ(pool_->pages_free(), 10);
}

TEST_F(PrefixTreeTest, EvictsWhatWasNotUsedForLongestLeavesFirst) {
  Keep(1, {1, 2, 3, 4});
  Keep(2, {5, 6});
  Pages(3, {1, 2});  // the first page is used again, its leaf is not
  EXPECT_EQ(tree_.Evict(1), 1);
  EXPECT_EQ(Pages(4, {1, 2, 3, 4}).size(), 1u);
  EXPECT_EQ(tree_.Evict(1), 1);
  EXPECT_THAT(Pages(5, {5, 6}), IsEmpty());
  EXPECT_EQ(tree_.Evict(9), 1);
  EXPECT_EQ(pool_->pages_free(), 12);
  EXPECT_EQ(tree_.evictions(), 3);
}

TEST_F(PrefixTreeTest, APinKeepsItsWholePath) {
  Keep(1, {1, 2, 3, 4, 5, 6});
  PrefixTree::Hit hit = tree_.Match(At(2), kFullPolicy, Tokens{1, 2, 3, 4});
  EXPECT_EQ(tree_.pages_evictable(), 1);
  EXPECT_EQ(tree_.PinnedPages(kFullPolicy, Tokens{1, 2, 3, 4, 5, 6}), 2);
  EXPECT_EQ(tree_.Evict(9), 1);
  EXPECT_EQ(pool_->pages_leased(), 2);
  hit = {};
  EXPECT_EQ(tree_.pages_evictable(), 2);
  EXPECT_EQ(tree_.PinnedPages(kFullPolicy, Tokens{1, 2, 3, 4, 5, 6}), 0);
  EXPECT_EQ(tree_.Evict(9), 2);
}

TEST_F(PrefixTreeTest, WhoComputedADuplicatePinsTheTreesPages) {
  Keep(1, {1, 2});
  const PageLease mine = *pool_->Lease(2);
  const PrefixTree::Pin pin = tree_.Insert(At(2), kFullPolicy, Tokens{1, 2, 3, 4}, mine.pages());
  EXPECT_EQ(tree_.pages_evictable(), 0);  // else the first page could go from before the second
}

TEST_F(PrefixTreeTest, StaysWithinItsBound) {
  Keep(1, {1, 2, 3, 4});
  Keep(2, {5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  EXPECT_EQ(tree_.pages(), 6);
  EXPECT_EQ(Pages(3, {5, 6, 7, 8, 9, 10, 11, 12, 13, 14}).size(), 5u);
  const PrefixTree::Hit hit = tree_.Match(At(4), kFullPolicy, Tokens{5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  Keep(5, {20, 21, 22, 23, 24, 25});  // one page is left that is not pinned
  EXPECT_EQ(tree_.pages(), 6);
  EXPECT_EQ(Pages(6, {20, 21, 22, 23, 24, 25}).size(), 1u);
}

TEST_F(PrefixTreeTest, ExpiresWhatIsOldAndNotPinned) {
  Keep(1, {1, 2, 3, 4});
  Keep(5, {5, 6});
  EXPECT_EQ(tree_.OldestUse(), At(1));
  EXPECT_EQ(tree_.Expire(At(4)), 2);
  EXPECT_EQ(tree_.OldestUse(), At(5));
  const PrefixTree::Hit hit = tree_.Match(At(6), kFullPolicy, Tokens{5, 6});
  EXPECT_EQ(tree_.OldestUse(), absl::InfiniteFuture());
  EXPECT_EQ(tree_.Expire(At(9)), 0);
}

TEST_F(PrefixTreeTest, OfNoPagesKeepsNothing) {
  PrefixTree off(pool_.get(), 0);
  const PageLease lease = *pool_->Lease(1);
  const PrefixTree::Pin pin = off.Insert(At(1), kFullPolicy, Tokens{1, 2}, lease.pages());
  EXPECT_EQ(off.pages(), 0);
  EXPECT_EQ(off.Match(At(2), kFullPolicy, Tokens{1, 2}).tokens, 0);
}

// The plainest thing that does the same: a list of all kept prefixes.
struct Oracle {
  struct Entry {
    Tokens prefix;  // of whole pages, policy in front
    PageIndex page;
    int64_t used;
    int pins = 0;
  };
  std::vector<Entry> entries;
  int pages_max;

  static Tokens Key(KvPolicyId policy, const Tokens& tokens, size_t pages) {
    Tokens key = {static_cast<TokenId>(policy)};
    key.insert(key.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(pages * kPageTokens));
    return key;
  }
  Entry* Find(const Tokens& key) {
    for (Entry& entry : entries) {
      if (entry.prefix == key) return &entry;
    }
    return nullptr;
  }
  // The unpinned entry that nothing hangs on and that was not used for longest.
  std::optional<size_t> Victim() const {
    std::optional<size_t> best;
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto extends = [&, i](const Entry& other) {
        return other.prefix.size() > entries[i].prefix.size() &&
               std::equal(entries[i].prefix.begin(), entries[i].prefix.end(), other.prefix.begin());
      };
      if (entries[i].pins > 0 || std::any_of(entries.begin(), entries.end(), extends)) continue;
      if (!best || entries[i].used < entries[*best].used) best = i;
    }
    return best;
  }
  bool EvictOne() {
    const auto victim = Victim();
    if (victim) entries.erase(entries.begin() + static_cast<ptrdiff_t>(*victim));
    return victim.has_value();
  }
  // Returns how many pages were found or taken, each pinned once more.
  size_t Insert(int64_t now, KvPolicyId policy, const Tokens& tokens, absl::Span<const PageIndex> pages) {
    for (size_t i = 0; i < tokens.size() / kPageTokens; ++i) {
      const Tokens key = Key(policy, tokens, i + 1);
      Entry* entry = Find(key);
      if (entry == nullptr) {
        if (static_cast<int>(entries.size()) == pages_max && !EvictOne()) return i;
        entry = &entries.emplace_back(Entry{key, pages[i], now});
      }
      entry->used = now;
      ++entry->pins;
    }
    return tokens.size() / kPageTokens;
  }
  std::vector<PageIndex> Match(int64_t now, KvPolicyId policy, const Tokens& tokens) {
    std::vector<PageIndex> pages;
    for (size_t i = 0; i < tokens.size() / kPageTokens; ++i) {
      Entry* entry = Find(Key(policy, tokens, i + 1));
      if (entry == nullptr) break;
      entry->used = now;
      ++entry->pins;
      pages.push_back(entry->page);
    }
    return pages;
  }
  void Unpin(KvPolicyId policy, const Tokens& tokens, size_t pages) {
    for (size_t i = 0; i < pages; ++i) --Find(Key(policy, tokens, i + 1))->pins;
  }
  int Pinned() const {
    return static_cast<int>(std::count_if(entries.begin(), entries.end(), [](const Entry& e) { return e.pins > 0; }));
  }
};

// A request of the random history below: what it pins, and the leases that say so to the pool.
struct Holder {
  KvPolicyId policy = 0;
  Tokens tokens;
  size_t pages = 0;
  PageLease lease;
  PrefixTree::Pin pin;
};

class History {
 public:
  explicit History(uint64_t seed) : rng_(seed), bound_(static_cast<int>(rng_.Bits() % 12)) {}

  void Run() {
    for (now_ = 1; now_ < 300 && !::testing::Test::HasFatalFailure(); ++now_) {
      Act();
      Compare();
    }
  }

 private:
  Tokens RandomTokens() {
    Tokens tokens(rng_.Bits() % 9);
    for (TokenId& token : tokens) token = static_cast<TokenId>(rng_.Bits() % 2);
    return tokens;
  }

  void Act() {
    const KvPolicyId policy = rng_.Bits() % 2;
    const Tokens tokens = RandomTokens();
    switch (rng_.Bits() % 5) {
      case 0: {
        PageLease lease = *pool_->Lease(pool_->PagesFor(static_cast<int64_t>(tokens.size())));
        const size_t kept = oracle_.Insert(now_, policy, tokens, lease.pages());
        PrefixTree::Pin pin = tree_.Insert(At(now_), policy, tokens, lease.pages());
        holders_.push_back({policy, tokens, kept, std::move(lease), std::move(pin)});
        break;
      }
      case 1: {
        PrefixTree::Hit hit = tree_.Match(At(now_), policy, tokens);
        const auto expected = oracle_.Match(now_, policy, tokens);
        ASSERT_THAT(hit.pages.pages(), ElementsAreArray(expected));
        holders_.push_back({policy, tokens, expected.size(), std::move(hit.pages), std::move(hit.pin)});
        break;
      }
      case 2: {
        const int pages = static_cast<int>(rng_.Bits() % 3);
        int evicted = 0;
        while (evicted < pages && oracle_.EvictOne()) ++evicted;
        ASSERT_EQ(tree_.Evict(pages), evicted);
        break;
      }
      default:
        if (!holders_.empty()) DropOne();
    }
    while (holders_.size() > 4) DropOne();
  }

  void DropOne() {
    const size_t i = rng_.Bits() % holders_.size();
    oracle_.Unpin(holders_[i].policy, holders_[i].tokens, holders_[i].pages);
    holders_.erase(holders_.begin() + static_cast<ptrdiff_t>(i));
  }

  void Compare() {
    ASSERT_EQ(tree_.pages(), static_cast<int>(oracle_.entries.size()));
    ASSERT_LE(tree_.pages(), bound_);
    ASSERT_EQ(tree_.pages_evictable(), tree_.pages() - oracle_.Pinned());
    ASSERT_EQ(pool_->pages_cached(), tree_.pages_evictable());
    ASSERT_EQ(pool_->pages_free() + pool_->pages_leased() + pool_->pages_cached(), pool_->pages_total());
    const auto victim = oracle_.Victim();
    ASSERT_EQ(tree_.OldestUse(), victim ? At(oracle_.entries[*victim].used) : absl::InfiniteFuture());
  }

  Rng rng_;
  const int bound_;
  std::unique_ptr<KvPool> pool_ = MakePool(60);
  PrefixTree tree_{pool_.get(), bound_};
  Oracle oracle_{.pages_max = bound_};
  std::vector<Holder> holders_;
  int64_t now_ = 0;
};

TEST(PrefixTree, DoesWhatAListOfPrefixesDoesOverRandomHistories) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    History(seed).Run();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice
