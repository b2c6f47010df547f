// A prompt under a cache policy, from its first chunk to its last layer: what its tokens' attention was, which of them
// decode wants, and copies of their KV, packed, in pages of their own. From there they are sent as any prompt's tokens
// are. Owned by the engine thread.
#pragma once

#include <memory>
#include <optional>

#include "common/proto/cache_policy.pb.h"
#include "model/kept_slots.h"
#include "model/kv_pool.h"
#include "model/prompt_scores.h"

namespace sluice::prefill {

class Pruning {
 public:
  // Pages that a prompt needs beside its own: none where the policy keeps all of it.
  static int PagesFor(const CachePolicy& policy, const KvPool& pool, int64_t prompt_tokens);
  // Memory that a prompt takes beside its pages, at most: until Finish, and from there until it has been handed over,
  // when what decode is told of its tokens is a message and the bytes that it becomes.
  static int64_t BytesToCompute(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens);
  static int64_t BytesToHandOver(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens);
  // BytesToCompute of any prompt of up to so many tokens under whatever policy.
  static int64_t BytesMax(const KvLayout& layout, int64_t prompt_tokens);

  // `pages` are as many as PagesFor says. REQUIRES: the policy is not full.
  Pruning(const CachePolicy& policy, KvPool* pool, int64_t prompt_tokens, PageLease pages);

  PromptScores* scores() { return scores_.get(); }  // for the batch; null where the policy does not rank
  bool prunes() const { return kept_tokens_ < prompt_tokens_; }
  int64_t kept_tokens() const { return kept_tokens_; }
  absl::Span<const PageIndex> pages() const { return pages_.pages(); }  // with what is kept, where it prunes

  // The prompt's attention in `layer` is done: chooses, and copies what stays out of `from`, the prompt's pages.
  void KeepLayer(int layer, absl::Span<const PageIndex> from);
  // After all layers. For the handoff record; of this only the pages are left.
  proto::KeptPrompt Finish();

 private:
  KvPool* pool_;
  int64_t prompt_tokens_;
  int64_t kept_tokens_;
  std::unique_ptr<PromptScores> scores_;
  std::optional<KeptSlots> kept_;  // until Finish
  PageLease pages_;
};

}  // namespace sluice::prefill
