// How attention reads the rows of each KV codec, written over lanes L. What a row's one scale multiplies is done once a
// key (scores, weights) and not once a channel, so codes are widened without it; int4 has a scale for 32 channels.
#pragma once

#include "kernels/simd_kernels.h"

namespace sluice {

// Whether a row has one scale, kept apart.
constexpr bool HasRowScale(KvCodec codec) { return codec == KvCodec::kFp8 || codec == KvCodec::kInt8; }
// Whether scores are sums of integer products.
constexpr bool HasIntegerKeys(KvCodec codec) { return codec == KvCodec::kInt8 || codec == KvCodec::kInt4; }
// Channels of an integer key that share a scale, and so a sum of products.
template <KvCodec C>
int GroupChannels(const AttentionSpan& s) {
  return C == KvCodec::kInt4 ? kInt4Group : s.key_dim;
}
template <KvCodec C>
int Groups(const AttentionSpan& s) {
  return C == KvCodec::kInt4 ? s.key_dim / kInt4Group : 1;
}
// Codes of fp8 are widened to 2^-8 times their value.
constexpr float UnitOf(KvCodec codec) { return codec == KvCodec::kFp8 ? 256.0f : 1.0f; }

// Calls F<R>::Run(args...) with R = rows, which is in [1, Max].
template <template <class, int> class F, class L, int Max, class... Args>
void WithRows(int rows, Args... args) {
  if constexpr (Max > 1) {
    if (rows < Max) return WithRows<F, L, Max - 1, Args...>(rows, args...);
  }
  F<L, Max>::Run(args...);
}

static inline int Tiles(int n, int of) { return (n + of - 1) / of; }

// What is asked for ahead with each of `parts` parts of the work, in 2^-16 of a line (PrefetchPart). Such a part is
// that many values, or some words of keys.
constexpr int kValuesAPart = 4;
static inline uint32_t ShareOfLines(const AttentionSpan& s, int parts) {
  const uint64_t lines = static_cast<uint64_t>(s.ahead_lines) << 16;
  return static_cast<uint32_t>((lines + static_cast<uint64_t>(parts) - 1) / static_cast<uint64_t>(parts));
}

template <class T>
const T* RowAt(const void* const* rows, int k, size_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(rows[k]) + offset);
}

// A vector of a row's channels from base + c on, all of them there. `base` is a multiple of 32; where `c` is known to
// the compiler, so is which half of an int4 group is meant.
template <class L, KvCodec C>
typename L::F LoadChannels(const void* row, const void* scales, int base, int c) {
  if constexpr (C == KvCodec::kF32) return L::Load(static_cast<const float*>(row) + base + c);
  if constexpr (C == KvCodec::kBf16) return L::LoadBf16(static_cast<const uint16_t*>(row) + base + c);
  if constexpr (C == KvCodec::kF16) return L::LoadF16(static_cast<const uint16_t*>(row) + base + c);
  if constexpr (C == KvCodec::kFp8) return L::LoadSmallFp8(static_cast<const uint8_t*>(row) + base + c);
  if constexpr (C == KvCodec::kInt8) return L::LoadInt8(static_cast<const int8_t*>(row) + base + c);
  if constexpr (C == KvCodec::kInt4) {
    const uint8_t* bytes = static_cast<const uint8_t*>(row) + base / 2 + c / kInt4Group * 16 + c % 16;
    const uint16_t scale = static_cast<const uint16_t*>(scales)[(base + c) / kInt4Group];
    return L::Mul(L::LoadNibbles(bytes, c % kInt4Group < 16 ? 0 : 4), L::SetF16(scale));
  }
  if constexpr (C == KvCodec::kMlaFp8) {  // of the latent
    const float scale = static_cast<const float*>(scales)[(base + c) / kMlaTile] * 256.0f;
    return L::Mul(L::LoadSmallFp8(static_cast<const uint8_t*>(row) + base + c), L::Set(scale));
  }
}

// Where int4 and mla-fp8 keep the scales of a row of V; other codecs have one or none.
template <KvCodec C>
const void* RowScales(const AttentionSpan& s, const void* row, int k) {
  if constexpr (C == KvCodec::kInt4) return RowAt<char>(s.v_scales, k, s.v_scale_offset);
  if constexpr (C == KvCodec::kMlaFp8) return static_cast<const char*>(row) + s.value_dim;
  return nullptr;
}

// The first n of those from c on, the others zero. For codecs whose rows may be of any width.
template <class L, KvCodec C>
typename L::F LoadFirstChannels(const void* row, int c, int n) {
  if constexpr (C == KvCodec::kF32) return L::LoadFirst(static_cast<const float*>(row) + c, n);
  if constexpr (C == KvCodec::kBf16 || C == KvCodec::kF16) {
    uint16_t some[L::kWidth] = {};
    for (int i = 0; i < n; ++i) some[i] = static_cast<const uint16_t*>(row)[c + i];
    return LoadChannels<L, C>(some, nullptr, 0, 0);
  }
  return L::Zero();
}

// The scales of keys [first, first + 2 width), zero beyond the span, as [groups][2 width].
template <class L, KvCodec C>
void LoadKeyScales(const AttentionSpan& s, int first, float* out) {
  constexpr int kKeys = 2 * L::kWidth;
  const int keys = s.keys - first < kKeys ? s.keys - first : kKeys;
  if constexpr (HasRowScale(C)) {
    for (int k = 0; k < keys; ++k) out[k] = *RowAt<float>(s.k_scales, first + k, s.k_scale_offset) * UnitOf(C);
    for (int k = keys; k < kKeys; ++k) out[k] = 0;
  }
  if constexpr (C == KvCodec::kInt4) {
    for (int g = 0; g < s.key_dim / kInt4Group; ++g) {
      uint16_t bits[kKeys] = {};
      for (int k = 0; k < keys; ++k) bits[k] = RowAt<uint16_t>(s.k_scales, first + k, s.k_scale_offset)[g];
      L::Store(out + g * kKeys, L::LoadF16(bits));
      L::Store(out + g * kKeys + L::kWidth, L::LoadF16(bits + L::kWidth));
    }
  }
}

// Of all values of the span, zero up to a whole number of vectors.
template <class L, KvCodec C>
void LoadValueScales(const AttentionSpan& s, float* out) {
  int k = 0;
  for (; k < s.keys; ++k) out[k] = *RowAt<float>(s.v_scales, k, s.v_scale_offset) * UnitOf(C);
  for (; k % L::kWidth != 0; ++k) out[k] = 0;
}

// Calls store(w, i, codes, half) for each word w + i of a row of K, w a multiple of `width`, with that word of `width`
// keys: keys [first, first + width) where half is 0, the next ones where it is 1. Of keys beyond the span it is zero.
// `part` of what is asked for ahead goes with each `width` words of as many keys.
template <class L, class Store>
void TransposeWords(const AttentionSpan& s, int first, uint32_t part, const Store& store) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  const int words = s.k_bytes / 4;
  for (int half = 0; half < 2; ++half) {
    const int keys = s.keys - first - half * kW;
    const void* const* rows = s.k_rows + first + half * kW;
    for (int w = 0; w < words; w += kW) {
      PrefetchPart(s.ahead, part);
      const int n = words - w < kW ? words - w : kW;
      F r[kW];
      if (keys >= kW && n == kW) {
#pragma GCC unroll 16
        for (int k = 0; k < kW; ++k) r[k] = L::Load(RowAt<float>(rows, k, s.k_offset) + w);
        L::Transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < kW; ++i) store(w, i, r[i], half);
        continue;
      }
#pragma GCC unroll 16
      for (int k = 0; k < kW; ++k) r[k] = k < keys ? L::LoadWords(RowAt<float>(rows, k, s.k_offset) + w, n) : L::Zero();
      L::Transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < kW; ++i) {
        if (i < n) store(w, i, r[i], half);
      }
    }
  }
}

// How floats become whole numbers: times `factor`, and one is worth `worth`.
struct Rounding {
  float factor;
  float worth;
};
// For floats whose largest magnitude, as bits, becomes `top`. Of next to nothing everywhere nothing is left; where
// there is an infinity or a NaN, whatever comes of it is worth NaN.
static inline Rounding RoundingTo(float top, uint32_t max_bits) {
  float max;
  __builtin_memcpy(&max, &max_bits, sizeof(max));
  if (max_bits >= 0x7f800000u) return {0.0f, __builtin_nanf("")};
  if (max < 0x1p-100f) return {0.0f, 0.0f};
  return {top / max, max / top};
}

// What the largest channel of a query of int8 or int4 keys is rounded to: two signed bytes have it, and no sum of
// products leaves 32 bits.
static inline float TopQuery(const AttentionSpan& s) {
  constexpr int kTwoBytes = 127 * 256 + 127;
  const int bound = s.codec == KvCodec::kInt8 ? INT32_MAX / 128 / s.key_dim : kTwoBytes;
  return static_cast<float>(bound < kTwoBytes ? bound : kTwoBytes);
}

// How the query of a row is rounded; what one is worth is kept for its scores.
template <class L>
Rounding RoundingOfQuery(const AttentionSpan& s, int row) {
  const float* q = s.q + row * s.key_stride;
  typename L::F max = L::Zero();
  for (int c = 0; c < s.key_dim; c += L::kWidth) max = L::MaxMagnitude(max, L::Load(q + c));
  const Rounding rounding = RoundingTo(TopQuery(s), L::ReduceMaxBits(max));
  s.q_scales[row] = rounding.worth;
  return rounding;
}

// out[0 .. 2 width) = x0 s0 and x1 s1, or that more.
template <class L>
void StoreScores(typename L::F x0, typename L::F x1, typename L::F s0, typename L::F s1, bool add, float* out) {
  x0 = L::Mul(x0, s0);
  x1 = L::Mul(x1, s1);
  if (add) {
    x0 = L::Add(L::Load(out), x0);
    x1 = L::Add(L::Load(out + L::kWidth), x1);
  }
  L::Store(out, x0);
  L::Store(out + L::kWidth, x1);
}

// Words of q_offsets a row: one, or one for each group of channels.
static inline int OffsetStride(const AttentionSpan& s) { return (s.key_stride + kInt4Group - 1) / kInt4Group; }

}  // namespace sluice
