#include <algorithm>
#include <bit>

#include "common/dtype.h"
#include "kernels/codec/codecs.h"
#include "kernels/codec/rows.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void ToF16Portable(const float* x, int64_t n, uint16_t* out) { std::transform(x, x + n, out, F32ToF16); }
void FromF16Portable(const uint16_t* in, int64_t n, float* x) { std::transform(in, in + n, x, F16ToF32); }

namespace {

constexpr uint32_t kLargestBits = 0x477FE000u;  // 65504
constexpr uint16_t kInfinity = 0x7C00;

size_t CodeBytes(const KvRowShape& shape) { return static_cast<size_t>(shape.width()) * sizeof(uint16_t); }

int64_t CountSaturated(const float* x, int n) {
  return std::count_if(x, x + n, [](float value) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
    return magnitude > kLargestBits && magnitude < kInfinityBits;
  });
}

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte*) {
  const CodecKernels& kernels = ActiveKernels().codec;
  KvCodecCounts counts;
  const int width = shape.width();
  auto* out = reinterpret_cast<uint16_t*>(codes);
  for (int64_t row = 0; row < rows; ++row, x += stride, out += width) {
    const uint32_t max = kernels.max_magnitude(x, width);
    if (max >= kInfinityBits) ++counts.nonfinite_rows;
    if (max > kLargestBits) counts.saturated += CountSaturated(x, width);
    kernels.to_f16(x, width, out);
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows, float* x, int64_t stride) {
  const CodecKernels& kernels = ActiveKernels().codec;
  const auto* in = reinterpret_cast<const uint16_t*>(codes);
  for (int64_t row = 0; row < rows; ++row, in += shape.width()) kernels.from_f16(in, shape.width(), x + row * stride);
}

int64_t CountNonfinite(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows) {
  const CodecKernels& kernels = ActiveKernels().codec;
  const auto* in = reinterpret_cast<const uint16_t*>(codes);
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row, in += shape.width())
    count += kernels.max_magnitude_16(in, shape.width()) >= kInfinity ? 1 : 0;
  return count;
}

}  // namespace

const KvCodecInfo kF16Codec = {
    .codec = KvCodec::kF16,
    .name = "f16",
    .wire_code = 3,
    .rotated = false,
    .check = CheckFloatRow,
    .code_bytes = CodeBytes,
    .scale_bytes = [](const KvRowShape&) { return size_t{0}; },
    .encode = Encode,
    .decode = Decode,
    .count_nonfinite = CountNonfinite,
};

}  // namespace sluice
