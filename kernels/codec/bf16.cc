#include <bit>

#include "common/dtype.h"
#include "kernels/codec/codecs.h"
#include "kernels/convert.h"

namespace sluice {

namespace {

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte*) {
  KvCodecCounts counts;
  const int width = shape.width();
  auto* out = reinterpret_cast<uint16_t*>(codes);
  for (int64_t row = 0; row < rows; ++row, out += width) {
    const float* in = x + row * stride;
    unsigned bad = 0;
    for (int i = 0; i < width; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(in[i]) & 0x7FFFFFFFu;
      bad |= magnitude >= 0x7F800000u;
      counts.saturated += magnitude >= 0x7F7F8000u && magnitude < 0x7F800000u;
    }
    counts.nonfinite_rows += bad;
    ConvertRow(in, width, DType::kBf16, out);
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows, float* x, int64_t stride) {
  const int width = shape.width();
  const auto* in = reinterpret_cast<const uint16_t*>(codes);
  for (int64_t row = 0; row < rows; ++row, in += width) {
    for (int i = 0; i < width; ++i) x[row * stride + i] = Bf16ToF32(in[i]);
  }
}

}  // namespace

const KvCodecInfo kBf16Codec = {
    .codec = KvCodec::kBf16,
    .name = "bf16",
    .wire_code = 2,
    .rotated = false,
    .check = [](const KvRowShape&) { return absl::OkStatus(); },
    .code_bytes = [](const KvRowShape& shape) { return static_cast<size_t>(shape.width()) * sizeof(uint16_t); },
    .scale_bytes = [](const KvRowShape&) { return size_t{0}; },
    .encode = Encode,
    .decode = Decode,
};

}  // namespace sluice
