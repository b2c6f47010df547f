// Brings the KV that a prompt keeps together at the front of its pages.
#pragma once

#include "absl/types/span.h"
#include "model/kept_slots.h"
#include "model/kv_pool.h"

namespace sluice {

// Copies the rows of each token that `kept` keeps of a layer from its position in `from` to its slot in `to`; the two
// may be the same pages, which then are of this sequence alone. REQUIRES: KeepPrompt of the layer, and no step since.
void CopyKeptRows(KvPool& pool, int layer, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to,
                  const KeptSlots& kept);
// Of all layers.
void CopyKeptRows(KvPool& pool, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to,
                  const KeptSlots& kept);

}  // namespace sluice
