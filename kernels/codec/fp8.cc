#include <cstring>

#include "common/dtype.h"
#include "kernels/codec/codecs.h"
#include "kernels/codec/rows.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void ToFp8Portable(const float* x, int n, float factor, uint8_t* codes) {
  for (int i = 0; i < n; ++i) codes[i] = F32ToE4m3(x[i] * factor);
}

void FromFp8Portable(const uint8_t* codes, int n, float scale, float* x) {
  for (int i = 0; i < n; ++i) x[i] = E4m3ToF32(codes[i]) * scale;
}

namespace {

constexpr float kTop = 448.0f;
constexpr int kPoisonedCode = 0x7F;

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte* scales) {
  const CodecKernels& kernels = ActiveKernels().codec;
  KvCodecCounts counts;
  const int n = shape.channels;
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += n, scales += sizeof(float)) {
    const uint32_t max = kernels.max_magnitude(x, n);
    uint32_t scale_bits = std::bit_cast<uint32_t>(1.0f);
    if (max > kRefusedAboveBits) {
      ++counts.nonfinite_rows;
      scale_bits = kPoisonedScaleBits;
      std::memset(codes, kPoisonedCode, static_cast<size_t>(n));
    } else if (max < kZeroBelowBits) {
      std::memset(codes, 0, static_cast<size_t>(n));
    } else {
      const RowScale s = ScaleTo(kTop, max);
      scale_bits = std::bit_cast<uint32_t>(s.scale);
      kernels.to_fp8(x, n, s.factor, reinterpret_cast<uint8_t*>(codes));
    }
    std::memcpy(scales, &scale_bits, sizeof(scale_bits));
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte* scales, int64_t rows, float* x,
            int64_t stride) {
  const CodecKernels& kernels = ActiveKernels().codec;
  const int n = shape.channels;
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += n, scales += sizeof(float)) {
    float scale;
    std::memcpy(&scale, scales, sizeof(scale));
    kernels.from_fp8(reinterpret_cast<const uint8_t*>(codes), n, scale, x);
  }
}

int64_t CountNonfinite(const KvRowShape&, const std::byte*, const std::byte* scales, int64_t rows) {
  return CountPoisonedScales(scales, rows, sizeof(float));
}

}  // namespace

const KvCodecInfo kFp8Codec = {
    .codec = KvCodec::kFp8,
    .name = "fp8",
    .wire_code = 4,
    .rotated = false,
    .check = [](const KvRowShape& shape) { return CheckScaledRow("fp8", shape, 16); },
    .code_bytes = [](const KvRowShape& shape) { return static_cast<size_t>(shape.channels); },
    .scale_bytes = [](const KvRowShape&) { return sizeof(float); },
    .encode = Encode,
    .decode = Decode,
    .count_nonfinite = CountNonfinite,
};

}  // namespace sluice
