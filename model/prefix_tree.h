// Which prompts' KV is still in the pool: a radix tree whose edges are whole pages of token ids. A page of KV depends
// on its own tokens and on all before them, so the path to a node is the key of its page, and what two prompts share
// they share from the root on. Bounded by pages; what was not used for longest goes first, leaves before what they hang
// on.
//
// The key of a page includes model, layout and store codec by construction: there is one tree a process, over one pool,
// which has one of each. The cache policy is a part of the key, so that pages that a policy has pruned never serve
// a request that wants everything.
//
// Words: a *pin* keeps the path to a node from being evicted: while somebody computes on it, sends it, or writes behind
// it. KvPool counts pages under a pin as leased and the others as cached; those are what Evict gives back.
//
// Pure but for the pool's counts: no clock, no thread; the pool's thread drives it and passes the time in.
// Memory beside the pages: page_tokens ids and about 200 bytes a page.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "model/kv_pool.h"

namespace sluice {

using KvPolicyId = uint64_t;
inline constexpr KvPolicyId kFullPolicy = 0;  // keeps every token

// How much less accurate KV is than what the pool's codec holds: 0 for KV that was computed in place or came in a codec
// at least as accurate, and the more the coarser the codec was that it came in.
using KvCoarseness = int;
inline constexpr KvCoarseness kAnyCoarseness = std::numeric_limits<KvCoarseness>::max();

class PrefixTree {
 public:
  // At most `pages_max` pages are kept; 0 switches the tree off. Outlived by `pool`.
  PrefixTree(KvPool* pool, int pages_max);
  // REQUIRES: no pin is left.
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Move-only; dropped on the tree's thread.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : tree_(std::exchange(other.tree_, nullptr)), node_(other.node_) {}
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Release(); }
    void Release();

   private:
    friend class PrefixTree;
    Pin(PrefixTree* tree, int32_t node) : tree_(tree), node_(node) {}
    PrefixTree* tree_ = nullptr;
    int32_t node_ = 0;  // the path's last
  };

  struct Hit {
    int64_t tokens = 0;  // whole pages of them
    PageLease pages;     // shared with the tree; can be extended
    Pin pin;
    KvCoarseness coarseness = 0;  // of the worst of them
  };
  // The longest prefix of `tokens` that is here with no page coarser than `coarseness_max`; it counts as used now.
  Hit Match(absl::Time now, KvPolicyId policy, absl::Span<const TokenId> tokens, KvCoarseness coarseness_max = 0);

  // Of the pages that Match would find, those that are pinned already: a request that shares them needs no room for
  // them. Changes nothing.
  int PinnedPages(KvPolicyId policy, absl::Span<const TokenId> tokens) const;

  // Takes over the whole pages of `tokens`, whose KV lies in `pages` and is final. Pages that are here already stay, so
  // the same tokens in other pages are not kept twice; but coarser ones that nobody pins give way. Evicts to stay
  // within the bound; where everything else is pinned, only the beginning is taken. Returns the pin of what is here
  // now. REQUIRES: `pages` are leased and hold all of `tokens`.
  Pin Insert(absl::Time now, KvPolicyId policy, absl::Span<const TokenId> tokens, absl::Span<const PageIndex> pages,
             KvCoarseness coarseness = 0);

  // Gives up to `pages` pages back to the pool. Returns how many.
  int Evict(int pages);
  // Gives back what was used last at `used_last` or before and is not pinned. Returns how many pages.
  int Expire(absl::Time used_last);
  // The time by which Expire would give the first page back; InfiniteFuture where none can be.
  absl::Time OldestUse() const;

  int pages() const { return pages_; }
  int pages_evictable() const { return pages_ - pages_pinned_; }
  int64_t evictions() const { return evictions_; }  // pages, in all

 private:
  using Block = std::vector<TokenId>;
  struct LessTokens {
    using is_transparent = void;
    bool operator()(absl::Span<const TokenId> a, absl::Span<const TokenId> b) const { return a < b; }
  };
  struct Node {
    int32_t parent = kNone;
    const Block* block = nullptr;  // the key under which the parent has it
    PageLease page;                // the cache's; a root has none
    PageLease pinned_page;         // for use, while there are pins
    std::map<Block, int32_t, LessTokens> children;
    absl::Time used;  // never before that of a child
    int pins = 0;     // never fewer than those of a child
    KvCoarseness coarseness = 0;
  };
  static constexpr int32_t kNone = -1;

  int32_t FindRoot(KvPolicyId policy) const;
  int32_t Child(int32_t node, absl::Span<const TokenId> block) const;
  int32_t AddChild(int32_t parent, absl::Span<const TokenId> block, PageIndex page);
  int32_t NewNode();
  void AddPin(int32_t node, absl::Time now);
  void DropPins(int32_t node);
  void EvictOldest();
  // Enters `node` into the order of eviction where it may go, or takes it out before that changes.
  void Enlist(int32_t node);
  void Delist(int32_t node);
  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

  KvPool* const pool_;
  const int pages_max_;
  const size_t page_tokens_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_nodes_;
  std::map<KvPolicyId, int32_t> roots_;
  std::set<std::pair<absl::Time, int32_t>> leaves_;  // that no pin covers
  int pages_ = 0;
  int pages_pinned_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace sluice
