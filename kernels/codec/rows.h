// Rules about rows that several codecs share (the README of this folder has them in words).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/status.h"
#include "kernels/codec/codec.h"

namespace sluice {

inline constexpr int kScaledChannelsMax = 1024;             // bounds the rows that encoders keep on their stack
inline constexpr uint32_t kInfinityBits = 0x7F800000u;      // magnitudes as bits: NaNs are above
inline constexpr uint32_t kZeroBelowBits = 0x0D800000u;     // 2^-100: rows of less are zero rows
inline constexpr uint32_t kRefusedAboveBits = 0x71800000u;  // 2^100: rows of more, infinite or NaN are poisoned
inline constexpr uint32_t kPoisonedScaleBits = 0x7FC00000u;

// OK where the row has channels at all. For codecs without scales.
Status CheckFloatRow(const KvRowShape& shape);
// OK where the row is a multiple of `multiple` channels, not too many, and has no rope part.
Status CheckScaledRow(std::string_view codec, const KvRowShape& shape, int multiple);

// The scale of a row whose largest magnitude gets the code `top`, and what its elements are multiplied by.
struct RowScale {
  float scale;
  float factor;
};
inline RowScale ScaleTo(float top, uint32_t max_magnitude_bits) {
  const float scale = std::bit_cast<float>(max_magnitude_bits) / top;
  return {scale, 1.0f / scale};
}

// Poisoned rows as their bytes tell them: those whose f32 scale, `stride_bytes` from the one before, is not finite.
int64_t CountPoisonedScales(const std::byte* scales, int64_t rows, size_t stride_bytes);

}  // namespace sluice
