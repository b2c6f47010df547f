// Scores of attention over one span, written over lanes L: keys are transposed a tile at a time, so that lanes are keys
// and nothing is summed across them. A score sums its channels in ascending order; how many rows share a pass changes
// only how often a tile is loaded.
//
// Keys of int8 and int4 are multiplied as integers (attention_bytes_simd.h, attention_pairs_simd.h) by queries rounded
// to 16 bits: no widening to f32, and sums that are exact in any order. What the rounding of q adds is below 2^-16 of
// its largest channel, a hundredth of what int8 keys themselves have.
#pragma once

#include "kernels/attention_bytes_simd.h"
#include "kernels/attention_pairs_simd.h"
#include "kernels/attention_rows_simd.h"

namespace sluice {

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

// Keys [first, first + 2 width) of the span as f32 [key_dim][2 width]. Keys beyond the span become zero: they are not
// read (their slots may never have been written) and their scores are masked later.
template <class L>
void TransposeBf16Keys(const AttentionSpan& s, int first, float* tile) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  constexpr int kStep = 2 * kW;  // channels of kW words
  const uint32_t part = ShareOfLines(s, 2 * Tiles(s.keys, 2 * kW) * Tiles(s.key_dim, kStep));
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    float* out = tile + half * kW;
    for (int c = 0; c < s.key_dim; c += kStep) {
      const int left = s.key_dim - c;
      const size_t offset = s.k_offset + static_cast<size_t>(c) * 2;
      PrefetchPart(s.ahead, part);
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
  const uint32_t part = ShareOfLines(s, 2 * Tiles(s.keys, 2 * kW) * Tiles(s.key_dim, kW));
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    float* out = tile + half * kW;
    for (int c = 0; c < s.key_dim; c += kW) {
      PrefetchPart(s.ahead, part);
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

template <class L, KvCodec C, class Keys>
void IntegerScores(const AttentionSpan& s) {
  constexpr int kKeys = 2 * L::kWidth;
  constexpr int kRows = Keys::template kRows<L>;
  Keys::template Round<L>(s);
  const uint32_t part = ShareOfLines(s, Tiles(s.keys, kKeys) * Keys::template Parts<L>(s));
  for (int first = 0; first < s.keys; first += kKeys) {
    LoadKeyScales<L, C>(s, first, s.row_scales);
    Keys::template Transpose<L>(s, first, part, s.k_tile);
    for (int row = 0; row < s.rows; row += kRows) {
      WithRows<Keys::template ScoreRowsOf, L, kRows, const AttentionSpan&, int, uint32_t, const float*, const float*,
               float*>(s.rows - row < kRows ? s.rows - row : kRows, s, row, row == 0 ? part : 0, s.k_tile, s.row_scales,
                       s.scores + row * kSpanKeys + first);
    }
  }
}

template <class L, KvCodec C>
void FloatScores(const AttentionSpan& s) {
  constexpr int kKeys = 2 * L::kWidth;
  for (int first = 0; first < s.keys; first += kKeys) {
    LoadKeyScales<L, C>(s, first, s.row_scales);
    if constexpr (C == KvCodec::kBf16) {
      TransposeBf16Keys<L>(s, first, s.k_tile);
    } else {
      TransposeKeys<L, C>(s, first, s.k_tile);
    }
    for (int row = 0; row < s.rows; row += L::kScoreRows) {
      WithRows<ScoreRowsOf, L, L::kScoreRows, const float*, int, const float*, int, const float*, float*>(
          s.rows - row < L::kScoreRows ? s.rows - row : L::kScoreRows, s.q + row * s.key_stride, s.key_stride, s.k_tile,
          s.key_dim, HasRowScale(C) ? s.row_scales : nullptr, s.scores + row * kSpanKeys + first);
    }
  }
}

template <class L, KvCodec C>
void Scores(const AttentionSpan& s) {
  if constexpr (!HasIntegerKeys(C)) {
    FloatScores<L, C>(s);
  } else if constexpr (L::kDotsBytes) {
    IntegerScores<L, C, KeysInBytes<C>>(s);
  } else {
    IntegerScores<L, C, KeysInPairs<C>>(s);
  }
}

}  // namespace sluice
