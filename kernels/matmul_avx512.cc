// Products on AVX-512 with VNNI: sixteen rows a register. Codes are unsigned and activations signed bytes, as vpdpbusd
// takes them: four columns of sixteen rows at once into 32-bit sums, which never saturate.
#include "kernels/matmul_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512VNNI__)

#include <immintrin.h>

namespace sluice {

namespace {

constexpr int kRows = 16;

using Int = __m512i;
using Float = __m512;

inline Int Load(const uint8_t* p) { return _mm512_loadu_si512(p); }

inline Int BroadcastQ(const RoundedBlock& x, int group) {
  return _mm512_castps_si512(_mm512_set1_ps(*reinterpret_cast<const float*>(x.q + 4 * group)));
}

inline Float Halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline Float UnsignedBytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

inline Float SignedBytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

template <int kHalves>
struct Block {
  Int codes[8];
  Float scale[kHalves];
  Float min[kHalves];
};

inline void UnpackNibbles(const uint8_t* p, Int* codes) {
  const Int low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Int both = Load(p + 64 * j);
    codes[j] = _mm512_and_si512(both, low);
    codes[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
}

// acc += scale * dot + min * sum of one half-block (of the whole block where kHalves is 1), for kTiles x kCount pairs
// of tile and token.
template <int kHalf, int kHalves, int kTiles, int kCount, typename Unpacked>
inline void AddHalf(const Unpacked* const* w, const RoundedBlock* const* x, float RoundedBlock::*sum, Float* acc) {
  constexpr int kGroups = 8 / kHalves;
  constexpr int kFirst = kHalf * kGroups;
  Int dots[kTiles * kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kTiles * kCount; ++i) dots[i] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int g = kFirst; g < kFirst + kGroups; ++g) {
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) {
      const Int q = BroadcastQ(*x[t], g);
#pragma GCC unroll 4
      for (int i = 0; i < kTiles; ++i) {
        dots[i * kCount + t] = _mm512_dpbusd_epi32(dots[i * kCount + t], w[i]->codes[g], q);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    const Float x_scale = _mm512_set1_ps(x[t]->scale);
    const Float x_sum = _mm512_set1_ps(x[t]->*sum);
#pragma GCC unroll 4
    for (int i = 0; i < kTiles; ++i) {
      Float& a = acc[i * kCount + t];
      a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i * kCount + t]), _mm512_mul_ps(w[i]->scale[kHalf], x_scale), a);
      a = _mm512_fmadd_ps(w[i]->min[kHalf], x_sum, a);
    }
  }
}

// A format: how block b of a tile unpacks, and acc[i][t] += w[i] . x[t] over that block for kTiles tiles, kCount
// tokens.
struct OneScale {
  using Unpacked = Block<1>;
  template <int kTiles, int kCount>
  static inline void AddBlock(const Unpacked* const* w, const RoundedBlock* const* x, Float* acc) {
    AddHalf<0, 1, kTiles, kCount>(w, x, &RoundedBlock::sum, acc);
  }
};

struct Q8_0Format : OneScale {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* p = tile + b * 34 * kRows;
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) out.codes[g] = Load(p + 64 * g);
    out.scale[0] = Halves(p + 32 * kRows);
    out.min[0] = _mm512_mul_ps(out.scale[0], _mm512_set1_ps(-128));
  }
};

struct Q4_0Format : OneScale {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* p = tile + b * 18 * kRows;
    UnpackNibbles(p, out.codes);
    out.scale[0] = Halves(p + 16 * kRows);
    out.min[0] = _mm512_mul_ps(out.scale[0], _mm512_set1_ps(-8));
  }
};

struct Q4_1Format : OneScale {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* p = tile + b * 20 * kRows;
    UnpackNibbles(p, out.codes);
    out.scale[0] = Halves(p + 16 * kRows);
    out.min[0] = Halves(p + 18 * kRows);
  }
};

// Q4_K and Q5_K: the two-level scales of block b, whose last two bytes a row are at `p`.
inline void UnpackScales(const uint8_t* super, const uint8_t* p, Float& scale, Float& min) {
  scale = _mm512_mul_ps(Halves(super), UnsignedBytes(p));
  min = _mm512_mul_ps(Halves(super + 2 * kRows), UnsignedBytes(p + kRows));
  min = _mm512_xor_ps(min, _mm512_set1_ps(-0.0f));
}

struct Q4_KFormat : OneScale {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* super = tile + b / 8 * (4 + 8 * 18) * kRows;
    const uint8_t* p = super + (4 + b % 8 * 18) * kRows;
    UnpackNibbles(p, out.codes);
    UnpackScales(super, p + 16 * kRows, out.scale[0], out.min[0]);
  }
};

struct Q5_KFormat : OneScale {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* super = tile + b / 8 * (4 + 8 * 22) * kRows;
    const uint8_t* p = super + (4 + b % 8 * 22) * kRows;
    UnpackNibbles(p, out.codes);
    const Int high = Load(p + 16 * kRows);
    const Int fifth = _mm512_set1_epi8(16);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      // Bit g of each byte moves to bit 4; what crosses into the neighbour byte is masked away.
      const Int moved = g < 4 ? _mm512_slli_epi16(high, 4 - g) : _mm512_srli_epi16(high, g - 4);
      out.codes[g] = _mm512_or_si512(out.codes[g], _mm512_and_si512(moved, fifth));
    }
    UnpackScales(super, p + 20 * kRows, out.scale[0], out.min[0]);
  }
};

struct Q6_KFormat {
  using Unpacked = Block<2>;
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* super = tile + b / 8 * (2 + 8 * 26) * kRows;
    const uint8_t* p = super + (2 + b % 8 * 26) * kRows;
    UnpackNibbles(p, out.codes);
    const Int both = _mm512_set1_epi8(48);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const Int high = Load(p + (16 + g / 4 * 4) * kRows);
      const int bit = 2 * (g % 4);
      const Int moved = bit < 4 ? _mm512_slli_epi16(high, 4 - bit) : _mm512_srli_epi16(high, bit - 4);
      out.codes[g] = _mm512_or_si512(out.codes[g], _mm512_and_si512(moved, both));
    }
    const Float d = Halves(super);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      out.scale[half] = _mm512_mul_ps(d, SignedBytes(p + (24 + half) * kRows));
      out.min[half] = _mm512_mul_ps(out.scale[half], _mm512_set1_ps(-32));
    }
  }
  template <int kTiles, int kCount>
  static inline void AddBlock(const Unpacked* const* w, const RoundedBlock* const* x, Float* acc) {
    AddHalf<0, 2, kTiles, kCount>(w, x, &RoundedBlock::sum_low, acc);
    AddHalf<1, 2, kTiles, kCount>(w, x, &RoundedBlock::sum_high, acc);
  }
};

inline void Store(const ProductArgs& a, int64_t tile, int64_t token, Float acc) {
  const int64_t row = tile * kRows;
  const int64_t left = a.rows - row;
  const __mmask16 rows = left >= kRows ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << left) - 1);
  float* y = a.y + token * a.y_stride + row;
  if (a.accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(rows, y), acc);
  _mm512_mask_storeu_ps(y, rows, acc);
}

// Few tokens: every block is unpacked in registers and used at once; the speed is that of reading the weights.
template <typename Format, int kCount>
void Streamed(const ProductArgs& a, const ProductRange& range) {
  const int64_t blocks = a.cols / 32;
  for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
    const uint8_t* weights = a.tiles + static_cast<size_t>(tile) * a.tile_bytes;
    Float acc[kCount];
    const RoundedBlock* x[kCount];
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) {
      acc[t] = _mm512_setzero_ps();
      x[t] = a.rounded + (range.token_begin + t) * a.blocks;
    }
    for (int64_t b = 0; b < blocks; ++b) {
      typename Format::Unpacked block;
      Format::Unpack(weights, b, block);
      const auto* w = &block;
      Format::template AddBlock<1, kCount>(&w, x, acc);
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) ++x[t];
    }
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) Store(a, tile, range.token_begin + t, acc[t]);
  }
}

// Tiles and tokens whose sums are held at once when there are many tokens: 32 registers hold 12 pairs' dots and sums.
constexpr int kTiles = 2;
constexpr int kTokens = 6;
// A run of columns whose unpacked codes (10 KiB a tile) stay in the first-level cache.
constexpr int64_t kRunBlocks = 16;
constexpr int64_t kPartTokens = 128;  // whose sums are kept from run to run

template <typename Format>
struct Run {
  typename Format::Unpacked blocks[kRunBlocks];
};

// acc[i][t] += run[i] . x[t]; acc is [tiles][kPartTokens].
template <typename Format, int kRunTiles, int kCount>
inline void AddRun(const Run<Format>* run, int64_t blocks, const RoundedBlock* first, int64_t x_stride, Float* acc) {
  Float sums[kRunTiles * kCount];
  const RoundedBlock* x[kCount];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    x[t] = first + t * x_stride;
#pragma GCC unroll 4
    for (int i = 0; i < kRunTiles; ++i) sums[i * kCount + t] = acc[i * kPartTokens + t];
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const typename Format::Unpacked* w[kRunTiles];
#pragma GCC unroll 4
    for (int i = 0; i < kRunTiles; ++i) w[i] = &run[i].blocks[b];
    Format::template AddBlock<kRunTiles, kCount>(w, x, sums);
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) ++x[t];
  }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
#pragma GCC unroll 4
    for (int i = 0; i < kRunTiles; ++i) acc[i * kPartTokens + t] = sums[i * kCount + t];
  }
}

// Many tokens (at most kPartTokens): the weights of a run are unpacked once for all.
template <typename Format, int kCount>
void BlockedTiles(const ProductArgs& a, int64_t tile, int64_t token_begin, int64_t tokens) {
  const int64_t blocks = a.cols / 32;
  Run<Format> run[kCount];
  Float acc[kCount * kPartTokens];
  for (int64_t t = 0; t < kCount * kPartTokens; ++t) acc[t] = _mm512_setzero_ps();
  for (int64_t begin = 0; begin < blocks; begin += kRunBlocks) {
    const int64_t count = blocks - begin < kRunBlocks ? blocks - begin : kRunBlocks;
    for (int64_t i = 0; i < kCount; ++i) {
      const uint8_t* weights = a.tiles + static_cast<size_t>(tile + i) * a.tile_bytes;
      for (int64_t b = 0; b < count; ++b) Format::Unpack(weights, begin + b, run[i].blocks[b]);
    }
    const RoundedBlock* x = a.rounded + token_begin * a.blocks + begin;
    int64_t t = 0;
    for (; t + kTokens <= tokens; t += kTokens) {
      AddRun<Format, kCount, kTokens>(run, count, x + t * a.blocks, a.blocks, acc + t);
    }
    for (; t + 2 <= tokens; t += 2) AddRun<Format, kCount, 2>(run, count, x + t * a.blocks, a.blocks, acc + t);
    if (t < tokens) AddRun<Format, kCount, 1>(run, count, x + t * a.blocks, a.blocks, acc + t);
  }
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t t = 0; t < tokens; ++t) Store(a, tile + i, token_begin + t, acc[i * kPartTokens + t]);
  }
}

template <typename Format>
void Blocked(const ProductArgs& a, const ProductRange& range) {
  const int64_t tokens = range.token_end - range.token_begin;
  int64_t tile = range.tile_begin;
  for (; tile + kTiles <= range.tile_end; tile += kTiles) {
    BlockedTiles<Format, kTiles>(a, tile, range.token_begin, tokens);
  }
  for (; tile < range.tile_end; ++tile) BlockedTiles<Format, 1>(a, tile, range.token_begin, tokens);
}

template <typename Format>
void Quantised(const ProductArgs& a, const ProductRange& range) {
  switch (range.token_end - range.token_begin) {
    case 1:
      return Streamed<Format, 1>(a, range);
    case 2:
      return Streamed<Format, 2>(a, range);
    case 3:
      return Streamed<Format, 3>(a, range);
    case 4:
      return Streamed<Format, 4>(a, range);
    default:
      break;
  }
  for (int64_t begin = range.token_begin; begin < range.token_end; begin += kPartTokens) {
    const int64_t end = range.token_end - begin < kPartTokens ? range.token_end : begin + kPartTokens;
    Blocked<Format>(a, {range.tile_begin, range.tile_end, begin, end});
  }
}

struct F32Weights {
  static constexpr int kColumns = 1;  // in one register
  static constexpr int kBytes = 4;
  static inline void Load(const uint8_t* p, Float* w) { w[0] = _mm512_loadu_ps(p); }
};

struct F16Weights {
  static constexpr int kColumns = 1;
  static constexpr int kBytes = 2;
  static inline void Load(const uint8_t* p, Float* w) { w[0] = Halves(p); }
};

struct Bf16Weights {
  static constexpr int kColumns = 2;
  static constexpr int kBytes = 2;
  static inline void Load(const uint8_t* p, Float* w) {
    const Int both = sluice::Load(p);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
};

// Sums of kCountTiles x kCount registers over all columns; each is one chain of FMAs in the order of the columns.
template <typename Weights, int kCountTiles, int kCount>
inline void FloatTiles(const ProductArgs& a, int64_t tile, int64_t token) {
  Float acc[kCountTiles][kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCountTiles; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) acc[i][t] = _mm512_setzero_ps();
  }
  const uint8_t* weights = a.tiles + static_cast<size_t>(tile) * a.tile_bytes;
  const float* x = a.x + token * a.x_stride;
  const auto add = [&](int64_t c, int columns) __attribute__((always_inline)) {
    Float w[kCountTiles][Weights::kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kCountTiles; ++i) {
      Weights::Load(weights + static_cast<size_t>(i) * a.tile_bytes + c * kRows * Weights::kBytes, w[i]);
    }
#pragma GCC unroll 2
    for (int k = 0; k < columns; ++k) {
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t) {
        const Float activation = _mm512_set1_ps(x[t * a.x_stride + c + k]);
#pragma GCC unroll 4
        for (int i = 0; i < kCountTiles; ++i) acc[i][t] = _mm512_fmadd_ps(w[i][k], activation, acc[i][t]);
      }
    }
  };
  int64_t c = 0;
  for (; c + Weights::kColumns <= a.cols; c += Weights::kColumns) add(c, Weights::kColumns);
  if (c < a.cols) add(c, 1);
#pragma GCC unroll 4
  for (int i = 0; i < kCountTiles; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) Store(a, tile + i, token + t, acc[i][t]);
  }
}

template <typename Weights, int kCountTiles>
inline void FloatTokens(const ProductArgs& a, const ProductRange& range, int64_t tile) {
  int64_t t = range.token_begin;
  for (; t + 8 <= range.token_end; t += 8) FloatTiles<Weights, kCountTiles, 8>(a, tile, t);
  for (; t + 2 <= range.token_end; t += 2) FloatTiles<Weights, kCountTiles, 2>(a, tile, t);
  if (t < range.token_end) FloatTiles<Weights, kCountTiles, 1>(a, tile, t);
}

template <typename Weights>
void Floats(const ProductArgs& a, const ProductRange& range) {
  int64_t tile = range.tile_begin;
  if (range.token_end - range.token_begin == 1) {
    for (; tile + 4 <= range.tile_end; tile += 4) FloatTiles<Weights, 4, 1>(a, tile, range.token_begin);
  }
  for (; tile + 2 <= range.tile_end; tile += 2) FloatTokens<Weights, 2>(a, range, tile);
  if (tile < range.tile_end) FloatTokens<Weights, 1>(a, range, tile);
}

// The first `count` of 16 floats, the others zero.
inline Float LoadFirst(const float* x, int64_t count) {
  if (count <= 0) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(count >= 16 ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << count) - 1),
                               x);
}

// What AVX512_BF16 adds is compiled function by function: the rest of this file must run without it.
#define SLUICE_BF16 __attribute__((target("avx512bf16")))

// Sums of kCountTiles x kCount registers over all columns, two columns to an instruction, x rounded to bf16 on the way:
// for 32 columns at a time, which is little work beside their products.
template <int kCountTiles, int kCount>
SLUICE_BF16 void Bf16DotTiles(const ProductArgs& a, int64_t tile, int64_t token) {
  Float acc[kCountTiles][kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCountTiles; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) acc[i][t] = _mm512_setzero_ps();
  }
  const uint8_t* weights = a.tiles + static_cast<size_t>(tile) * a.tile_bytes;
  const float* x = a.x + token * a.x_stride;
  for (int64_t c = 0; c < a.cols; c += 32) {
    alignas(64) int32_t pairs[kCount][16];
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) {
      const float* row = x + t * a.x_stride + c;
      const __m512bh rounded = _mm512_cvtne2ps_pbh(LoadFirst(row + 16, a.cols - c - 16), LoadFirst(row, a.cols - c));
      _mm512_store_si512(pairs[t], reinterpret_cast<const Int&>(rounded));
    }
    const int64_t left = a.cols - c;
    const int64_t count = left >= 32 ? 16 : (left + 1) / 2;
    for (int64_t p = 0; p < count; ++p) {
      Int w[kCountTiles];
#pragma GCC unroll 4
      for (int i = 0; i < kCountTiles; ++i) {
        w[i] = Load(weights + static_cast<size_t>(i) * a.tile_bytes + (c / 2 + p) * kRows * 4);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t) {
        const Int pair = _mm512_set1_epi32(pairs[t][p]);
#pragma GCC unroll 4
        for (int i = 0; i < kCountTiles; ++i) {
          acc[i][t] = _mm512_dpbf16_ps(acc[i][t], reinterpret_cast<const __m512bh&>(w[i]),
                                       reinterpret_cast<const __m512bh&>(pair));
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kCountTiles; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) Store(a, tile + i, token + t, acc[i][t]);
  }
}

template <int kCountTiles>
void Bf16DotTokens(const ProductArgs& a, const ProductRange& range, int64_t tile) {
  int64_t t = range.token_begin;
  for (; t + 8 <= range.token_end; t += 8) Bf16DotTiles<kCountTiles, 8>(a, tile, t);
  for (; t + 2 <= range.token_end; t += 2) Bf16DotTiles<kCountTiles, 2>(a, tile, t);
  if (t < range.token_end) Bf16DotTiles<kCountTiles, 1>(a, tile, t);
}

void Bf16Dots(const ProductArgs& a, const ProductRange& range) {
  int64_t tile = range.tile_begin;
  if (range.token_end - range.token_begin == 1) {
    for (; tile + 4 <= range.tile_end; tile += 4) Bf16DotTiles<4, 1>(a, tile, range.token_begin);
  }
  for (; tile + 2 <= range.tile_end; tile += 2) Bf16DotTokens<2>(a, range, tile);
  if (tile < range.tile_end) Bf16DotTokens<1>(a, range, tile);
}

inline void RoundBlock(Float first, Float second, RoundedBlock& out) {
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
  const Float inverse = _mm512_set1_ps(largest > 1e-30f ? 127.0f / largest : 0.0f);
  out.scale = largest > 1e-30f ? largest / 127.0f : 0.0f;
  const Int q0 = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
  const Int q1 = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
  const int low = _mm512_reduce_add_epi32(q0);
  const int high = _mm512_reduce_add_epi32(q1);
  out.sum = out.scale * static_cast<float>(low + high);
  out.sum_low = out.scale * static_cast<float>(low);
  out.sum_high = out.scale * static_cast<float>(high);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q), _mm512_cvtsepi32_epi8(q0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + 16), _mm512_cvtsepi32_epi8(q1));
}

void RoundRow(const float* x, int64_t cols, RoundedBlock* out) {
  for (int64_t c = 0; c < cols; c += 32) {
    RoundBlock(LoadFirst(x + c, cols - c), LoadFirst(x + c + 16, cols - c - 16), out[c / 32]);
  }
}

}  // namespace

const MatmulKernels kMatmulAvx512 = {
    kRows,
    RoundRow,
    Floats<F32Weights>,
    Floats<F16Weights>,
    Floats<Bf16Weights>,
    Quantised<Q8_0Format>,
    Quantised<Q4_0Format>,
    Quantised<Q4_1Format>,
    Quantised<Q4_KFormat>,
    Quantised<Q5_KFormat>,
    Quantised<Q6_KFormat>,
    Bf16Dots,
};

}  // namespace sluice

#else

namespace sluice {
const MatmulKernels kMatmulAvx512 = {};
}  // namespace sluice

#endif
