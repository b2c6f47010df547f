// Element and block types of tensors, and exact conversions between f32 and the shorter formats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// Types with `block_elements` > 1 are quantised as GGUF lays them out (ggml's block structs). kF8E4M3 is a matrix of
// codes with a scale for each kF8BlockSize rows and columns, which stand elsewhere.
enum class DType : uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1, kQ4_K, kQ5_K, kQ6_K, kF8E4M3 };
inline constexpr int kDTypeCount = 10;
inline constexpr int kF8BlockSize = 128;

struct DTypeTraits {
  std::string_view name;  // as GGUF spells it: "F32", "Q4_K"
  int block_elements;     // elements of a row that share a block; a row is a whole number of blocks
  int block_bytes;
};

const DTypeTraits& Traits(DType type);

// Bytes of a row of `elements`. REQUIRES: elements is a multiple of the type's block.
inline size_t RowBytes(DType type, size_t elements) {
  const DTypeTraits& t = Traits(type);
  return elements / static_cast<size_t>(t.block_elements) * static_cast<size_t>(t.block_bytes);
}

inline float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// To nearest, ties to even. Finite values beyond the range saturate to the largest finite bf16 (codec rule); infinities
// stay, any NaN becomes 7FC0.
uint16_t F32ToBf16(float value);

float F16ToF32(uint16_t bits);
// To nearest, ties to even, subnormals kept; finite values beyond the range saturate to 7BFF; NaN becomes 7E00.
uint16_t F32ToF16(float value);

// E4M3 ("FN"): bias 7, no infinities, NaN only 7F and FF, largest 448.
float E4m3ToF32(uint8_t code);
// To nearest, ties to even, subnormals kept; everything beyond the range, infinities too, saturates to 448; NaN becomes
// 7F.
uint8_t F32ToE4m3(float value);

}  // namespace sluice
