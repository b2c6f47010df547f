// Attention over one span, written over lanes L (see lanes_avx2.cc): lanes are keys while scores are computed
// (attention_scores_simd.h) and channels while values are summed, so that nothing is summed across them but each row's
// softmax denominator.
//
// The order of a row's arithmetic is fixed: a score sums its channels in ascending order, a value its keys. How many
// rows share a pass changes only how often a tile is loaded.
#pragma once

#include "kernels/attention_scores_simd.h"
#include "kernels/exp_simd.h"

namespace sluice {

// Scores of one row to exp(score - max). The last vector's lanes beyond `visible` are set to -infinity first: they hold
// scores of later keys or nothing at all.
template <class L>
void SoftmaxRow(float* scores, int visible, float* max_out, float* sum_out) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  const int tail = visible % kW;
  const int end = visible - tail + (tail != 0 ? kW : 0);
  if (tail != 0) {
    float* last = scores + visible - tail;
    L::Store(last, L::KeepFirst(L::Load(last), tail, L::Set(-__builtin_inff())));
  }
  F max = L::Set(-__builtin_inff());
  for (int k = 0; k < end; k += kW) max = L::Max(max, L::Load(scores + k));
  const float m = L::ReduceMax(max);
  const F shift = L::Set(m);
  F sum = L::Zero();
  for (int k = 0; k < end; k += kW) {
    const F p = Exp<L>(L::Sub(L::Load(scores + k), shift));
    L::Store(scores + k, p);
    sum = L::Add(sum, p);
  }
  *max_out = m;
  *sum_out = L::ReduceAdd(sum);
}

// Weights times the scales of their values. Beyond `visible` they stay what they are: nothing.
template <class L>
void ScaleWeights(const float* scales, int visible, float* weights) {
  constexpr int kW = L::kWidth;
  int k = 0;
  for (; k + kW <= visible; k += kW) L::Store(weights + k, L::Mul(L::Load(weights + k), L::Load(scales + k)));
  for (; k < visible; ++k) weights[k] *= scales[k];
}

// Values [first, first + values) as f32 [values][value_stride].
template <class L, KvCodec C>
void WidenValues(const AttentionSpan& s, int first, int values, float* tile) {
  constexpr int kW = L::kWidth;
  const uint32_t part = ShareOfLines(s, Tiles(s.keys, kValuesAPart));
  for (int k = 0; k < values; ++k) {
    float* out = tile + k * s.value_stride;
    if (k % kValuesAPart == 0) PrefetchPart(s.ahead, part);
    const void* row = RowAt<char>(s.v_rows, first + k, s.v_offset);
    const void* scales = RowScales<C>(s, row, first + k);
    int c = 0;
    for (; c + kW <= s.value_dim; c += kW) L::Store(out + c, LoadChannels<L, C>(row, scales, 0, c));
    for (; c < s.value_stride; c += kW) {
      const int left = s.value_dim > c ? s.value_dim - c : 0;
      L::Store(out + c, LoadFirstChannels<L, C>(row, c, left));
    }
  }
}

// out[r][c .. c + C vectors) += p[r][k] v[k][c ..] for k in [0, keys), R rows together.
template <class L, int R, int C>
void AddValues(const float* p, const float* v, int keys, int value_stride, float* out) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  F acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) acc[r][c] = L::Load(out + r * value_stride + c * kW);
  }
  for (int k = 0; k < keys; ++k) {
    F w[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) w[r] = L::Set(p[r * kSpanKeys + k]);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const F value = L::Load(v + k * value_stride + c * kW);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[r][c] = L::Fma(w[r], value, acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) L::Store(out + r * value_stride + c * kW, acc[r][c]);
  }
}

template <class L, int R>
struct AddValuesOf {
  static void Run(const float* p, const float* v, int keys, int value_stride, float* out) {
    int c = 0;
    for (; c + 4 * L::kWidth <= value_stride; c += 4 * L::kWidth)
      AddValues<L, R, 4>(p, v + c, keys, value_stride, out + c);
    for (; c < value_stride; c += L::kWidth) AddValues<L, R, 1>(p, v + c, keys, value_stride, out + c);
  }
};

// The values of one tile for all rows. Rows that share a pass stop at the fewest keys that any of them sees, and each
// goes on alone: a weight of zero times a value that the row must not see could still be NaN.
template <class L>
void AddValueTile(const AttentionSpan& s, int first, int values) {
  for (int row = 0; row < s.rows; row += L::kValueRows) {
    const int rows = s.rows - row < L::kValueRows ? s.rows - row : L::kValueRows;
    int common = values;
    for (int r = row; r < row + rows; ++r) {
      const int seen = s.visible[r] - first;
      if (seen < common) common = seen;
    }
    if (common < 0) common = 0;
    if (common > 0) {
      WithRows<AddValuesOf, L, L::kValueRows>(rows, s.scores + row * kSpanKeys + first,
                                              static_cast<const float*>(s.v_tile), common, s.value_stride,
                                              s.out + row * s.value_stride);
    }
    for (int r = row; r < row + rows; ++r) {
      int seen = s.visible[r] - first;
      if (seen > values) seen = values;
      if (seen <= common) continue;
      AddValuesOf<L, 1>::Run(s.scores + r * kSpanKeys + first + common, s.v_tile + common * s.value_stride,
                             seen - common, s.value_stride, s.out + r * s.value_stride);
    }
  }
}

// The same sums as AddValueTile's for R rows that see all keys of the span, with values widened as they are read: a
// tile in memory pays only where many rows share it.
template <KvCodec C>
struct AddRows {
  template <class L, int R>
  struct Of {
    static void Run(const AttentionSpan& s) {
      using F = typename L::F;
      constexpr int kW = L::kWidth;
      constexpr int kC = 4;
      const uint32_t part = ShareOfLines(s, Tiles(s.keys, kValuesAPart) * (s.value_dim / (kC * kW)));
      for (int base = 0; base < s.value_dim; base += kC * kW) {
        F acc[R][kC];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
          for (int i = 0; i < kC; ++i) acc[r][i] = L::Zero();
        }
        for (int k = 0; k < s.keys; ++k) {
          if (k % kValuesAPart == 0) PrefetchPart(s.ahead, part);
          const void* row = RowAt<char>(s.v_rows, k, s.v_offset);
          const void* scales = RowScales<C>(s, row, k);
          F w[R];
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) w[r] = L::Set(s.scores[r * kSpanKeys + k]);
#pragma GCC unroll 16
          for (int i = 0; i < kC; ++i) {
            const F value = LoadChannels<L, C>(row, scales, base, i * kW);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) acc[r][i] = L::Fma(w[r], value, acc[r][i]);
          }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
          for (int i = 0; i < kC; ++i) L::Store(s.out + r * s.value_stride + base + i * kW, acc[r][i]);
        }
      }
    }
  };
};

template <class L>
bool ReadsValuesOnce(const AttentionSpan& s) {
  if (s.rows > L::kValueRows || s.value_dim % (4 * L::kWidth) != 0 || s.value_dim != s.value_stride) return false;
  for (int row = 0; row < s.rows; ++row) {
    if (s.visible[row] != s.keys) return false;
  }
  return true;
}

template <class L, KvCodec C>
void WeighKeysOf(const AttentionSpan& s) {
  Scores<L, C>(s);
  for (int row = 0; row < s.rows; ++row) {
    float* scores = s.scores + row * kSpanKeys;
    if (s.visible[row] == 0) continue;
    SoftmaxRow<L>(scores, s.visible[row], s.max + row, s.sum + row);
    if (s.weights != nullptr) {
      __builtin_memcpy(s.weights + row * s.weights_stride, scores, static_cast<size_t>(s.visible[row]) * sizeof(float));
    }
  }
}

// Scores hold the weights, whose values are widened to f32.
template <class L, KvCodec C>
void SumWidenedValues(const AttentionSpan& s) {
  if constexpr (HasRowScale(C)) {
    for (int row = 0; row < s.rows; ++row) ScaleWeights<L>(s.row_scales, s.visible[row], s.scores + row * kSpanKeys);
  }
  if (ReadsValuesOnce<L>(s)) {
    WithRows<AddRows<C>::template Of, L, L::kValueRows, const AttentionSpan&>(s.rows, s);
    return;
  }
  for (int i = 0; i < s.rows * s.value_stride; i += L::kWidth) L::Store(s.out + i, L::Zero());
  for (int first = 0; first < s.keys; first += kValueTile) {
    const int values = s.keys - first < kValueTile ? s.keys - first : kValueTile;
    WidenValues<L, C>(s, first, values, s.v_tile);
    AddValueTile<L>(s, first, values);
  }
}

template <class L, KvCodec C>
void SumValuesOf(const AttentionSpan& s) {
  if constexpr (HasRowScale(C)) LoadValueScales<L, C>(s, s.row_scales);
  if constexpr (L::kDotsBytes && C == KvCodec::kInt8) {
    AddByteValuesOfAll<L>(s);
  } else {
    SumWidenedValues<L, C>(s);
  }
}

template <class L, KvCodec C>
void AddColumns(const AttentionColumns& columns) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  const AttentionSpan& s = *columns.span;
  Scores<L, C>(s);
  for (int row = 0; row < s.rows; ++row) {
    const float* scores = s.scores + row * kSpanKeys;
    const F max = L::Set(columns.max[row]);
    const F factor = L::Set(columns.factors[row]);
    const int visible = s.visible[row];
    int k = 0;
    for (; k + kW <= visible; k += kW) {
      const F p = Exp<L>(L::Sub(L::Load(scores + k), max));
      L::Store(columns.columns + k, L::Fma(p, factor, L::Load(columns.columns + k)));
    }
    if (k == visible) continue;
    // Scores beyond are of keys that the row does not see, or of nothing.
    const F last = L::KeepFirst(L::Load(scores + k), visible - k, L::Set(-__builtin_inff()));
    L::Store(columns.columns + k, L::Fma(Exp<L>(L::Sub(last, max)), factor, L::Load(columns.columns + k)));
  }
}

// Calls F<C>::Run(args...) for the span's codec C.
template <template <KvCodec> class F, class... Args>
void WithCodec(KvCodec codec, const Args&... args) {
  switch (codec) {
    case KvCodec::kF32:
      return F<KvCodec::kF32>::Run(args...);
    case KvCodec::kBf16:
      return F<KvCodec::kBf16>::Run(args...);
    case KvCodec::kF16:
      return F<KvCodec::kF16>::Run(args...);
    case KvCodec::kFp8:
      return F<KvCodec::kFp8>::Run(args...);
    case KvCodec::kInt8:
      return F<KvCodec::kInt8>::Run(args...);
    case KvCodec::kInt4:
      return F<KvCodec::kInt4>::Run(args...);
    case KvCodec::kMlaFp8:
      return F<KvCodec::kMlaFp8>::Run(args...);
  }
}

template <class L>
struct OverLanes {
  template <KvCodec C>
  struct Weigh {
    static void Run(const AttentionSpan& s) { WeighKeysOf<L, C>(s); }
  };
  template <KvCodec C>
  struct Sum {
    static void Run(const AttentionSpan& s) { SumValuesOf<L, C>(s); }
  };
  template <KvCodec C>
  struct Columns {
    static void Run(const AttentionColumns& c) { AddColumns<L, C>(c); }
  };
};

template <class L>
void WeighKeys(const AttentionSpan& s) {
  WithCodec<OverLanes<L>::template Weigh>(s.codec, s);
}

template <class L>
void SumValues(const AttentionSpan& s) {
  WithCodec<OverLanes<L>::template Sum>(s.codec, s);
}

template <class L>
void SumColumns(const AttentionColumns& c) {
  WithCodec<OverLanes<L>::template Columns>(c.span->codec, c);
}

template <class L>
void MergeSpan(const AttentionMerge& m) {
  using F = typename L::F;
  const float max = *m.max > m.span_max ? *m.max : m.span_max;
  const F old_scale = Exp<L>(L::Set(*m.max - max));
  const F new_scale = Exp<L>(L::Set(m.span_max - max));
  const F sum = L::Fma(L::Set(*m.sum), old_scale, L::Mul(L::Set(m.span_sum), new_scale));
  for (int c = 0; c < m.dim; c += L::kWidth) {
    L::Store(m.acc + c, L::Fma(L::Load(m.acc + c), old_scale, L::Mul(L::Load(m.span_acc + c), new_scale)));
  }
  *m.max = max;
  *m.sum = L::First(sum);
}

}  // namespace sluice
