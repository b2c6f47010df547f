// Keys of int8 and int4 times rounded queries, where lanes multiply pairs of 16 bits: two products a word.
#pragma once

#include "kernels/attention_rows_simd.h"

namespace sluice {

template <KvCodec C>
struct KeysInPairs {
  template <class L>
  static constexpr int kRows = L::kScoreRows;

  // Of what is asked for ahead with a tile.
  template <class L>
  static int Parts(const AttentionSpan& s) {
    return 2 * Tiles(s.k_bytes / 4, L::kWidth);
  }

  // The tile is [key_dim / 2][2 width] words. The pair 2 i holds channels 4 i and 4 i + 2, the next one 4 i + 1 and
  // 4 i + 3: so bytes come apart without a shuffle. int4's codes stay in 0 .. 15.
  template <class L>
  static void Transpose(const AttentionSpan& s, int first, uint32_t part, float* tile) {
    using F = typename L::F;
    constexpr int kW = L::kWidth;
    TransposeWords<L>(s, first, part, [tile](int w, int i, F codes, int half) {
      float* out = tile + ((C == KvCodec::kInt8 ? 4 : 8) * w + half) * kW;
      const auto store = [out](int pair, F of_pair) { L::Store(out + 2 * pair * kW, of_pair); };
      if constexpr (C == KvCodec::kInt8) {
        store(2 * i, L::EvenBytes(codes));
        store(2 * i + 1, L::OddBytes(codes));
      } else {
        // Four bytes of a group's sixteen: channels j .. j + 3 and j + 16 .. j + 19.
        const int pair = i / 4 * 16 + i % 4 * 2;
        store(pair, L::NibblePairs(codes, 0));
        store(pair + 1, L::NibblePairs(codes, 8));
        store(pair + 8, L::NibblePairs(codes, 4));
        store(pair + 9, L::NibblePairs(codes, 12));
      }
    });
  }

  // q's rows in the order of the tile, and for int4 what its codes' 8 amounts to.
  template <class L>
  static void Round(const AttentionSpan& s) {
    using F = typename L::F;
    constexpr int kW = L::kWidth;
    constexpr int kGroupPairs = kInt4Group / 2;
    for (int row = 0; row < s.rows; ++row) {
      const float* q = s.q + row * s.key_stride;
      int32_t* pairs = s.q_codes + row * (s.key_stride / 2);
      const F factor = L::Set(RoundingOfQuery<L>(s, row).factor);
      for (int c = 0; c < s.key_dim; c += kW) L::StorePairs(pairs + c / 2, L::Mul(L::Load(q + c), factor));
      if constexpr (C == KvCodec::kInt4) {
        for (int g = 0; g < Groups<C>(s); ++g) {
          F sum = L::Zero();
          for (int p = 0; p < kGroupPairs; p += kW)
            sum = L::DotPairs(sum, L::LoadWords(pairs + g * kGroupPairs + p, kW), L::SetWord(0xfff8fff8u));
          s.q_offsets[row * OffsetStride(s) + g] = static_cast<int32_t>(L::ReduceAdd(L::WordsToF32(sum)));
        }
      }
    }
  }

  template <class L, int R>
  struct ScoreRowsOf {
    static void Run(const AttentionSpan& s, int row, uint32_t, const float* tile, const float* scales, float* scores) {
      using F = typename L::F;
      constexpr int kW = L::kWidth;
      // Few rows have few sums, which would wait for each other: their channels are shared out.
      constexpr int kSums = R == 1 ? 4 : R <= 3 ? 2 : 1;
      const int groups = Groups<C>(s);
      const int group_pairs = GroupChannels<C>(s) / 2;
      const int q_stride = s.key_stride / 2;
      const int32_t* q = s.q_codes + row * q_stride;
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
            const int32_t offset = s.q_offsets[(row + r) * OffsetStride(s) + g];
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
          const F worth = L::Set(s.q_scales[row + r]);
          StoreScores<L>(L::WordsToF32(acc[0][r][0]), L::WordsToF32(acc[0][r][1]), L::Mul(s0, worth), L::Mul(s1, worth),
                         /*add=*/g > 0, scores + r * kSpanKeys);
        }
      }
    }
  };
};

}  // namespace sluice
