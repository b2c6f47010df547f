#include "prefill/pruning.h"

#include <utility>

#include "model/kept_prompt.h"
#include "model/kept_rows.h"

namespace sluice::prefill {

int Pruning::PagesFor(const CachePolicy& policy, const KvPool& pool, int64_t prompt_tokens) {
  const int64_t kept = policy.Kept(prompt_tokens);
  return kept < prompt_tokens ? pool.PagesFor(kept) : 0;
}

Pruning::Pruning(const CachePolicy& policy, KvPool* pool, int64_t prompt_tokens, PageLease pages)
    : pool_(pool),
      prompt_tokens_(prompt_tokens),
      scores_(policy.ranks() ? std::make_unique<PromptScores>(policy, pool->options().layout, prompt_tokens) : nullptr),
      kept_(policy, pool->options().layout, policy.Kept(prompt_tokens)),
      pages_(std::move(pages)) {}

void Pruning::KeepLayer(int layer, absl::Span<const PageIndex> from) {
  kept_.KeepPrompt(layer, prompt_tokens_, scores_ != nullptr ? scores_->layer(layer) : nullptr,
                   scores_ != nullptr ? scores_->stride() : 0);
  if (prunes()) CopyKeptRows(*pool_, layer, from, pages_.pages(), kept_);
}

proto::KeptPrompt Pruning::Finish() {
  kept_.FinishPrompt(prompt_tokens_);
  return ToProto(kept_, pool_->options().layout);
}

}  // namespace sluice::prefill
