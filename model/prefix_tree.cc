#include "model/prefix_tree.h"

#include <algorithm>

#include "common/status.h"

namespace sluice {

PrefixTree::PrefixTree(KvPool* pool, int pages_max)
    : pool_(pool), pages_max_(pages_max), page_tokens_(static_cast<size_t>(pool->options().page_tokens)) {
  SLUICE_CHECK(pages_max >= 0, "pages_max ", pages_max);
}

PrefixTree::~PrefixTree() { SLUICE_CHECK(pages_pinned_ == 0, "a pin outlives its tree: ", pages_pinned_, " pages"); }

PrefixTree::Pin& PrefixTree::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    Release();
    tree_ = std::exchange(other.tree_, nullptr);
    node_ = other.node_;
  }
  return *this;
}

void PrefixTree::Pin::Release() {
  if (tree_ != nullptr) std::exchange(tree_, nullptr)->DropPins(node_);
}

PrefixTree::Hit PrefixTree::Match(absl::Time now, KvPolicyId policy, absl::Span<const TokenId> tokens,
                                  KvCoarseness coarseness_max) {
  std::vector<PageIndex> pages;
  KvCoarseness coarseness = 0;
  int32_t last = kNone;
  for (int32_t node = FindRoot(policy); node != kNone && tokens.size() >= page_tokens_;) {
    node = Child(node, tokens.first(page_tokens_));
    if (node == kNone || at(node).coarseness > coarseness_max) break;
    coarseness = std::max(coarseness, at(node).coarseness);
    AddPin(node, now);
    pages.push_back(at(node).page.pages()[0]);
    tokens.remove_prefix(page_tokens_);
    last = node;
  }
  return {.tokens = static_cast<int64_t>(pages.size() * page_tokens_),
          .pages = pool_->Share(pages, LeaseFor::kUse),
          .pin = last == kNone ? Pin() : Pin(this, last),
          .coarseness = coarseness};
}

int PrefixTree::PinnedPages(KvPolicyId policy, absl::Span<const TokenId> tokens) const {
  int pages = 0;
  for (int32_t node = FindRoot(policy); node != kNone && tokens.size() >= page_tokens_; ++pages) {
    node = Child(node, tokens.first(page_tokens_));
    if (node == kNone || at(node).pins == 0) break;
    tokens.remove_prefix(page_tokens_);
  }
  return pages;
}

PrefixTree::Pin PrefixTree::Insert(absl::Time now, KvPolicyId policy, absl::Span<const TokenId> tokens,
                                   absl::Span<const PageIndex> pages, KvCoarseness coarseness) {
  const size_t whole = tokens.size() / page_tokens_;
  SLUICE_CHECK(pages.size() >= whole, "pages ", pages.size(), " of ", whole);
  if (whole == 0 || pages_max_ == 0) return Pin();
  if (!roots_.contains(policy)) roots_.emplace(policy, NewNode());
  int32_t node = roots_.at(policy);
  int32_t last = kNone;
  for (size_t i = 0; i < whole; ++i) {
    const absl::Span<const TokenId> block = tokens.subspan(i * page_tokens_, page_tokens_);
    int32_t child = Child(node, block);
    if (child == kNone) {
      // The path so far is pinned, so what goes is never what this hangs on.
      if (pages_ == pages_max_ && !leaves_.empty()) EvictOldest();
      if (pages_ == pages_max_) break;
      child = AddChild(node, block, pages[i]);
      at(child).coarseness = coarseness;
    } else if (at(child).coarseness > coarseness && at(child).pins == 0) {
      at(child).page = pool_->Share(pages.subspan(i, 1), LeaseFor::kCache);
      at(child).coarseness = coarseness;
    }
    AddPin(child, now);
    last = node = child;
  }
  return last == kNone ? Pin() : Pin(this, last);
}

int PrefixTree::Evict(int pages) {
  int evicted = 0;
  for (; evicted < pages && !leaves_.empty(); ++evicted) EvictOldest();
  return evicted;
}

int PrefixTree::Expire(absl::Time used_last) {
  int expired = 0;
  for (; !leaves_.empty() && leaves_.begin()->first <= used_last; ++expired) EvictOldest();
  return expired;
}

absl::Time PrefixTree::OldestUse() const { return leaves_.empty() ? absl::InfiniteFuture() : leaves_.begin()->first; }

int32_t PrefixTree::FindRoot(KvPolicyId policy) const {
  const auto it = roots_.find(policy);
  return it == roots_.end() ? kNone : it->second;
}

int32_t PrefixTree::Child(int32_t node, absl::Span<const TokenId> block) const {
  const auto it = at(node).children.find(block);
  return it == at(node).children.end() ? kNone : it->second;
}

int32_t PrefixTree::NewNode() {
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  const int32_t node = free_nodes_.back();
  free_nodes_.pop_back();
  return node;
}

int32_t PrefixTree::AddChild(int32_t parent, absl::Span<const TokenId> block, PageIndex page) {
  const int32_t child = NewNode();
  const auto [it, added] = at(parent).children.emplace(Block(block.begin(), block.end()), child);
  at(child).parent = parent;
  at(child).block = &it->first;
  at(child).page = pool_->Share(absl::MakeConstSpan(&page, 1), LeaseFor::kCache);
  ++pages_;
  return child;  // its pin comes next
}

void PrefixTree::AddPin(int32_t node, absl::Time now) {
  Delist(node);
  at(node).used = now;
  if (at(node).pins++ > 0) return;
  ++pages_pinned_;
  at(node).pinned_page = pool_->Share(at(node).page.pages(), LeaseFor::kUse);
}

void PrefixTree::DropPins(int32_t node) {
  for (; at(node).parent != kNone; node = at(node).parent) {
    if (--at(node).pins > 0) continue;
    --pages_pinned_;
    at(node).pinned_page.Release();
    Enlist(node);
  }
}

void PrefixTree::EvictOldest() {
  const int32_t node = leaves_.begin()->second;
  const int32_t parent = at(node).parent;
  leaves_.erase(leaves_.begin());
  const int free_before = pool_->pages_free();
  at(node).page.Release();
  SLUICE_CHECK(pool_->pages_free() == free_before + 1, "a page of the tree is in use without a pin");
  at(parent).children.erase(at(parent).children.find(*at(node).block));
  at(node) = Node();
  free_nodes_.push_back(node);
  Enlist(parent);
  --pages_;
  ++evictions_;
}

void PrefixTree::Enlist(int32_t node) {
  const Node& it = at(node);
  if (it.parent != kNone && it.pins == 0 && it.children.empty()) leaves_.emplace(it.used, node);
}

void PrefixTree::Delist(int32_t node) { leaves_.erase({at(node).used, node}); }

}  // namespace sluice
