#include <cstring>

#include "kernels/codec/codecs.h"
#include "kernels/codec/rows.h"
#include "kernels/simd_kernels.h"

namespace sluice {

namespace {

size_t CodeBytes(const KvRowShape& shape) { return static_cast<size_t>(shape.width()) * sizeof(float); }

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte*) {
  const CodecKernels& kernels = ActiveKernels().codec;
  KvCodecCounts counts;
  const size_t bytes = CodeBytes(shape);
  for (int64_t row = 0; row < rows; ++row, codes += bytes) {
    const float* in = x + row * stride;
    counts.nonfinite_rows += kernels.max_magnitude(in, shape.width()) >= kInfinityBits ? 1 : 0;
    std::memcpy(codes, in, bytes);
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows, float* x, int64_t stride) {
  const size_t bytes = CodeBytes(shape);
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(x + row * stride, codes + static_cast<size_t>(row) * bytes, bytes);
}

int64_t CountNonfinite(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows) {
  const CodecKernels& kernels = ActiveKernels().codec;
  const auto* in = reinterpret_cast<const float*>(codes);
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row, in += shape.width())
    count += kernels.max_magnitude(in, shape.width()) >= kInfinityBits ? 1 : 0;
  return count;
}

}  // namespace

const KvCodecInfo kF32Codec = {
    .codec = KvCodec::kF32,
    .name = "f32",
    .wire_code = 1,
    .rotated = false,
    .check = CheckFloatRow,
    .code_bytes = CodeBytes,
    .scale_bytes = [](const KvRowShape&) { return size_t{0}; },
    .encode = Encode,
    .decode = Decode,
    .count_nonfinite = CountNonfinite,
};

}  // namespace sluice
