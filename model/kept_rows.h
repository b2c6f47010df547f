// Brings the KV that a prompt keeps together at the front of its pages.
#pragma once

#include "absl/types/span.h"
#include "model/kept_slots.h"
#include "model/kv_pool.h"
#include "model/prompt_scores.h"

namespace sluice {

// Copies the rows of each token that `kept` keeps of a layer from its position in `from` to its slot in `to`; the two
// may be the same pages, which then are of this sequence alone. REQUIRES: KeepPrompt of the layer, and no step since.
void CopyKeptRows(KvPool& pool, int layer, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to,
                  const KeptSlots& kept);
// A prompt of `tokens` tokens was computed densely in `from`: `kept` keeps what its policy keeps, packed in `to`.
// `scores` may be null where the policy does not rank.
void PrunePrompt(KvPool& pool, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to, int64_t tokens,
                 PromptScores* scores, KeptSlots& kept);

}  // namespace sluice
