// Random matrices of any tensor type, as a checkpoint would hold them.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "common/buffer.h"
#include "common/dtype.h"
#include "kernels/dequantize.h"

namespace sluice {

struct RandomWeights {
  std::vector<uint8_t> bytes;
  std::vector<float> block_scales;  // kF8E4M3
  ConstMatrixView view;

  // Every code is equally likely; scales are such that values stay below about 1.
  static RandomWeights Make(DType type, int64_t rows, int64_t cols, uint32_t seed) {
    std::mt19937 rng(seed);
    RandomWeights w;
    const size_t row_bytes = RowBytes(type, static_cast<size_t>(cols));
    w.bytes.resize(row_bytes * static_cast<size_t>(rows));
    const DTypeTraits& traits = Traits(type);
    for (size_t at = 0; at < w.bytes.size(); at += static_cast<size_t>(traits.block_bytes)) {
      FillBlock(type, w.bytes.data() + at, rng);
    }
    w.view = {w.bytes.data(), type, rows, cols, row_bytes};
    if (type == DType::kF8E4M3) {
      const auto blocks = [](int64_t n) { return static_cast<size_t>((n + kF8BlockSize - 1) / kF8BlockSize); };
      std::uniform_real_distribution<float> scale(0.5f / 448, 1.0f / 448);
      for (size_t i = 0; i < blocks(rows) * blocks(cols); ++i) w.block_scales.push_back(scale(rng));
      w.view.block_scales = w.block_scales.data();
    }
    return w;
  }

  // Every byte but the f16 scales becomes `value`.
  void FillCodes(uint8_t value) {
    const DTypeTraits& traits = Traits(view.type);
    const int scales = view.type == DType::kQ6_K ? 208 : 0;
    const int scale_bytes = view.type == DType::kQ8_0 || view.type == DType::kQ4_0 || view.type == DType::kQ6_K ? 2 : 4;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const int at = static_cast<int>(i % static_cast<size_t>(traits.block_bytes));
      if (at < scales || at >= scales + scale_bytes) bytes[i] = value;
    }
  }

  std::vector<float> Row(int64_t r) const {
    std::vector<float> out(static_cast<size_t>(view.cols));
    DequantizeRow(view, r, out.data());
    return out;
  }

 private:
  static void PutF16(uint8_t* p, float value) {
    const uint16_t bits = F32ToF16(value);
    p[0] = static_cast<uint8_t>(bits);
    p[1] = static_cast<uint8_t>(bits >> 8);
  }

  static void FillBlock(DType type, uint8_t* p, std::mt19937& rng) {
    std::uniform_real_distribution<float> unit(-1, 1);
    std::uniform_real_distribution<float> positive(0.5f, 1);
    for (int i = 0; i < Traits(type).block_bytes; ++i) p[i] = static_cast<uint8_t>(rng());
    switch (type) {
      case DType::kF32: {
        const uint32_t bits = std::bit_cast<uint32_t>(unit(rng));
        for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(bits >> (8 * i));
        break;
      }
      case DType::kF16:
        PutF16(p, unit(rng));
        break;
      case DType::kBf16: {
        const uint16_t bits = F32ToBf16(unit(rng));
        p[0] = static_cast<uint8_t>(bits);
        p[1] = static_cast<uint8_t>(bits >> 8);
        break;
      }
      case DType::kQ8_0:
        PutF16(p, positive(rng) / 128);
        break;
      case DType::kQ4_0:
        PutF16(p, unit(rng) / 8);
        break;
      case DType::kQ4_1:
        PutF16(p, positive(rng) / 8);
        PutF16(p + 2, -positive(rng));
        break;
      case DType::kQ4_K:
        PutF16(p, positive(rng) / (15 * 63) * 2);
        PutF16(p + 2, positive(rng) / 63);
        break;
      case DType::kQ5_K:
        PutF16(p, positive(rng) / (31 * 63) * 2);
        PutF16(p + 2, positive(rng) / 63);
        break;
      case DType::kQ6_K:
        PutF16(p + 208, positive(rng) / (32 * 128));
        break;
      case DType::kF8E4M3:
        if ((*p & 0x7f) == 0x7f) --*p;  // not a NaN
        break;
    }
  }
};

inline constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,  DType::kBf16, DType::kQ8_0, DType::kQ4_0,
                                      DType::kQ4_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kF8E4M3};

inline std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = normal(rng);
  return out;
}

}  // namespace sluice
