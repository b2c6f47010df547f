// Which workers have served which prompts lately, so that a prompt can go where its beginning is cached. Guesses:
// workers evict without saying so, and a wrong guess costs only time. Prompts are kept as hashes of their pages, each
// over the page and all before it, in a bounded number; what was not met for longest is forgotten. Lives on the loop's
// thread; pure.
//
// Rejected: asking workers what they have. It is known only when their answers are there, and a request waits for them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "gateway/router.h"
#include "gateway/workers.h"

namespace sluice {

// Hashes of the whole pages of `tokens`, each with all before it. Chains of different page sizes have nothing in
// common.
using PageHashes = std::vector<uint64_t>;
PageHashes HashPages(absl::Span<const TokenId> tokens, int page_tokens);

// A prompt's hashes in the page sizes that were asked for.
class PromptHashes {
 public:
  // `tokens` outlive this.
  explicit PromptHashes(absl::Span<const TokenId> tokens) : tokens_(tokens) {}
  absl::Span<const TokenId> tokens() const { return tokens_; }
  const PageHashes& Of(int page_tokens);

 private:
  const absl::Span<const TokenId> tokens_;
  std::map<int, PageHashes> by_page_tokens_;
};

class PrefixRecords {
 public:
  explicit PrefixRecords(size_t pages_max) : pages_max_(pages_max) {}

  // `worker` has the KV of these pages now.
  void Add(WorkerRef worker, const PageHashes& pages);
  // It has none any more: it has restarted.
  void Forget(WorkerRef worker);
  // How many of the first pages it has, as far as is known.
  int64_t KnownPages(WorkerRef worker, const PageHashes& pages) const;
  // Sets cached_tokens of every worker for this prompt, whose last token is never cached.
  void Fill(PromptHashes& prompt, FleetSnapshot* fleet) const;

  size_t size() const { return by_hash_.size(); }

 private:
  struct Record {
    std::list<uint64_t>::iterator use;
    std::vector<WorkerRef> workers;
  };

  const size_t pages_max_;
  std::unordered_map<uint64_t, Record> by_hash_;
  std::list<uint64_t> by_use_;  // the latest first
};

}  // namespace sluice
