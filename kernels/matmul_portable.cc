// The plain form of every product: what the tiles of matmul_formats.h mean, and in which order floats are added.
#include <cmath>
#include <cstring>

#include "common/dtype.h"
#include "kernels/matmul_kernels.h"

namespace sluice {

namespace {

constexpr int kRows = 8;

// 32 columns of a tile in the form that all quantised types share: w = scale * code + min, with a scale and min for
// each 16 columns (equal ones but for Q6_K).
struct UnpackedBlock {
  uint8_t codes[kRows][32];
  float scale[2][kRows];
  float min[2][kRows];
};

float HalfAt(const uint8_t* p, int index) {
  uint16_t bits;
  std::memcpy(&bits, p + 2 * index, sizeof bits);
  return F16ToF32(bits);
}

void UnpackNibbles(const uint8_t* p, UnpackedBlock& out) {
  for (int c = 0; c < 16; ++c) {
    for (int r = 0; r < kRows; ++r) {
      const uint8_t both = p[(c / 4 * kRows + r) * 4 + c % 4];
      out.codes[r][c] = both & 15;
      out.codes[r][c + 16] = both >> 4;
    }
  }
}

void SetScale(UnpackedBlock& out, int r, float scale, float min) {
  out.scale[0][r] = out.scale[1][r] = scale;
  out.min[0][r] = out.min[1][r] = min;
}

// A format is where block b of a tile lies and how it unpacks.
struct Q8_0Format {
  static void Unpack(const uint8_t* tile, int64_t b, UnpackedBlock& out) {
    const uint8_t* p = tile + b * 34 * kRows;
    for (int c = 0; c < 32; ++c) {
      for (int r = 0; r < kRows; ++r) out.codes[r][c] = p[(c / 4 * kRows + r) * 4 + c % 4];
    }
    for (int r = 0; r < kRows; ++r) {
      const float scale = HalfAt(p + 32 * kRows, r);
      SetScale(out, r, scale, -128 * scale);
    }
  }
};

struct Q4_0Format {
  static void Unpack(const uint8_t* tile, int64_t b, UnpackedBlock& out) {
    const uint8_t* p = tile + b * 18 * kRows;
    UnpackNibbles(p, out);
    for (int r = 0; r < kRows; ++r) {
      const float scale = HalfAt(p + 16 * kRows, r);
      SetScale(out, r, scale, -8 * scale);
    }
  }
};

struct Q4_1Format {
  static void Unpack(const uint8_t* tile, int64_t b, UnpackedBlock& out) {
    const uint8_t* p = tile + b * 20 * kRows;
    UnpackNibbles(p, out);
    for (int r = 0; r < kRows; ++r) SetScale(out, r, HalfAt(p + 16 * kRows, r), HalfAt(p + 18 * kRows, r));
  }
};

// Q4_K and Q5_K: `kBlock` bytes a row in each block of 32, the last two of which are scale and min.
template <int kBlock>
struct ScaledMinFormat {
  static void Unpack(const uint8_t* tile, int64_t b, UnpackedBlock& out) {
    const uint8_t* super = tile + b / 8 * (4 + 8 * kBlock) * kRows;
    const uint8_t* p = super + (4 + b % 8 * kBlock) * kRows;
    UnpackNibbles(p, out);
    if (kBlock == 22) {
      for (int c = 0; c < 32; ++c) {
        for (int r = 0; r < kRows; ++r) {
          const int high = (p[16 * kRows + r * 4 + c % 4] >> (c / 4)) & 1;
          out.codes[r][c] = static_cast<uint8_t>(out.codes[r][c] | (high << 4));
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const float scale = static_cast<float>(p[(kBlock - 2) * kRows + r]);
      const float min = static_cast<float>(p[(kBlock - 1) * kRows + r]);
      SetScale(out, r, HalfAt(super, r) * scale, -(HalfAt(super + 2 * kRows, r) * min));
    }
  }
};

struct Q6_KFormat {
  static void Unpack(const uint8_t* tile, int64_t b, UnpackedBlock& out) {
    const uint8_t* super = tile + b / 8 * (2 + 8 * 26) * kRows;
    const uint8_t* p = super + (2 + b % 8 * 26) * kRows;
    UnpackNibbles(p, out);
    for (int c = 0; c < 32; ++c) {
      for (int r = 0; r < kRows; ++r) {
        const int high = (p[(16 + c / 16 * 4) * kRows + r * 4 + c % 4] >> (2 * (c / 4 % 4))) & 3;
        out.codes[r][c] = static_cast<uint8_t>(out.codes[r][c] | (high << 4));
      }
    }
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < kRows; ++r) {
        out.scale[half][r] = HalfAt(super, r) * static_cast<float>(static_cast<int8_t>(p[(24 + half) * kRows + r]));
        out.min[half][r] = -32 * out.scale[half][r];
      }
    }
  }
};

// acc[r] += w[r] . x over one block. Types with one scale a block (kHalves 1) convert one sum of 32 products.
template <int kHalves>
void AddBlock(const UnpackedBlock& w, const RoundedBlock& x, float* acc) {
  constexpr int kColumns = 32 / kHalves;
  for (int half = 0; half < kHalves; ++half) {
    const float sum = kHalves == 1 ? x.sum : half == 0 ? x.sum_low : x.sum_high;
    for (int r = 0; r < kRows; ++r) {
      int32_t dot = 0;
      for (int c = half * kColumns; c < (half + 1) * kColumns; ++c) dot += w.codes[r][c] * x.q[c];
      acc[r] += static_cast<float>(dot) * (w.scale[half][r] * x.scale);
      acc[r] += w.min[half][r] * sum;
    }
  }
}

void Store(const ProductArgs& a, int64_t tile, int64_t token, const float* acc) {
  const int64_t row = tile * kRows;
  float* y = a.y + token * a.y_stride + row;
  for (int64_t r = 0; r < kRows && row + r < a.rows; ++r) y[r] = a.accumulate ? y[r] + acc[r] : acc[r];
}

// Blocks of so many tokens are summed side by side, to unpack less often.
constexpr int64_t kTokens = 16;

template <typename Format, int kHalves>
void Quantised(const ProductArgs& a, const ProductRange& range) {
  for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
    const uint8_t* weights = a.tiles + static_cast<size_t>(tile) * a.tile_bytes;
    for (int64_t first = range.token_begin; first < range.token_end; first += kTokens) {
      const int64_t tokens = range.token_end - first < kTokens ? range.token_end - first : kTokens;
      float acc[kTokens][kRows] = {};
      for (int64_t b = 0; b < a.cols / 32; ++b) {
        UnpackedBlock block;
        Format::Unpack(weights, b, block);
        for (int64_t t = 0; t < tokens; ++t) AddBlock<kHalves>(block, a.rounded[(first + t) * a.blocks + b], acc[t]);
      }
      for (int64_t t = 0; t < tokens; ++t) Store(a, tile, first + t, acc[t]);
    }
  }
}

float F32At(const uint8_t* tile, int64_t c, int r) {
  float value;
  std::memcpy(&value, tile + (c * kRows + r) * 4, sizeof value);
  return value;
}

float F16At(const uint8_t* tile, int64_t c, int r) { return HalfAt(tile + c * kRows * 2, r); }

float Bf16At(const uint8_t* tile, int64_t c, int r) {
  uint16_t bits;
  std::memcpy(&bits, tile + ((c / 2 * kRows + r) * 2 + c % 2) * 2, sizeof bits);
  return Bf16ToF32(bits);
}

template <float (*kAt)(const uint8_t*, int64_t, int)>
void Float(const ProductArgs& a, const ProductRange& range) {
  for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
    const uint8_t* weights = a.tiles + static_cast<size_t>(tile) * a.tile_bytes;
    for (int64_t t = range.token_begin; t < range.token_end; ++t) {
      const float* x = a.x + t * a.x_stride;
      float acc[kRows] = {};
      for (int64_t c = 0; c < a.cols; ++c) {
        for (int r = 0; r < kRows; ++r) acc[r] += kAt(weights, c, r) * x[c];
      }
      Store(a, tile, t, acc);
    }
  }
}

void RoundBlock(const float* x, int64_t columns, RoundedBlock& out) {
  float largest = 0;
  for (int64_t c = 0; c < columns; ++c) largest = std::fmax(largest, std::fabs(x[c]));
  // Smaller blocks are zero: the reciprocal of their scale would overflow.
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  out.scale = largest > 1e-30f ? largest / 127.0f : 0.0f;
  int32_t sums[2] = {0, 0};
  for (int64_t c = 0; c < 32; ++c) {
    out.q[c] = c < columns ? static_cast<int8_t>(std::nearbyintf(x[c] * inverse)) : int8_t{0};
    sums[c / 16] += out.q[c];
  }
  out.sum = out.scale * static_cast<float>(sums[0] + sums[1]);
  out.sum_low = out.scale * static_cast<float>(sums[0]);
  out.sum_high = out.scale * static_cast<float>(sums[1]);
}

void RoundRow(const float* x, int64_t cols, RoundedBlock* out) {
  for (int64_t c = 0; c < cols; c += 32) RoundBlock(x + c, cols - c < 32 ? cols - c : 32, out[c / 32]);
}

}  // namespace

const MatmulKernels kMatmulPortable = {
    kRows,
    RoundRow,
    Float<F32At>,
    Float<F16At>,
    Float<Bf16At>,
    Quantised<Q8_0Format, 1>,
    Quantised<Q4_0Format, 1>,
    Quantised<Q4_1Format, 1>,
    Quantised<ScaledMinFormat<18>, 1>,
    Quantised<ScaledMinFormat<22>, 1>,
    Quantised<Q6_KFormat, 2>,
    nullptr,
};

}  // namespace sluice
