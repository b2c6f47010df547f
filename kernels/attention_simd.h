// Attention over one span, written over lanes L (see lanes_avx2.cc): lanes are keys while scores are computed and
// channels while values are summed, so that nothing is summed across lanes but each row's softmax denominator.
//
// The order of a row's arithmetic is fixed: a score sums its channels in ascending order, a value its keys. How many
// rows share a pass changes only how often a tile is loaded.
#pragma once

#include "kernels/exp_simd.h"
#include "kernels/simd_kernels.h"

namespace sluice {

// A page's rows lie far from the next page's, so that hardware finds no stream to run ahead of. A row is asked for this
// many rows before it is read: K's rows one after the other, then V's.
inline constexpr int kRowsAhead = 48;

// Always inlined: GCC 12 takes a function that only prefetches for one without effects, and drops its calls.
__attribute__((always_inline)) static inline void PrefetchRow(const AttentionSpan& s, int row) {
  const void* p = row < s.keys ? s.k_rows[row] : row < 2 * s.keys ? s.v_rows[row - s.keys] : nullptr;
  if (p == nullptr) return;
  const int bytes = (row < s.keys ? s.key_dim : s.value_dim) * (s.bf16 ? 2 : 4);
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(p) + at);
}

// 2 width channels of `width` rows, all there: the common case of TransposeKeys without its questions.
template <class L>
void TransposeBf16Block(const void* const* rows, size_t offset, float* out) {
  constexpr int kW = L::kWidth;
  typename L::F r[kW];
#pragma GCC unroll 16
  for (int k = 0; k < kW; ++k)
    r[k] = L::Load(reinterpret_cast<const float*>(static_cast<const char*>(rows[k]) + offset));
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
void TransposeKeys(const AttentionSpan& s, int first, float* tile) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  int ahead = first + kRowsAhead;
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    float* out = tile + half * kW;
    const int step = s.bf16 ? 2 * kW : kW;  // channels of kW words
    for (int c = 0; c < s.key_dim; c += step) {
      const int left = s.key_dim - c;
      const size_t offset = static_cast<size_t>(c) * (s.bf16 ? 2 : 4);
      // A few at a time: a burst would fill the queue of misses and stop the loads behind it.
      for (int i = 0; i < 2 * kW * step / (2 * s.key_dim); ++i) PrefetchRow(s, ahead++);
      if (s.bf16 && keys >= kW && left >= step) {
        TransposeBf16Block<L>(s.k_rows + first + half * kW, offset, out + c * 2 * kW);
        continue;
      }
      const int words = s.bf16 ? (left < step ? left / 2 : kW) : (left < step ? left : kW);
      F r[kW];
#pragma GCC unroll 16
      for (int k = 0; k < kW; ++k) {
        r[k] = k < keys ? L::LoadWords(static_cast<const char*>(s.k_rows[first + half * kW + k]) + offset, words)
                        : L::Zero();
      }
      L::Transpose(r);
      for (int w = 0; w < words; ++w) {
        if (s.bf16) {
          L::Store(out + (c + 2 * w) * 2 * kW, L::LowHalfToF32(r[w]));
          L::Store(out + (c + 2 * w + 1) * 2 * kW, L::HighHalfToF32(r[w]));
        } else {
          L::Store(out + (c + w) * 2 * kW, r[w]);
        }
      }
    }
  }
}

template <class L, int R>
void ScoreRows(const float* q, int q_stride, const float* tile, int key_dim, float* scores) {
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
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    L::Store(scores + r * kSpanKeys, acc[r][0]);
    L::Store(scores + r * kSpanKeys + kW, acc[r][1]);
  }
}

// Calls F<R>::Run(args...) with R = rows, which is in [1, Max].
template <template <class, int> class F, class L, int Max, class... Args>
void WithRows(int rows, Args... args) {
  if constexpr (Max > 1) {
    if (rows < Max) return WithRows<F, L, Max - 1>(rows, args...);
  }
  F<L, Max>::Run(args...);
}

template <class L, int R>
struct ScoreRowsOf {
  static void Run(const float* q, int q_stride, const float* tile, int key_dim, float* scores) {
    ScoreRows<L, R>(q, q_stride, tile, key_dim, scores);
  }
};

template <class L>
void Scores(const AttentionSpan& s) {
  constexpr int kKeys = 2 * L::kWidth;
  for (int first = 0; first < s.keys; first += kKeys) {
    TransposeKeys<L>(s, first, s.k_tile);
    for (int row = 0; row < s.rows; row += L::kScoreRows) {
      const int rows = s.rows - row < L::kScoreRows ? s.rows - row : L::kScoreRows;
      WithRows<ScoreRowsOf, L, L::kScoreRows>(rows, s.q + row * s.key_stride, s.key_stride,
                                              static_cast<const float*>(s.k_tile), s.key_dim,
                                              s.scores + row * kSpanKeys + first);
    }
  }
}

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

// Values [first, first + values) as f32 [values][value_stride].
template <class L>
void WidenValues(const AttentionSpan& s, int first, int values, float* tile) {
  constexpr int kW = L::kWidth;
  for (int k = 0; k < values; ++k) {
    float* out = tile + k * s.value_stride;
    PrefetchRow(s, s.keys + first + k + kRowsAhead);
    int c = 0;
    if (s.bf16) {
      const uint16_t* row = static_cast<const uint16_t*>(s.v_rows[first + k]);
      for (; c + kW <= s.value_dim; c += kW) L::Store(out + c, L::LoadBf16(row + c));
      for (; c < s.value_dim; ++c) {
        const uint32_t bits = static_cast<uint32_t>(row[c]) << 16;
        __builtin_memcpy(out + c, &bits, 4);
      }
    } else {
      const float* row = static_cast<const float*>(s.v_rows[first + k]);
      for (; c + kW <= s.value_dim; c += kW) L::Store(out + c, L::Load(row + c));
      for (; c < s.value_dim; ++c) out[c] = row[c];
    }
    for (; c < s.value_stride; ++c) out[c] = 0;
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
template <class L, int R>
struct AddBf16ValuesOf {
  static void Run(const AttentionSpan& s) {
    using F = typename L::F;
    constexpr int kW = L::kWidth;
    constexpr int kC = 4;
    for (int c = 0; c < s.value_dim; c += kC * kW) {
      F acc[R][kC];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < kC; ++i) acc[r][i] = L::Zero();
      }
      for (int k = 0; k < s.keys; ++k) {
        if (c == 0) PrefetchRow(s, s.keys + k + kRowsAhead);
        const uint16_t* row = static_cast<const uint16_t*>(s.v_rows[k]) + c;
        F w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) w[r] = L::Set(s.scores[r * kSpanKeys + k]);
#pragma GCC unroll 16
        for (int i = 0; i < kC; ++i) {
          const F value = L::LoadBf16(row + i * kW);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[r][i] = L::Fma(w[r], value, acc[r][i]);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < kC; ++i) L::Store(s.out + r * s.value_stride + c + i * kW, acc[r][i]);
      }
    }
  }
};

template <class L>
bool ReadsValuesOnce(const AttentionSpan& s) {
  if (!s.bf16 || s.rows > L::kValueRows || s.value_dim % (4 * L::kWidth) != 0 || s.value_dim != s.value_stride)
    return false;
  for (int row = 0; row < s.rows; ++row) {
    if (s.visible[row] != s.keys) return false;
  }
  return true;
}

template <class L>
void AttendSpan(const AttentionSpan& s) {
  for (int row = 0; row < kRowsAhead; ++row) PrefetchRow(s, row);
  Scores<L>(s);
  for (int row = 0; row < s.rows; ++row) {
    if (s.visible[row] > 0) SoftmaxRow<L>(s.scores + row * kSpanKeys, s.visible[row], s.max + row, s.sum + row);
  }
  if (ReadsValuesOnce<L>(s)) {
    WithRows<AddBf16ValuesOf, L, L::kValueRows>(s.rows, s);
    return;
  }
  for (int i = 0; i < s.rows * s.value_stride; i += L::kWidth) L::Store(s.out + i, L::Zero());
  for (int first = 0; first < s.keys; first += kValueTile) {
    const int values = s.keys - first < kValueTile ? s.keys - first : kValueTile;
    WidenValues<L>(s, first, values, s.v_tile);
    AddValueTile<L>(s, first, values);
  }
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
