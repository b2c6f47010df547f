#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/dtype.h"
#include "kernels/codec/codecs.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/rows.h"
#include "kernels/portable_kernels.h"

namespace sluice {

namespace {

constexpr int kHalf = kInt4Group / 2;
constexpr uint16_t kOneF16 = 0x3C00;
constexpr uint16_t kPoisonedScale = 0x7E00;
constexpr int kPoisonedCodes = 0x88;
constexpr float kLargestExtreme = 65504.0f * 8;  // more than this, and the group's scale is cut

int Nibble(float x) { return static_cast<int>(std::clamp(std::nearbyint(x), -8.0f, 7.0f)) + 8; }

}  // namespace

void ToInt4Portable(const float* x, int groups, uint8_t* codes, uint16_t* scales) {
  const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  for (int g = 0; g < groups; ++g, x += kInt4Group, codes += kHalf) {
    const float extreme = *std::max_element(x, x + kInt4Group, smaller);  // the first of equals
    scales[g] = F32ToF16(extreme / -8.0f);
    // Then all of the group is below 2^-22 and rounds to zero.
    if ((scales[g] & 0x7FFFu) == 0) scales[g] = kOneF16;
    const float factor = 1.0f / F16ToF32(scales[g]);
    for (int i = 0; i < kHalf; ++i)
      codes[i] = static_cast<uint8_t>(Nibble(x[i] * factor) | Nibble(x[i + kHalf] * factor) << 4);
  }
}

void FromInt4Portable(const uint8_t* codes, int groups, const uint16_t* scales, float* x) {
  for (int g = 0; g < groups; ++g, x += kInt4Group, codes += kHalf) {
    const float scale = F16ToF32(scales[g]);
    for (int i = 0; i < kHalf; ++i) {
      x[i] = static_cast<float>((codes[i] & 15) - 8) * scale;
      x[i + kHalf] = static_cast<float>((codes[i] >> 4) - 8) * scale;
    }
  }
}

namespace {

size_t CodeBytes(const KvRowShape& shape) { return static_cast<size_t>(shape.channels / 2); }
size_t ScaleBytes(const KvRowShape& shape) {
  return static_cast<size_t>(shape.channels / kInt4Group) * sizeof(uint16_t);
}

// Groups whose scale is cut.
int64_t CountSaturated(const CodecKernels& kernels, const float* rotated, int groups) {
  int64_t count = 0;
  for (int g = 0; g < groups; ++g) {
    const uint32_t max = kernels.max_magnitude(rotated + g * kInt4Group, kInt4Group);
    count += max > std::bit_cast<uint32_t>(kLargestExtreme) ? 1 : 0;
  }
  return count;
}

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte* scales) {
  const CodecKernels& kernels = ActiveKernels().codec;
  KvCodecCounts counts;
  const int n = shape.channels;
  const int groups = n / kInt4Group;
  const int block = HadamardBlock(n);
  alignas(64) float rotated[kScaledChannelsMax];
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += CodeBytes(shape), scales += ScaleBytes(shape)) {
    auto* row_scales = reinterpret_cast<uint16_t*>(scales);
    kernels.rotate(x, n, block, rotated);
    const uint32_t max = kernels.max_magnitude(rotated, n);
    if (max > kRefusedAboveBits) {
      ++counts.nonfinite_rows;
      std::fill(row_scales, row_scales + groups, kPoisonedScale);
      std::memset(codes, kPoisonedCodes, CodeBytes(shape));
      continue;
    }
    if (max > std::bit_cast<uint32_t>(kLargestExtreme)) counts.saturated += CountSaturated(kernels, rotated, groups);
    kernels.to_int4(rotated, groups, reinterpret_cast<uint8_t*>(codes), row_scales);
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte* scales, int64_t rows, float* x,
            int64_t stride) {
  const CodecKernels& kernels = ActiveKernels().codec;
  const int n = shape.channels;
  const int block = HadamardBlock(n);
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += CodeBytes(shape), scales += ScaleBytes(shape)) {
    kernels.from_int4(reinterpret_cast<const uint8_t*>(codes), n / kInt4Group,
                      reinterpret_cast<const uint16_t*>(scales), x);
    kernels.rotate(x, n, block, x);
  }
}

int64_t CountNonfinite(const KvRowShape& shape, const std::byte*, const std::byte* scales, int64_t rows) {
  const int groups = shape.channels / kInt4Group;
  const auto* row_scales = reinterpret_cast<const uint16_t*>(scales);
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row, row_scales += groups)
    count += ActiveKernels().codec.max_magnitude_16(row_scales, groups) >= 0x7C00 ? 1 : 0;
  return count;
}

}  // namespace

const KvCodecInfo kInt4Codec = {
    .codec = KvCodec::kInt4,
    .name = "int4",
    .wire_code = 6,
    .rotated = true,
    .check = [](const KvRowShape& shape) { return CheckScaledRow("int4", shape, kInt4Group); },
    .code_bytes = CodeBytes,
    .scale_bytes = ScaleBytes,
    .encode = Encode,
    .decode = Decode,
    .count_nonfinite = CountNonfinite,
};

}  // namespace sluice
