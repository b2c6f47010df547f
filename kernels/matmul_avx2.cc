// Products on AVX2, FMA and F16C: eight rows a register. Codes are unsigned and activations signed bytes, as
// vpmaddubsw takes them: four columns of eight rows at once, against four activations broadcast to all lanes.
//
// Sums of 16 bits hold as many products as the width of the codes allows without saturation (|q| <= 127): 8 groups of
// 4-bit codes (15 * 127 * 2 * 8 = 30,480), 4 of 5-bit codes, 2 of 6-bit codes. 8-bit codes are split into two 4-bit
// halves, whose sums meet in 32 bits.
#include "kernels/matmul_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice {

namespace {

constexpr int kRows = 8;

using Int = __m256i;
using Float = __m256;

inline Int Load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

inline Int BroadcastQ(const RoundedBlock& x, int group) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(x.q + 4 * group)));
}

inline Float Halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

inline Float UnsignedBytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline Float SignedBytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// kSums registers of 16-bit sums for each half of the block; registers of codes are used in order, kPerSum to a sum.
template <int kRegisters, int kHalves>
struct Block {
  Int codes[kRegisters];
  Float scale[kHalves];
  Float min[kHalves];
};

inline void UnpackNibbles(const uint8_t* p, Int* codes) {
  const Int low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Int both = Load(p + 32 * j);
    codes[j] = _mm256_and_si256(both, low);
    codes[j + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
  }
}

inline Int Dot16(Int sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

// The 32-bit dot products of one half-block, for kTiles x kCount pairs of tile and token: registers [kFirst, kFirst +
// kGroups) of codes against as many groups of activations from kFirst on, kPerSum of them to a 16-bit sum.
template <int kFirst, int kGroups, int kPerSum, int kTiles, int kCount, typename Unpacked>
inline void Dots(const Unpacked* const* w, const RoundedBlock* const* x, Int* dots) {
#pragma GCC unroll 4
  for (int part = 0; part < kGroups; part += kPerSum) {
    Int sums[kTiles * kCount];
#pragma GCC unroll 8
    for (int g = 0; g < kPerSum; ++g) {
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) {
        const Int q = BroadcastQ(*x[t], kFirst + part + g);
#pragma GCC unroll 4
        for (int i = 0; i < kTiles; ++i) {
          Int& sum = sums[i * kCount + t];
          const Int product = _mm256_maddubs_epi16(w[i]->codes[kFirst + part + g], q);
          sum = g == 0 ? product : _mm256_add_epi16(sum, product);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTiles * kCount; ++i) {
      dots[i] = part == 0 ? Dot16(sums[i]) : _mm256_add_epi32(dots[i], Dot16(sums[i]));
    }
  }
}

// acc += (scale * dot + min * sum) of one half-block, for each pair of tile and token.
template <int kHalf, int kTiles, int kCount, typename Unpacked>
inline void AddDots(const Unpacked* const* w, const RoundedBlock* const* x, const Int* dots, float RoundedBlock::*sum,
                    Float* acc) {
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t) {
    const Float x_scale = _mm256_set1_ps(x[t]->scale);
    const Float x_sum = _mm256_set1_ps(x[t]->*sum);
#pragma GCC unroll 4
    for (int i = 0; i < kTiles; ++i) {
      Float& a = acc[i * kCount + t];
      a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i * kCount + t]), _mm256_mul_ps(w[i]->scale[kHalf], x_scale), a);
      a = _mm256_fmadd_ps(w[i]->min[kHalf], x_sum, a);
    }
  }
}

// A format: how block b of a tile unpacks, and acc[i][t] += w[i] . x[t] over that block for kTiles tiles, kCount
// tokens.

// One scale and min for 32 columns, codes of at most 32 / kPerSum values.
template <int kPerSum>
struct OneScale {
  // Tiles and tokens whose sums are held at once when there are many tokens: each load of codes serves three tokens and
  // each broadcast two tiles, so that arithmetic and not loading is the limit, and the registers just suffice.
  static constexpr int kTiles = 2;
  static constexpr int kTokens = 3;
  using Unpacked = Block<8, 1>;
  template <int kTiles, int kCount>
  static inline void AddBlock(const Unpacked* const* w, const RoundedBlock* const* x, Float* acc) {
    Int dots[kTiles * kCount];
    Dots<0, 8, kPerSum, kTiles, kCount>(w, x, dots);
    AddDots<0, kTiles, kCount>(w, x, dots, &RoundedBlock::sum, acc);
  }
};

struct Q4_0Format : OneScale<8> {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* p = tile + b * 18 * kRows;
    UnpackNibbles(p, out.codes);
    out.scale[0] = Halves(p + 16 * kRows);
    out.min[0] = _mm256_mul_ps(out.scale[0], _mm256_set1_ps(-8));
  }
};

struct Q4_1Format : OneScale<8> {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* p = tile + b * 20 * kRows;
    UnpackNibbles(p, out.codes);
    out.scale[0] = Halves(p + 16 * kRows);
    out.min[0] = Halves(p + 18 * kRows);
  }
};

// Q4_K and Q5_K: the two-level scales of block b, whose last two bytes a row are at `p`.
inline void UnpackScales(const uint8_t* super, const uint8_t* p, Float& scale, Float& min) {
  scale = _mm256_mul_ps(Halves(super), UnsignedBytes(p));
  min = _mm256_mul_ps(Halves(super + 2 * kRows), UnsignedBytes(p + kRows));
  min = _mm256_xor_ps(min, _mm256_set1_ps(-0.0f));
}

struct Q4_KFormat : OneScale<8> {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* super = tile + b / 8 * (4 + 8 * 18) * kRows;
    const uint8_t* p = super + (4 + b % 8 * 18) * kRows;
    UnpackNibbles(p, out.codes);
    UnpackScales(super, p + 16 * kRows, out.scale[0], out.min[0]);
  }
};

struct Q5_KFormat : OneScale<4> {
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* super = tile + b / 8 * (4 + 8 * 22) * kRows;
    const uint8_t* p = super + (4 + b % 8 * 22) * kRows;
    UnpackNibbles(p, out.codes);
    const Int high = Load(p + 16 * kRows);
    const Int fifth = _mm256_set1_epi8(16);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      // Bit g of each byte moves to bit 4; what crosses into the neighbour byte is masked away.
      const Int moved = g < 4 ? _mm256_slli_epi16(high, 4 - g) : _mm256_srli_epi16(high, g - 4);
      out.codes[g] = _mm256_or_si256(out.codes[g], _mm256_and_si256(moved, fifth));
    }
    UnpackScales(super, p + 20 * kRows, out.scale[0], out.min[0]);
  }
};

struct Q6_KFormat {
  static constexpr int kTiles = 2;
  static constexpr int kTokens = 3;
  using Unpacked = Block<8, 2>;
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* super = tile + b / 8 * (2 + 8 * 26) * kRows;
    const uint8_t* p = super + (2 + b % 8 * 26) * kRows;
    UnpackNibbles(p, out.codes);
    const Int both = _mm256_set1_epi8(48);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const Int high = Load(p + (16 + g / 4 * 4) * kRows);
      const int bit = 2 * (g % 4);
      const Int moved = bit < 4 ? _mm256_slli_epi16(high, 4 - bit) : _mm256_srli_epi16(high, bit - 4);
      out.codes[g] = _mm256_or_si256(out.codes[g], _mm256_and_si256(moved, both));
    }
    const Float d = Halves(super);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      out.scale[half] = _mm256_mul_ps(d, SignedBytes(p + (24 + half) * kRows));
      out.min[half] = _mm256_mul_ps(out.scale[half], _mm256_set1_ps(-32));
    }
  }
  template <int kTiles, int kCount>
  static inline void AddBlock(const Unpacked* const* w, const RoundedBlock* const* x, Float* acc) {
    Int dots[kTiles * kCount];
    Dots<0, 4, 2, kTiles, kCount>(w, x, dots);
    AddDots<0, kTiles, kCount>(w, x, dots, &RoundedBlock::sum_low, acc);
    Dots<4, 4, 2, kTiles, kCount>(w, x, dots);
    AddDots<1, kTiles, kCount>(w, x, dots, &RoundedBlock::sum_high, acc);
  }
};

struct Q8_0Format {
  // Two 16-bit sums for each pair leave room for four pairs.
  static constexpr int kTiles = 1;
  static constexpr int kTokens = 4;
  using Unpacked = Block<16, 1>;  // low halves, then high halves
  static inline void Unpack(const uint8_t* tile, int64_t b, Unpacked& out) {
    const uint8_t* p = tile + b * 34 * kRows;
    const Int low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const Int both = Load(p + 32 * g);
      out.codes[g] = _mm256_and_si256(both, low);
      out.codes[g + 8] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
    out.scale[0] = Halves(p + 32 * kRows);
    out.min[0] = _mm256_mul_ps(out.scale[0], _mm256_set1_ps(-128));
  }
  template <int kTiles, int kCount>
  static inline void AddBlock(const Unpacked* const* w, const RoundedBlock* const* x, Float* acc) {
    Int low[kTiles * kCount], high[kTiles * kCount];
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) {
        const Int q = BroadcastQ(*x[t], g);
#pragma GCC unroll 4
        for (int i = 0; i < kTiles; ++i) {
          const int at = i * kCount + t;
          const Int a = _mm256_maddubs_epi16(w[i]->codes[g], q);
          const Int b = _mm256_maddubs_epi16(w[i]->codes[g + 8], q);
          low[at] = g == 0 ? a : _mm256_add_epi16(low[at], a);
          high[at] = g == 0 ? b : _mm256_add_epi16(high[at], b);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTiles * kCount; ++i) {
      low[i] = _mm256_add_epi32(Dot16(low[i]), _mm256_madd_epi16(high[i], _mm256_set1_epi16(16)));
    }
    AddDots<0, kTiles, kCount>(w, x, low, &RoundedBlock::sum, acc);
  }
};

inline void Store(const ProductArgs& a, int64_t tile, int64_t token, Float acc) {
  const int64_t row = tile * kRows;
  float* y = a.y + token * a.y_stride + row;
  if (row + kRows <= a.rows) {
    if (a.accumulate) acc = _mm256_add_ps(_mm256_loadu_ps(y), acc);
    _mm256_storeu_ps(y, acc);
    return;
  }
  alignas(32) float values[kRows];
  _mm256_store_ps(values, acc);
  for (int64_t r = 0; row + r < a.rows; ++r) y[r] = a.accumulate ? y[r] + values[r] : values[r];
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
      acc[t] = _mm256_setzero_ps();
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

// A run of columns whose unpacked codes (8 KiB a tile of 4-bit ones) stay in the first-level cache.
constexpr int64_t kRunBlocks = 24;
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
#pragma GCC unroll 4
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
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) ++x[t];
  }
#pragma GCC unroll 4
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
  for (int64_t t = 0; t < kCount * kPartTokens; ++t) acc[t] = _mm256_setzero_ps();
  for (int64_t begin = 0; begin < blocks; begin += kRunBlocks) {
    const int64_t count = blocks - begin < kRunBlocks ? blocks - begin : kRunBlocks;
    for (int64_t i = 0; i < kCount; ++i) {
      const uint8_t* weights = a.tiles + static_cast<size_t>(tile + i) * a.tile_bytes;
      for (int64_t b = 0; b < count; ++b) Format::Unpack(weights, begin + b, run[i].blocks[b]);
    }
    const RoundedBlock* x = a.rounded + token_begin * a.blocks + begin;
    int64_t t = 0;
    for (; t + Format::kTokens <= tokens; t += Format::kTokens) {
      AddRun<Format, kCount, Format::kTokens>(run, count, x + t * a.blocks, a.blocks, acc + t);
    }
    if (tokens - t == 3) AddRun<Format, kCount, 3>(run, count, x + t * a.blocks, a.blocks, acc + t);
    if (tokens - t == 2) AddRun<Format, kCount, 2>(run, count, x + t * a.blocks, a.blocks, acc + t);
    if (tokens - t == 1) AddRun<Format, kCount, 1>(run, count, x + t * a.blocks, a.blocks, acc + t);
  }
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t t = 0; t < tokens; ++t) Store(a, tile + i, token_begin + t, acc[i * kPartTokens + t]);
  }
}

template <typename Format>
void Blocked(const ProductArgs& a, const ProductRange& range) {
  const int64_t tokens = range.token_end - range.token_begin;
  int64_t tile = range.tile_begin;
  for (; tile + Format::kTiles <= range.tile_end; tile += Format::kTiles) {
    BlockedTiles<Format, Format::kTiles>(a, tile, range.token_begin, tokens);
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
  static inline void Load(const uint8_t* p, Float* w) { w[0] = _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
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
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
};

// Sums of kTiles x kCount registers over all columns; each is one chain of FMAs in the order of the columns.
template <typename Weights, int kTiles, int kCount>
inline void FloatTiles(const ProductArgs& a, int64_t tile, int64_t token) {
  Float acc[kTiles][kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) acc[i][t] = _mm256_setzero_ps();
  }
  const uint8_t* weights = a.tiles + static_cast<size_t>(tile) * a.tile_bytes;
  const float* x = a.x + token * a.x_stride;
  const auto add = [&](int64_t c, int columns) __attribute__((always_inline)) {
    Float w[kTiles][Weights::kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kTiles; ++i) {
      Weights::Load(weights + static_cast<size_t>(i) * a.tile_bytes + c * kRows * Weights::kBytes, w[i]);
    }
#pragma GCC unroll 2
    for (int k = 0; k < columns; ++k) {
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) {
        const Float activation = _mm256_set1_ps(x[t * a.x_stride + c + k]);
#pragma GCC unroll 4
        for (int i = 0; i < kTiles; ++i) acc[i][t] = _mm256_fmadd_ps(w[i][k], activation, acc[i][t]);
      }
    }
  };
  int64_t c = 0;
  for (; c + Weights::kColumns <= a.cols; c += Weights::kColumns) add(c, Weights::kColumns);
  if (c < a.cols) add(c, 1);
#pragma GCC unroll 4
  for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) Store(a, tile + i, token + t, acc[i][t]);
  }
}

template <typename Weights, int kTiles>
inline void FloatTokens(const ProductArgs& a, const ProductRange& range, int64_t tile) {
  int64_t t = range.token_begin;
  for (; t + 4 <= range.token_end; t += 4) FloatTiles<Weights, kTiles, 4>(a, tile, t);
  for (; t < range.token_end; ++t) FloatTiles<Weights, kTiles, 1>(a, tile, t);
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

inline float Largest(Float v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Of the eight 32-bit lanes.
inline int Sum(Int v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

inline void RoundBlock(const float* x, RoundedBlock& out) {
  const Float magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  Float v[4];
  Float largest_lanes = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    largest_lanes = _mm256_max_ps(largest_lanes, _mm256_and_ps(v[i], magnitude));
  }
  const float largest = Largest(largest_lanes);
  const Float inverse = _mm256_set1_ps(largest > 1e-30f ? 127.0f / largest : 0.0f);
  out.scale = largest > 1e-30f ? largest / 127.0f : 0.0f;
  Int q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  const int low = Sum(_mm256_add_epi32(q[0], q[1]));
  const int high = Sum(_mm256_add_epi32(q[2], q[3]));
  out.sum = out.scale * static_cast<float>(low + high);
  out.sum_low = out.scale * static_cast<float>(low);
  out.sum_high = out.scale * static_cast<float>(high);
  const Int bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  // Packing works within 128-bit lanes: put the eight groups of four back in order.
  const Int ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q), ordered);
}

void RoundRow(const float* x, int64_t cols, RoundedBlock* out) {
  int64_t c = 0;
  for (; c + 32 <= cols; c += 32) RoundBlock(x + c, out[c / 32]);
  if (c == cols) return;
  float padded[32] = {};
  for (int64_t i = c; i < cols; ++i) padded[i - c] = x[i];
  RoundBlock(padded, out[c / 32]);
}

}  // namespace

const MatmulKernels kMatmulAvx2 = {
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
    nullptr,
};

}  // namespace sluice

#else

namespace sluice {
const MatmulKernels kMatmulAvx2 = {};
}  // namespace sluice

#endif
