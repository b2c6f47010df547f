#include "model/kept_rows.h"

#include <cstring>

namespace sluice {

void CopyKeptRows(KvPool& pool, absl::Span<const PageIndex> from, absl::Span<const PageIndex> to,
                  const KeptSlots& kept) {
  const KvPoolOptions& o = pool.options();
  const KvCodecInfo& codec = Info(o.codec);
  const size_t code_bytes = codec.code_bytes(o.layout.row());
  const size_t scale_bytes = codec.scale_bytes(o.layout.row());
  const int rows = o.layout.rows_per_token();
  const int list_rows = rows / kept.lists();
  for (int layer = 0; layer < o.layout.layers; ++layer) {
    for (int list = 0; list < kept.lists(); ++list) {
      const std::vector<int32_t> positions = kept.Positions(layer, list);
      // Ascending, so a slot is never behind the position that it takes from: nothing is read after it was overwritten.
      for (size_t slot = 0; slot < positions.size(); ++slot) {
        const auto position = static_cast<size_t>(positions[slot]);
        const auto page_tokens = static_cast<size_t>(o.page_tokens);
        if (position == slot && from.data() == to.data()) continue;
        for (int tensor = 0; tensor < o.layout.tensors(); ++tensor) {
          const KvPlane source = pool.Plane(from[position / page_tokens], layer, tensor);
          const KvPlane target = pool.Plane(to[slot / page_tokens], layer, tensor);
          const auto row = [&](size_t token) {
            return token % page_tokens * static_cast<size_t>(rows) + static_cast<size_t>(list * list_rows);
          };
          const auto count = static_cast<size_t>(list_rows);
          std::memcpy(target.codes + row(slot) * code_bytes, source.codes + row(position) * code_bytes,
                      count * code_bytes);
          if (scale_bytes == 0) continue;
          std::memcpy(target.scales + row(slot) * scale_bytes, source.scales + row(position) * scale_bytes,
                      count * scale_bytes);
        }
      }
    }
  }
}

}  // namespace sluice
