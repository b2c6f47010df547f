#include <bit>
#include <cstring>

#include "kernels/codec/codecs.h"

namespace sluice {

namespace {

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte*) {
  KvCodecCounts counts;
  const auto width = static_cast<size_t>(shape.width());
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = x + row * stride;
    unsigned bad = 0;
    for (size_t i = 0; i < width; ++i) bad |= (std::bit_cast<uint32_t>(in[i]) & 0x7F800000u) == 0x7F800000u;
    counts.nonfinite_rows += bad;
    std::memcpy(codes + static_cast<size_t>(row) * width * sizeof(float), in, width * sizeof(float));
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows, float* x, int64_t stride) {
  const size_t bytes = static_cast<size_t>(shape.width()) * sizeof(float);
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(x + row * stride, codes + static_cast<size_t>(row) * bytes, bytes);
}

}  // namespace

const KvCodecInfo kF32Codec = {
    .codec = KvCodec::kF32,
    .name = "f32",
    .wire_code = 1,
    .rotated = false,
    .check = [](const KvRowShape&) { return absl::OkStatus(); },
    .code_bytes = [](const KvRowShape& shape) { return static_cast<size_t>(shape.width()) * sizeof(float); },
    .scale_bytes = [](const KvRowShape&) { return size_t{0}; },
    .encode = Encode,
    .decode = Decode,
};

}  // namespace sluice
