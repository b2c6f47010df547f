#include "model/kept_rows.h"

#include <cstring>

namespace sluice {

void CopyKeptRows(KvPool& pool, int layer, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to,
                  const KeptSlots& kept) {
  const KvPoolOptions& o = pool.options();
  const KvCodecInfo& codec = Info(o.codec);
  const size_t code_bytes = codec.code_bytes(o.layout.row());
  const size_t scale_bytes = codec.scale_bytes(o.layout.row());
  const auto page_tokens = static_cast<size_t>(o.page_tokens);
  const auto rows = static_cast<size_t>(o.layout.rows_per_token());
  const size_t list_rows = rows / static_cast<size_t>(kept.lists());
  for (int list = 0; list < kept.lists(); ++list) {
    const std::vector<int32_t> positions = kept.Positions(layer, list);
    const auto row = [&](size_t token) { return token % page_tokens * rows + static_cast<size_t>(list) * list_rows; };
    // Ascending, so a slot is never behind the position that it takes from: nothing is read after it was overwritten.
    for (size_t slot = 0; slot < positions.size(); ++slot) {
      const auto position = static_cast<size_t>(positions[slot]);
      if (position == slot && from.data() == to.data()) continue;
      for (int tensor = 0; tensor < o.layout.tensors(); ++tensor) {
        const KvPlane source = pool.Plane(from[position / page_tokens], layer, tensor);
        const KvPlane target = pool.Plane(to[slot / page_tokens], layer, tensor);
        std::memcpy(target.codes + row(slot) * code_bytes, source.codes + row(position) * code_bytes,
                    list_rows * code_bytes);
        if (scale_bytes == 0) continue;
        std::memcpy(target.scales + row(slot) * scale_bytes, source.scales + row(position) * scale_bytes,
                    list_rows * scale_bytes);
      }
    }
  }
}

void PrunePrompt(KvPool& pool, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to, int64_t tokens,
                 PromptScores* scores, KeptSlots& kept) {
  for (int layer = 0; layer < pool.options().layout.layers; ++layer) {
    kept.KeepPrompt(layer, tokens, scores != nullptr ? scores->layer(layer) : nullptr,
                    scores != nullptr ? scores->stride() : 0);
    CopyKeptRows(pool, layer, from, to, kept);
  }
  kept.FinishPrompt(tokens);
}

}  // namespace sluice
