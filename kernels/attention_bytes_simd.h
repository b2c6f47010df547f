// Keys of int8 and int4 times rounded queries, and int8 values times rounded weights, where lanes multiply unsigned by
// signed bytes: four products a word. What is rounded comes in bytes: a query of 16 bits in two, a weight of 24 in
// three.
//
// A weight is off by at most 2^-25 of the largest of its row in the span, as a sum of them in f32 would be; the sums
// themselves are exact in any order, and no value is widened.
//
// Products of a key of d channels, for each row: d / 2 over K and 3 d / 4 over V, where f32 has d and d. With two bytes
// of weights it would be d / 2 over V too, and a step 1.05 to 1.1 times as fast. But beside one large weight all others
// would be a few units of 2^-16: values were off by 4e-4, and the mean KL that int8 costs (docs/kv-accuracy.md)
// was 1.05 times what it is.
#pragma once

#include "kernels/attention_rows_simd.h"

namespace sluice {

template <KvCodec C>
struct KeysInBytes {
  // As many sums as 32 registers hold.
  template <class L>
  static constexpr int kRows = 6;

  // What is added to a code so that it has no sign.
  static constexpr int kOffset = C == KvCodec::kInt8 ? 128 : 8;

  // Of what is asked for ahead with a tile: some while it is transposed, some with each few words of products.
  static constexpr int kWordsAPart = 8;
  template <class L>
  static int Parts(const AttentionSpan& s) {
    return 2 * Tiles(s.k_bytes / 4, L::kWidth) + s.key_dim / 4 / kWordsAPart;
  }

  // The tile is [key_dim / 4][2 width] words of four channels each. int4's codes are in 0 .. 15 as they are stored.
  template <class L>
  static void Transpose(const AttentionSpan& s, int first, uint32_t part, float* tile) {
    using F = typename L::F;
    constexpr int kW = L::kWidth;
    TransposeWords<L>(s, first, part, [tile](int w, int i, F codes, int half) {
      if constexpr (C == KvCodec::kInt8) {
        L::Store(tile + (2 * w + half) * kW + 2 * i * kW, L::XorWords(codes, L::SetWord(0x80808080u)));
      } else {
        // Four bytes of a group's sixteen: channels j .. j + 3 and j + 16 .. j + 19.
        float* out = tile + (4 * w + half) * kW + 2 * (i / 4 * 8 + i % 4) * kW;
        L::Store(out, L::NibbleBytes(codes, 0));
        L::Store(out + 8 * kW, L::NibbleBytes(codes, 4));
      }
    });
  }

  // q's rows as [key_dim / 4] pairs of words, low bytes and high bytes of four channels, and what kOffset amounts to.
  template <class L>
  static void Round(const AttentionSpan& s) {
    using F = typename L::F;
    constexpr int kW = L::kWidth;
    const int dims = GroupChannels<C>(s);
    const int groups = Groups<C>(s);
    for (int row = 0; row < s.rows; ++row) {
      const float* q = s.q + row * s.key_stride;
      const F factor = L::Set(RoundingOfQuery<L>(s, row).factor);
      int32_t* codes = s.q_codes + row * (s.key_stride / 2);
      for (int g = 0; g < groups; ++g, q += dims, codes += dims / 2) {
        F sum = L::Zero();
        for (int c = 0; c < dims; c += kW) {
          const F words = L::RoundToWords(L::Mul(L::Load(q + c), factor));
          L::StoreHalves(codes + c / 2, words);
          sum = L::AddWords(sum, words);
        }
        // Below 2^24 in magnitude, so that f32 has it exactly. The product may wrap: so does the sum that it goes into.
        const auto total = static_cast<int32_t>(L::ReduceAdd(L::WordsToF32(sum)));
        s.q_offsets[row * OffsetStride(s) + g] = static_cast<int32_t>(0u - kOffset * static_cast<uint32_t>(total));
      }
    }
  }

  template <class L, int R>
  struct ScoreRowsOf {
    static void Run(const AttentionSpan& s, int row, uint32_t part, const float* tile, const float* scales,
                    float* scores) {
      using F = typename L::F;
      constexpr int kW = L::kWidth;
      // Few rows have few sums, which would wait for each other: their channels are shared out.
      constexpr int kSums = R == 1 ? 2 : 1;
      const int groups = Groups<C>(s);
      const int group_words = GroupChannels<C>(s) / 4;
      const int q_stride = s.key_stride / 2;
      const int32_t* q = s.q_codes + row * q_stride;
      for (int g = 0; g < groups; ++g, tile += group_words * 2 * kW, q += group_words * 2, scales += 2 * kW) {
        F low[kSums][R][2];
        F high[kSums][R][2];
#pragma GCC unroll 4
        for (int i = 0; i < kSums; ++i) {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) low[i][r][0] = low[i][r][1] = high[i][r][0] = high[i][r][1] = L::Zero();
        }
        for (int w = 0; w < group_words; w += kSums) {
          if (w % kWordsAPart == 0) PrefetchPart(s.ahead, part);
#pragma GCC unroll 4
          for (int i = 0; i < kSums; ++i) {
            const F k0 = L::Load(tile + (w + i) * 2 * kW);
            const F k1 = L::Load(tile + (w + i) * 2 * kW + kW);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
              const F l = L::SetWord(static_cast<uint32_t>(q[r * q_stride + 2 * (w + i)]));
              low[i][r][0] = L::DotBytes(low[i][r][0], k0, l);
              low[i][r][1] = L::DotBytes(low[i][r][1], k1, l);
              const F h = L::SetWord(static_cast<uint32_t>(q[r * q_stride + 2 * (w + i) + 1]));
              high[i][r][0] = L::DotBytes(high[i][r][0], k0, h);
              high[i][r][1] = L::DotBytes(high[i][r][1], k1, h);
            }
          }
        }
        const F s0 = L::Load(scales);
        const F s1 = L::Load(scales + kW);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const F offset = L::SetWord(static_cast<uint32_t>(s.q_offsets[(row + r) * OffsetStride(s) + g]));
          F sums[2];
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
            for (int i = 1; i < kSums; ++i) {
              low[0][r][half] = L::AddWords(low[0][r][half], low[i][r][half]);
              high[0][r][half] = L::AddWords(high[0][r][half], high[i][r][half]);
            }
            sums[half] = L::WordsToF32(
                L::AddWords(L::AddWords(low[0][r][half], offset), L::ShiftWordsLeft(high[0][r][half], 8)));
          }
          const F worth = L::Set(s.q_scales[row + r]);
          StoreScores<L>(sums[0], sums[1], L::Mul(s0, worth), L::Mul(s1, worth), /*add=*/g > 0, scores + r * kSpanKeys);
        }
      }
    }
  };
};

// The row's weights of `keys` keys, of which it sees the first `visible`, times their values' scales, become whole
// numbers of 24 bits: `width` weights as many low bytes, then the middle ones and the high ones, in their own place.
// Returns what one is worth.
template <class L>
float RoundWeights(const float* scales, int visible, int keys, float* weights) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  // So that rounding the product with the factor does not reach 2^24.
  constexpr float kTop = 0x1p24f - 4;
  F max = L::Zero();
  // In parts: with the mask in one loop attention of a row took 1.03 times as long.
  int k = 0;
  for (; k + kW <= visible; k += kW) {
    const F x = L::Mul(L::Load(weights + k), L::Load(scales + k));
    max = L::MaxMagnitude(max, x);
    L::Store(weights + k, x);
  }
  if (k < visible) {
    const F x = L::KeepFirst(L::Mul(L::Load(weights + k), L::Load(scales + k)), visible - k, L::Zero());
    max = L::MaxMagnitude(max, x);
    L::Store(weights + k, x);
    k += kW;
  }
  for (; k < keys; k += kW) L::Store(weights + k, L::Zero());
  const Rounding rounding = RoundingTo(kTop, L::ReduceMaxBits(max));
  const F factor = L::Set(rounding.factor);
  for (k = 0; k < keys; k += kW) L::StoreByteThirds(weights + k, L::RoundToWords(L::Mul(L::Load(weights + k), factor)));
  return rounding.worth;
}

// out[r][c ..] of vectors [First, First + Count) of a block of 4 width channels, for R rows together. A vector holds
// four channels of each 128 bits of the block: so bytes of four keys are brought together without crossing them.
template <class L, int R, int First, int Count>
void AddByteValues(const AttentionSpan& s, int row, int base, int keys, uint32_t part, const float* worths) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  constexpr int kBytes = 3;
  const int words = (s.value_dim - base) / 4 < kW ? (s.value_dim - base) / 4 : kW;
  F acc[R][Count][kBytes];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) acc[r][i][0] = acc[r][i][1] = acc[r][i][2] = L::Zero();
  }
  static_assert(kValuesAPart == 4);
  const auto add_four = [&](int k, const auto& load) {
    F v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = load(k + i);
    F of_four[4];
    if constexpr (First < 2) {
      const F a = L::InterleaveLowBytes(v[0], v[1]);
      const F b = L::InterleaveLowBytes(v[2], v[3]);
      of_four[0] = L::InterleaveLowPairs(a, b);
      of_four[1] = L::InterleaveHighPairs(a, b);
    }
    if constexpr (First + Count > 2) {
      const F a = L::InterleaveHighBytes(v[0], v[1]);
      const F b = L::InterleaveHighBytes(v[2], v[3]);
      of_four[2] = L::InterleaveLowPairs(a, b);
      of_four[3] = L::InterleaveHighPairs(a, b);
    }
    // Four keys' weights are words in the place of `width` keys' weights.
    const float* weights = s.scores + row * kSpanKeys + k / kW * kW + k % kW / 4;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int b = 0; b < kBytes; ++b) {
        const F w = L::Set(weights[r * kSpanKeys + b * kW / 4]);
#pragma GCC unroll 16
        for (int i = 0; i < Count; ++i) acc[r][i][b] = L::DotBytes(acc[r][i][b], w, of_four[First + i]);
      }
    }
    // Behind the loads: before them it took some of the room that loads wait in, and a step up to 1.08 times as long.
    PrefetchPart(s.ahead, part);
  };
  const size_t offset = s.v_offset + static_cast<size_t>(base);
  int k = 0;
  // One row's products are few: without questions its loads ran so far ahead that what is asked for ahead found no
  // room, and over heads of 128 it took 1.05 times as long.
  if constexpr (R > 1) {
    if (words == kW) {
      for (; k + 4 <= keys; k += 4) add_four(k, [&](int key) { return L::Load(RowAt<float>(s.v_rows, key, offset)); });
    }
  }
  for (; k < keys; k += 4) {
    // Behind the last key there is none, and it has no weight.
    add_four(k, [&](int key) {
      const float* codes = RowAt<float>(s.v_rows, key < s.keys ? key : s.keys - 1, offset);
      return words == kW ? L::Load(codes) : L::LoadWords(codes, words);
    });
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const F worth = L::Set(worths[r]);
    float* out = s.out + (row + r) * s.value_stride + base;
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) {
      // Each sum is below 2^24 in magnitude.
      F x = L::Fma(L::WordsToF32(acc[r][i][1]), L::Set(0x1p8f), L::WordsToF32(acc[r][i][0]));
      x = L::Mul(L::Fma(L::WordsToF32(acc[r][i][2]), L::Set(0x1p16f), x), worth);
      float lanes[kW];
      L::Store(lanes, x);
      for (int c = 0; c < words; c += 4) __builtin_memcpy(out + 4 * c + 4 * (First + i), lanes + c, 4 * sizeof(float));
    }
  }
}

// Sums of int8 values for R rows, whose weights have been rounded.
template <class L, int R>
struct AddByteRowsOf {
  static void Run(const AttentionSpan& s, int row, const float* worths) {
    int keys = 0;
    for (int r = row; r < row + R; ++r) keys = s.visible[r] > keys ? s.visible[r] : keys;
    constexpr int kPasses = R <= 2 ? 1 : 2;  // as many sums as 32 registers hold
    const int parts = kPasses * Tiles(s.value_dim, 4 * L::kWidth) * Tiles(s.keys, kValuesAPart);
    const uint32_t part = row == 0 ? ShareOfLines(s, parts) : 0;
    for (int base = 0; base < s.value_dim; base += 4 * L::kWidth) {
      if constexpr (kPasses == 1) {
        AddByteValues<L, R, 0, 4>(s, row, base, keys, part, worths);
      } else {
        AddByteValues<L, R, 0, 2>(s, row, base, keys, part, worths);
        AddByteValues<L, R, 2, 2>(s, row, base, keys, part, worths);
      }
    }
  }
};

// The span's values for all rows, whose weights are in `scores` and are rounded there.
template <class L>
void AddByteValuesOfAll(const AttentionSpan& s) {
  constexpr int kRows = 4;
  for (int row = 0; row < s.rows; row += kRows) {
    const int rows = s.rows - row < kRows ? s.rows - row : kRows;
    float worths[kRows];
    for (int r = 0; r < rows; ++r)
      worths[r] = RoundWeights<L>(s.row_scales, s.visible[row + r], s.keys, s.scores + (row + r) * kSpanKeys);
    WithRows<AddByteRowsOf, L, kRows, const AttentionSpan&, int, const float*>(rows, s, row, worths);
  }
}

}  // namespace sluice
