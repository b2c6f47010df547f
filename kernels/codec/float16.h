// What bf16 and f16 have in common: each element is rounded on its own, and there are no scales. A Format says what
// differs:
//   kLargestBits   the largest finite value, as bits of an f32
//   kInfinity      the code of infinity
//   kEncode, kDecode   members of CodecKernels that convert a run of elements
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/codec/codec.h"
#include "kernels/codec/rows.h"
#include "kernels/simd_kernels.h"

namespace sluice {

template <typename Format>
struct Float16Codec {
  static size_t CodeBytes(const KvRowShape& shape) { return static_cast<size_t>(shape.width()) * sizeof(uint16_t); }
  static size_t ScaleBytes(const KvRowShape&) { return 0; }

  static int64_t CountSaturated(const float* x, int n) {
    return std::count_if(x, x + n, [](float value) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
      return magnitude > Format::kLargestBits && magnitude < kInfinityBits;
    });
  }

  static KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                              std::byte*) {
    const CodecKernels& kernels = ActiveKernels().codec;
    KvCodecCounts counts;
    const int width = shape.width();
    auto* out = reinterpret_cast<uint16_t*>(codes);
    for (int64_t row = 0; row < rows; ++row, x += stride, out += width) {
      const uint32_t max = kernels.max_magnitude(x, width);
      if (max >= kInfinityBits) ++counts.nonfinite_rows;
      if (max > Format::kLargestBits) counts.saturated += CountSaturated(x, width);
      (kernels.*Format::kEncode)(x, width, out);
    }
    return counts;
  }

  static void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows, float* x,
                     int64_t stride) {
    const CodecKernels& kernels = ActiveKernels().codec;
    const auto* in = reinterpret_cast<const uint16_t*>(codes);
    for (int64_t row = 0; row < rows; ++row, in += shape.width())
      (kernels.*Format::kDecode)(in, shape.width(), x + row * stride);
  }

  static int64_t CountNonfinite(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows) {
    const CodecKernels& kernels = ActiveKernels().codec;
    const auto* in = reinterpret_cast<const uint16_t*>(codes);
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row, in += shape.width())
      count += kernels.max_magnitude_16(in, shape.width()) >= Format::kInfinity ? 1 : 0;
    return count;
  }

  static constexpr KvCodecInfo Info(KvCodec codec, std::string_view name, uint8_t wire_code) {
    return {.codec = codec,
            .name = name,
            .wire_code = wire_code,
            .rotated = false,
            .check = CheckFloatRow,
            .code_bytes = CodeBytes,
            .scale_bytes = ScaleBytes,
            .encode = Encode,
            .decode = Decode,
            .count_nonfinite = CountNonfinite};
  }
};

}  // namespace sluice
