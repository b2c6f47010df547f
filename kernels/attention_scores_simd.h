// Scores of attention over one span, written over lanes L: keys are transposed a tile at a time, so that lanes are keys
// and nothing is summed across them. A score sums its channels in ascending order; how many rows share a pass changes
// only how often a tile is loaded.
//
// Keys of int8 and int4 are multiplied as integers by queries rounded to 16 bits: two products an instruction and lane,
// no widening to f32, and sums that are exact in any order. What the rounding of q adds is below 2^-16 of its largest
// channel, a hundredth of what int8 keys themselves have.
#pragma once

#include "kernels/attention_rows_simd.h"

namespace sluice {

// Calls F<R>::Run(args...) with R = rows, which is in [1, Max].
template <template <class, int> class F, class L, int Max, class... Args>
void WithRows(int rows, Args... args) {
  if constexpr (Max > 1) {
    if (rows < Max) return WithRows<F, L, Max - 1, Args...>(rows, args...);
  }
  F<L, Max>::Run(args...);
}

// 2 width channels of `width` rows, all there: the common case of TransposeBf16Keys without its questions.
template <class L>
void TransposeBf16Block(const void* const* rows, size_t offset, float* out) {
  constexpr int kW = L::kWidth;
  typename L::F r[kW];
#pragma GCC unroll 16
  for (int k = 0; k < kW; ++k) r[k] = L::Load(RowAt<float>(rows, k, offset));
  L::Transpose(r);
#pragma GCC unroll 16
  for (int w = 0; w < kW; ++w) {
    L::Store(out + 4 * w * kW, L::LowHalfToF32(r[w]));
    L::Store(out + (4 * w + 2) * kW, L::HighHalfToF32(r[w]));
  }
}

// What is asked for ahead with each of `parts` parts of `width` keys, if keys and values of a span get half each. A few
// at a time: a burst would fill the queue of misses and stop the loads behind it.
template <class L>
int LinesAPart(const AttentionSpan& s, int parts) {
  const int steps = 2 * parts * s.keys / L::kWidth + 1;
  return (s.ahead_lines + steps - 1) / steps;
}

// Keys [first, first + 2 width) of the span as f32 [key_dim][2 width]. Keys beyond the span become zero: they are not
// read (their slots may never have been written) and their scores are masked later.
template <class L>
void TransposeBf16Keys(const AttentionSpan& s, int first, float* tile) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  constexpr int kStep = 2 * kW;  // channels of kW words
  const int lines = LinesAPart<L>(s, (s.key_dim + kStep - 1) / kStep);
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    float* out = tile + half * kW;
    for (int c = 0; c < s.key_dim; c += kStep) {
      const int left = s.key_dim - c;
      const size_t offset = s.k_offset + static_cast<size_t>(c) * 2;
      if (lines > 0) PrefetchLines(*s.ahead, lines);
      if (keys >= kW && left >= kStep) {
        TransposeBf16Block<L>(s.k_rows + first + half * kW, offset, out + c * 2 * kW);
        continue;
      }
      const int words = left < kStep ? left / 2 : kW;
      F r[kW];
#pragma GCC unroll 16
      for (int k = 0; k < kW; ++k) {
        r[k] = k < keys ? L::LoadWords(RowAt<float>(s.k_rows, first + half * kW + k, offset), words) : L::Zero();
      }
      L::Transpose(r);
      for (int w = 0; w < words; ++w) {
        L::Store(out + (c + 2 * w) * 2 * kW, L::LowHalfToF32(r[w]));
        L::Store(out + (c + 2 * w + 1) * 2 * kW, L::HighHalfToF32(r[w]));
      }
    }
  }
}

// A vector of a key's channels from c on: those there are, the others zero.
template <class L, KvCodec C>
typename L::F LoadKey(const AttentionSpan& s, const void* row, int c, int channels) {
  if constexpr (C == KvCodec::kMlaFp8) {
    const char* scales = static_cast<const char*>(row) + s.value_dim;
    if (c < s.value_dim) return LoadChannels<L, C>(row, scales, 0, c);
    // Behind the scales of the latent's tiles: the shared key.
    row = scales + (s.value_dim + kMlaTile - 1) / kMlaTile * 4;
    c -= s.value_dim;
    return channels == L::kWidth ? LoadChannels<L, KvCodec::kBf16>(row, nullptr, 0, c)
                                 : LoadFirstChannels<L, KvCodec::kBf16>(row, c, channels);
  } else {
    return channels == L::kWidth ? LoadChannels<L, C>(row, nullptr, 0, c) : LoadFirstChannels<L, C>(row, c, channels);
  }
}

// The same as TransposeBf16Keys of any codec, widened first.
template <class L, KvCodec C>
void TransposeKeys(const AttentionSpan& s, int first, float* tile) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  const int lines = LinesAPart<L>(s, (s.key_dim + kW - 1) / kW);
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    float* out = tile + half * kW;
    for (int c = 0; c < s.key_dim; c += kW) {
      if (lines > 0) PrefetchLines(*s.ahead, lines);
      const int channels = s.key_dim - c < kW ? s.key_dim - c : kW;
      const void* const* rows = s.k_rows + first + half * kW;
      F r[kW];
      if (keys >= kW && channels == kW) {
#pragma GCC unroll 16
        for (int k = 0; k < kW; ++k) r[k] = LoadKey<L, C>(s, RowAt<char>(rows, k, s.k_offset), c, kW);
      } else {
        for (int k = 0; k < kW; ++k)
          r[k] = k < keys ? LoadKey<L, C>(s, RowAt<char>(rows, k, s.k_offset), c, channels) : L::Zero();
      }
      L::Transpose(r);
      for (int i = 0; i < channels; ++i) L::Store(out + (c + i) * 2 * kW, r[i]);
    }
  }
}

template <class L, int R>
struct ScoreRowsOf {
  // `scales` of the tile's keys, or null.
  static void Run(const float* q, int q_stride, const float* tile, int key_dim, const float* scales, float* scores) {
    using F = typename L::F;
    constexpr int kW = L::kWidth;
    F acc[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = L::Zero();
    for (int c = 0; c < key_dim; ++c) {
      const F k0 = L::Load(tile + c * 2 * kW);
      const F k1 = L::Load(tile + c * 2 * kW + kW);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const F b = L::Set(q[r * q_stride + c]);
        acc[r][0] = L::Fma(b, k0, acc[r][0]);
        acc[r][1] = L::Fma(b, k1, acc[r][1]);
      }
    }
    const F one = L::Set(1.0f);
    const F s0 = scales != nullptr ? L::Load(scales) : one;
    const F s1 = scales != nullptr ? L::Load(scales + kW) : one;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      L::Store(scores + r * kSpanKeys, L::Mul(acc[r][0], s0));
      L::Store(scores + r * kSpanKeys + kW, L::Mul(acc[r][1], s1));
    }
  }
};

// Codes of keys [first, first + 2 width) as 16-bit pairs, [key_dim / 2][2 width] words. The pair 2 i holds channels 4 i
// and 4 i + 2, the next one 4 i + 1 and 4 i + 3: so bytes come apart without a shuffle. int4's stay in 0 .. 15.
template <class L, KvCodec C>
void TransposeCodes(const AttentionSpan& s, int first, float* tile) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  const int words = s.k_bytes / 4;
  const int lines = LinesAPart<L>(s, (words + kW - 1) / kW);
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    float* out = tile + half * kW;
    for (int w = 0; w < words; w += kW) {
      if (lines > 0) PrefetchLines(*s.ahead, lines);
      const int n = words - w < kW ? words - w : kW;
      const void* const* rows = s.k_rows + first + half * kW;
      F r[kW];
      if (keys >= kW && n == kW) {
#pragma GCC unroll 16
        for (int k = 0; k < kW; ++k) r[k] = L::Load(RowAt<float>(rows, k, s.k_offset) + w);
      } else {
#pragma GCC unroll 16
        for (int k = 0; k < kW; ++k)
          r[k] = k < keys ? L::LoadWords(RowAt<float>(rows, k, s.k_offset) + w, n) : L::Zero();
      }
      L::Transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < kW; ++i) {
        if (i >= n) break;
        const auto store = [&](int pair, F codes) { L::Store(out + pair * 2 * kW, codes); };
        if constexpr (C == KvCodec::kInt8) {
          store(2 * (w + i), L::EvenBytes(r[i]));
          store(2 * (w + i) + 1, L::OddBytes(r[i]));
        } else {
          // Four bytes of a group's sixteen: channels j .. j + 3 and j + 16 .. j + 19.
          const int pair = (w + i) / 4 * 16 + (w + i) % 4 * 2;
          store(pair, L::NibblePairs(r[i], 0));
          store(pair + 1, L::NibblePairs(r[i], 8));
          store(pair + 8, L::NibblePairs(r[i], 4));
          store(pair + 9, L::NibblePairs(r[i], 12));
        }
      }
    }
  }
}

// q's rows as 16-bit pairs in the order of TransposeCodes, one scale a row, and for int4 what its codes' 8 amounts to.
// The largest channel gets a code for which no sum of products leaves 32 bits.
template <class L, KvCodec C>
void RoundQueries(const AttentionSpan& s) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  constexpr int kGroupPairs = kInt4Group / 2;
  const int bound = C == KvCodec::kInt8 ? INT32_MAX / 127 / s.key_dim : INT16_MAX;
  const auto top = static_cast<float>(bound < INT16_MAX ? bound : INT16_MAX);
  for (int row = 0; row < s.rows; ++row) {
    const float* q = s.q + row * s.key_stride;
    int32_t* pairs = s.q_pairs + row * (s.key_stride / 2);
    F max = L::Zero();
    for (int c = 0; c < s.key_dim; c += kW) max = L::MaxMagnitude(max, L::Load(q + c));
    const uint32_t bits = L::ReduceMaxBits(max);
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof(largest));
    // A row of nothing scores 0 everywhere, a row with an infinity or a NaN scores NaN.
    const bool vanishes = largest < 0x1p-100f;
    const bool finite = bits < 0x7f800000u;
    s.q_scales[row] = !finite ? __builtin_nanf("") : vanishes ? 0.0f : largest / top;
    const F factor = L::Set(finite && !vanishes ? top / largest : 0.0f);
    for (int c = 0; c < s.key_dim; c += kW) {
      const F x = finite ? L::Mul(L::Load(q + c), factor) : L::Zero();
      L::StorePairs(pairs + c / 2, x);
    }
    if constexpr (C == KvCodec::kInt4) {
      for (int g = 0; g < s.key_dim / kInt4Group; ++g) {
        F sum = L::Zero();
        for (int p = 0; p < kGroupPairs; p += kW)
          sum = L::DotPairs(sum, L::LoadWords(pairs + g * kGroupPairs + p, kW), L::SetWord(0xfff8fff8u));
        s.q_offsets[row * (s.key_stride / kInt4Group) + g] = static_cast<int32_t>(L::ReduceAdd(L::WordsToF32(sum)));
      }
    }
  }
}

template <KvCodec C>
struct Integer {
  template <class L, int R>
  struct ScoreRowsOf {
    static void Run(const AttentionSpan& s, int row, const float* tile, const float* scales, float* scores) {
      using F = typename L::F;
      constexpr int kW = L::kWidth;
      // Few rows have few sums, which would wait for each other: their channels are shared out.
      constexpr int kSums = R == 1 ? 4 : R <= 3 ? 2 : 1;
      const int groups = C == KvCodec::kInt4 ? s.key_dim / kInt4Group : 1;
      const int group_pairs = C == KvCodec::kInt4 ? kInt4Group / 2 : s.key_dim / 2;
      const int q_stride = s.key_stride / 2;
      const int32_t* q = s.q_pairs + row * q_stride;
      for (int g = 0; g < groups; ++g, tile += group_pairs * 2 * kW, q += group_pairs, scales += 2 * kW) {
        F acc[kSums][R][2];
#pragma GCC unroll 4
        for (int i = 0; i < kSums; ++i) {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[i][r][0] = acc[i][r][1] = L::Zero();
        }
        if constexpr (C == KvCodec::kInt4) {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            const int32_t offset = s.q_offsets[(row + r) * (s.key_stride / kInt4Group) + g];
            acc[0][r][0] = acc[0][r][1] = L::SetWord(static_cast<uint32_t>(offset));
          }
        }
        for (int p = 0; p < group_pairs; p += kSums) {
#pragma GCC unroll 4
          for (int i = 0; i < kSums; ++i) {
            const F k0 = L::Load(tile + (p + i) * 2 * kW);
            const F k1 = L::Load(tile + (p + i) * 2 * kW + kW);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
              const F b = L::SetWord(static_cast<uint32_t>(q[r * q_stride + p + i]));
              acc[i][r][0] = L::DotPairs(acc[i][r][0], k0, b);
              acc[i][r][1] = L::DotPairs(acc[i][r][1], k1, b);
            }
          }
        }
        const F s0 = L::Load(scales);
        const F s1 = L::Load(scales + kW);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int i = 1; i < kSums; ++i) {
            acc[0][r][0] = L::AddWords(acc[0][r][0], acc[i][r][0]);
            acc[0][r][1] = L::AddWords(acc[0][r][1], acc[i][r][1]);
          }
          const F f = L::Set(s.q_scales[row + r]);
          float* out = scores + r * kSpanKeys;
          F x0 = L::Mul(L::WordsToF32(acc[0][r][0]), L::Mul(s0, f));
          F x1 = L::Mul(L::WordsToF32(acc[0][r][1]), L::Mul(s1, f));
          if (g > 0) {
            x0 = L::Add(L::Load(out), x0);
            x1 = L::Add(L::Load(out + kW), x1);
          }
          L::Store(out, x0);
          L::Store(out + kW, x1);
        }
      }
    }
  };
};

template <class L, KvCodec C>
void Scores(const AttentionSpan& s) {
  constexpr int kKeys = 2 * L::kWidth;
  if constexpr (HasIntegerKeys(C)) RoundQueries<L, C>(s);
  for (int first = 0; first < s.keys; first += kKeys) {
    LoadKeyScales<L, C>(s, first, s.row_scales);
    if constexpr (HasIntegerKeys(C)) {
      TransposeCodes<L, C>(s, first, s.k_tile);
    } else if constexpr (C == KvCodec::kBf16) {
      TransposeBf16Keys<L>(s, first, s.k_tile);
    } else {
      TransposeKeys<L, C>(s, first, s.k_tile);
    }
    for (int row = 0; row < s.rows; row += L::kScoreRows) {
      const int rows = s.rows - row < L::kScoreRows ? s.rows - row : L::kScoreRows;
      float* scores = s.scores + row * kSpanKeys + first;
      const float* tile = s.k_tile;
      const float* scales = HasRowScale(C) || HasIntegerKeys(C) ? s.row_scales : nullptr;
      if constexpr (HasIntegerKeys(C)) {
        WithRows<Integer<C>::template ScoreRowsOf, L, L::kScoreRows, const AttentionSpan&>(rows, s, row, tile, scales,
                                                                                           scores);
      } else {
        WithRows<ScoreRowsOf, L, L::kScoreRows>(rows, s.q + row * s.key_stride, s.key_stride, tile, s.key_dim, scales,
                                                scores);
      }
    }
  }
}

}  // namespace sluice
