#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codec/codecs.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/rows.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void ToInt8Portable(const float* x, int n, float factor, int8_t* codes) {
  for (int i = 0; i < n; ++i)
    codes[i] = static_cast<int8_t>(std::clamp(std::nearbyint(x[i] * factor), -127.0f, 127.0f));
}

void FromInt8Portable(const int8_t* codes, int n, float scale, float* x) {
  for (int i = 0; i < n; ++i) x[i] = static_cast<float>(codes[i]) * scale;
}

namespace {

constexpr float kTop = 127.0f;

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte* scales) {
  const CodecKernels& kernels = ActiveKernels().codec;
  KvCodecCounts counts;
  const int n = shape.channels;
  const int block = HadamardBlock(n);
  alignas(64) float rotated[kScaledChannelsMax];
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += n, scales += sizeof(float)) {
    kernels.rotate(x, n, block, rotated);
    const uint32_t max = kernels.max_magnitude(rotated, n);
    uint32_t scale_bits = std::bit_cast<uint32_t>(1.0f);
    if (max > kRefusedAboveBits) {
      ++counts.nonfinite_rows;
      scale_bits = kPoisonedScaleBits;
      std::memset(codes, 0, static_cast<size_t>(n));
    } else if (max < kZeroBelowBits) {
      std::memset(codes, 0, static_cast<size_t>(n));
    } else {
      const RowScale s = ScaleTo(kTop, max);
      scale_bits = std::bit_cast<uint32_t>(s.scale);
      kernels.to_int8(rotated, n, s.factor, reinterpret_cast<int8_t*>(codes));
    }
    std::memcpy(scales, &scale_bits, sizeof(scale_bits));
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte* scales, int64_t rows, float* x,
            int64_t stride) {
  const CodecKernels& kernels = ActiveKernels().codec;
  const int n = shape.channels;
  const int block = HadamardBlock(n);
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += n, scales += sizeof(float)) {
    float scale;
    std::memcpy(&scale, scales, sizeof(scale));
    kernels.from_int8(reinterpret_cast<const int8_t*>(codes), n, scale, x);
    kernels.rotate(x, n, block, x);
  }
}

int64_t CountNonfinite(const KvRowShape&, const std::byte*, const std::byte* scales, int64_t rows) {
  return CountPoisonedScales(scales, rows, sizeof(float));
}

}  // namespace

const KvCodecInfo kInt8Codec = {
    .codec = KvCodec::kInt8,
    .name = "int8",
    .wire_code = 5,
    .rotated = true,
    .check = [](const KvRowShape& shape) { return CheckScaledRow("int8", shape, 16); },
    .code_bytes = [](const KvRowShape& shape) { return static_cast<size_t>(shape.channels); },
    .scale_bytes = [](const KvRowShape&) { return sizeof(float); },
    .encode = Encode,
    .decode = Decode,
    .count_nonfinite = CountNonfinite,
};

}  // namespace sluice
