#include "kernels/codec/rows.h"

#include <cstring>

namespace sluice {

Status CheckFloatRow(const KvRowShape& shape) {
  if (shape.channels > 0 && shape.rope >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("KV rows of ", shape.channels, " + ", shape.rope, " channels"));
}

Status CheckScaledRow(std::string_view codec, const KvRowShape& shape, int multiple) {
  if (shape.rope == 0 && shape.channels > 0 && shape.channels <= kScaledChannelsMax && shape.channels % multiple == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("KV codec ", std::string(codec), " takes rows of a multiple of ",
                                                 multiple, " channels, at most ", kScaledChannelsMax,
                                                 ", without a rope part, not ", shape.channels, " + ", shape.rope));
}

int64_t CountPoisonedScales(const std::byte* scales, int64_t rows, size_t stride_bytes) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row, scales += stride_bytes) {
    uint32_t bits;
    std::memcpy(&bits, scales, sizeof(bits));
    count += (bits & 0x7FFFFFFFu) >= kInfinityBits ? 1 : 0;
  }
  return count;
}

}  // namespace sluice
