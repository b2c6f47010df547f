#include "prefill/pruning.h"

#include <algorithm>
#include <utility>

#include "model/kept_prompt.h"
#include "model/kept_rows.h"

namespace sluice::prefill {

int Pruning::PagesFor(const CachePolicy& policy, const KvPool& pool, int64_t prompt_tokens) {
  const int64_t kept = policy.Kept(prompt_tokens);
  return kept < prompt_tokens ? pool.PagesFor(kept) : 0;
}

int64_t Pruning::BytesToCompute(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens) {
  if (policy.kind == CachePolicyKind::kFull) return 0;
  const size_t lists = KeptSlots::Bytes(policy, layout, policy.Kept(prompt_tokens));
  const size_t scores = policy.ranks() ? PromptScores::Bytes(policy, layout, prompt_tokens) : 0;
  return std::max(static_cast<int64_t>(lists + scores), BytesToHandOver(policy, layout, prompt_tokens));
}

int64_t Pruning::BytesToHandOver(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens) {
  return static_cast<int64_t>(KeptPromptMemoryBytes(policy, layout, prompt_tokens));
}

// h2o has a list for each kv head, and all that it knows of a token at each step.
int64_t Pruning::BytesMax(const KvLayout& layout, int64_t prompt_tokens) {
  return BytesToCompute({.kind = CachePolicyKind::kH2o, .budget = prompt_tokens}, layout, prompt_tokens);
}

Pruning::Pruning(const CachePolicy& policy, KvPool* pool, int64_t prompt_tokens, PageLease pages)
    : pool_(pool),
      prompt_tokens_(prompt_tokens),
      kept_tokens_(policy.Kept(prompt_tokens)),
      scores_(policy.ranks() ? std::make_unique<PromptScores>(policy, pool->options().layout, prompt_tokens) : nullptr),
      kept_(std::in_place, policy, pool->options().layout, kept_tokens_),
      pages_(std::move(pages)) {}

void Pruning::KeepLayer(int layer, absl::Span<const PageIndex> from) {
  kept_->KeepPrompt(layer, prompt_tokens_, scores_ != nullptr ? scores_->layer(layer) : nullptr,
                    scores_ != nullptr ? scores_->stride() : 0);
  if (prunes()) CopyKeptRows(*pool_, layer, from, pages_.pages(), *kept_);
}

proto::KeptPrompt Pruning::Finish() {
  scores_.reset();
  kept_->FinishPrompt(prompt_tokens_);
  proto::KeptPrompt message = ToProto(*kept_, pool_->options().layout);
  kept_.reset();
  return message;
}

}  // namespace sluice::prefill
