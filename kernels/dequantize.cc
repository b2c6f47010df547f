#include "kernels/dequantize.h"

#include <array>
#include <cstring>

namespace sluice {

namespace {

float LoadF16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return F16ToF32(bits);
}

void DequantizeQ8_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}

void DequantizeQ4_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

void DequantizeQ4_1(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  const float m = LoadF16(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

void DequantizeQ4_K(const uint8_t* b, float* out) {
  for (int block = 0; block < 8; ++block) {
    const KScale scale = KScaleOf(b + 4, block);
    const float d = LoadF16(b) * static_cast<float>(scale.scale);
    const float m = LoadF16(b + 2) * static_cast<float>(scale.min);
    const uint8_t* q = b + 16 + block / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      out[block * 32 + i] = d * static_cast<float>(block % 2 ? q[i] >> 4 : q[i] & 15) - m;
    }
  }
}

void DequantizeQ5_K(const uint8_t* b, float* out) {
  for (int block = 0; block < 8; ++block) {
    const KScale scale = KScaleOf(b + 4, block);
    const float d = LoadF16(b) * static_cast<float>(scale.scale);
    const float m = LoadF16(b + 2) * static_cast<float>(scale.min);
    for (int i = 0; i < 32; ++i) out[block * 32 + i] = d * static_cast<float>(Q5_KCode(b, block * 32 + i)) - m;
  }
}

void DequantizeQ6_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b + 208);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    out[i] = scale * static_cast<float>(Q6_KCode(b, i) - 32);
  }
}

}  // namespace

KScale KScaleOf(const uint8_t* scales, int block) {
  if (block < 4) return {static_cast<uint8_t>(scales[block] & 63), static_cast<uint8_t>(scales[block + 4] & 63)};
  const int low = scales[block + 4];
  return {static_cast<uint8_t>((low & 15) | (scales[block - 4] >> 6 << 4)),
          static_cast<uint8_t>((low >> 4) | (scales[block] >> 6 << 4))};
}

uint8_t Q5_KCode(const uint8_t* b, int i) {
  const uint8_t low = b[48 + i / 64 * 32 + i % 32];
  const int high = (b[16 + i % 32] >> (i / 32)) & 1;
  return static_cast<uint8_t>((i / 32 % 2 ? low >> 4 : low & 15) | (high << 4));
}

uint8_t Q6_KCode(const uint8_t* b, int i) {
  const int half = i / 128;
  const int quarter = i % 128 / 32;
  const uint8_t low = b[half * 64 + quarter % 2 * 32 + i % 32];
  const int high = (b[128 + half * 32 + i % 32] >> (2 * quarter)) & 3;
  return static_cast<uint8_t>((quarter >= 2 ? low >> 4 : low & 15) | (high << 4));
}

void DequantizeRow(DType type, const void* row, int64_t elements, float* out) {
  const uint8_t* bytes = static_cast<const uint8_t*>(row);
  switch (type) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(elements) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < elements; ++i) out[i] = LoadF16(bytes + 2 * i);
      return;
    case DType::kBf16:
      for (int64_t i = 0; i < elements; ++i) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * i, sizeof bits);
        out[i] = Bf16ToF32(bits);
      }
      return;
    default:
      break;
  }
  using BlockFunction = void (*)(const uint8_t*, float*);
  static constexpr BlockFunction kBlocks[] = {DequantizeQ8_0, DequantizeQ4_0, DequantizeQ4_1,
                                              DequantizeQ4_K, DequantizeQ5_K, DequantizeQ6_K};
  const BlockFunction block = kBlocks[static_cast<int>(type) - static_cast<int>(DType::kQ8_0)];
  const DTypeTraits& traits = Traits(type);
  for (int64_t i = 0; i < elements; i += traits.block_elements, bytes += traits.block_bytes) block(bytes, out + i);
}

void DequantizeRow(const ConstMatrixView& matrix, int64_t row, float* out) {
  if (matrix.type != DType::kF8E4M3) {
    DequantizeRow(matrix.type, matrix.row(row), matrix.cols, out);
    return;
  }
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table;
    for (size_t code = 0; code < table.size(); ++code) table[code] = E4m3ToF32(static_cast<uint8_t>(code));
    return table;
  }();
  const int64_t blocks = (matrix.cols + kF8BlockSize - 1) / kF8BlockSize;
  const float* scales = matrix.block_scales + row / kF8BlockSize * blocks;
  const auto* codes = static_cast<const uint8_t*>(matrix.row(row));
  for (int64_t i = 0; i < matrix.cols; ++i) out[i] = values[codes[i]] * scales[i / kF8BlockSize];
}

}  // namespace sluice
