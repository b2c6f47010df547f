#include "gateway/prefix_records.h"

#include <algorithm>

#include "common/rng.h"

namespace sluice {

PageHashes HashPages(absl::Span<const TokenId> tokens, int page_tokens) {
  PageHashes hashes;
  if (page_tokens <= 0) return hashes;
  uint64_t hash = RandomBits(static_cast<uint64_t>(page_tokens), 0);
  const size_t whole = tokens.size() / static_cast<size_t>(page_tokens) * static_cast<size_t>(page_tokens);
  for (size_t i = 0; i < whole; ++i) {
    hash = RandomBits(hash, static_cast<uint64_t>(tokens[i]));
    if ((i + 1) % static_cast<size_t>(page_tokens) == 0) hashes.push_back(hash);
  }
  return hashes;
}

const PageHashes& PromptHashes::Of(int page_tokens) {
  const auto it = by_page_tokens_.find(page_tokens);
  if (it != by_page_tokens_.end()) return it->second;
  return by_page_tokens_.emplace(page_tokens, HashPages(tokens_, page_tokens)).first->second;
}

void PrefixRecords::Add(WorkerRef worker, const PageHashes& pages) {
  // From the last page to the first: a prompt's beginning is the latest used of it, and so is forgotten last.
  for (auto hash = pages.rbegin(); hash != pages.rend(); ++hash) {
    const auto [it, added] = by_hash_.try_emplace(*hash);
    if (added) {
      it->second.use = by_use_.insert(by_use_.begin(), *hash);
    } else {
      by_use_.splice(by_use_.begin(), by_use_, it->second.use);
    }
    std::vector<WorkerRef>& workers = it->second.workers;
    if (std::find(workers.begin(), workers.end(), worker) == workers.end()) workers.push_back(worker);
  }
  while (by_hash_.size() > pages_max_) {
    by_hash_.erase(by_use_.back());
    by_use_.pop_back();
  }
}

void PrefixRecords::Forget(WorkerRef worker) {
  for (auto it = by_hash_.begin(); it != by_hash_.end();) {
    std::erase(it->second.workers, worker);
    if (it->second.workers.empty()) {
      by_use_.erase(it->second.use);
      it = by_hash_.erase(it);
    } else {
      ++it;
    }
  }
}

int64_t PrefixRecords::KnownPages(WorkerRef worker, const PageHashes& pages) const {
  int64_t known = 0;
  for (const uint64_t hash : pages) {
    const auto it = by_hash_.find(hash);
    if (it == by_hash_.end()) break;
    const std::vector<WorkerRef>& workers = it->second.workers;
    if (std::find(workers.begin(), workers.end(), worker) == workers.end()) break;
    ++known;
  }
  return known;
}

void PrefixRecords::Fill(PromptHashes& prompt, FleetSnapshot* fleet) const {
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
    std::vector<WorkerSnapshot>& workers = role == WorkerRole::kPrefill ? fleet->prefill : fleet->decode;
    for (size_t i = 0; i < workers.size(); ++i) {
      const int64_t page_tokens = workers[i].page_tokens;
      if (page_tokens <= 0) continue;
      const int64_t pages_max = (static_cast<int64_t>(prompt.tokens().size()) - 1) / page_tokens;
      const int64_t known = KnownPages({role, static_cast<int>(i)}, prompt.Of(workers[i].page_tokens));
      workers[i].cached_tokens = std::min(known, pages_max) * page_tokens;
    }
  }
}

}  // namespace sluice
