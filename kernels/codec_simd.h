// The row kernels of the KV codecs (codec_kernels.h), written over lanes L. No product may merge with a sum into one
// rounding here: the bytes are a format, and every instruction set must make the same (the build says
// -ffp-contract=off).
#pragma once

#include "kernels/codec_kernels.h"

namespace sluice {

template <class L>
uint32_t MaxMagnitude(const float* x, int64_t n) {
  constexpr int kW = L::kWidth;
  typename L::F max = L::Zero();
  int64_t i = 0;
  for (; i + kW <= n; i += kW) max = L::MaxMagnitude(max, L::Load(x + i));
  if (i < n) max = L::MaxMagnitude(max, L::LoadFirst(x + i, static_cast<int>(n - i)));
  return L::ReduceMaxBits(max);
}

template <class L>
uint16_t MaxMagnitude16(const uint16_t* x, int64_t n) {
  constexpr int kW = 2 * L::kWidth;
  typename L::F max = L::Zero();
  int64_t i = 0;
  for (; i + kW <= n; i += kW) max = L::MaxMagnitude16(max, L::Load(reinterpret_cast<const float*>(x + i)));
  uint16_t rest = 0;
  for (; i < n; ++i) {
    const auto magnitude = static_cast<uint16_t>(x[i] & 0x7fffu);
    if (magnitude > rest) rest = magnitude;
  }
  const uint32_t pairs = L::ReduceMaxPairs(max);
  const auto low = static_cast<uint16_t>(pairs);
  const auto high = static_cast<uint16_t>(pairs >> 16);
  const uint16_t best = low > high ? low : high;
  return best > rest ? best : rest;
}

// Of conversions whose vector form reads and writes whole vectors.
template <class L>
void ToBf16(const float* x, int64_t n, uint16_t* out) {
  constexpr int kW = L::kWidth;
  int64_t i = 0;
  for (; i + kW <= n; i += kW) L::StoreBf16(out + i, L::Load(x + i));
  if (i < n) {
    uint16_t last[kW];
    L::StoreBf16(last, L::LoadFirst(x + i, static_cast<int>(n - i)));
    for (int k = 0; i < n; ++i, ++k) out[i] = last[k];
  }
}

template <class L>
void ToF16(const float* x, int64_t n, uint16_t* out) {
  constexpr int kW = L::kWidth;
  int64_t i = 0;
  for (; i + kW <= n; i += kW) L::StoreF16(out + i, L::Load(x + i));
  if (i < n) {
    uint16_t last[kW];
    L::StoreF16(last, L::LoadFirst(x + i, static_cast<int>(n - i)));
    for (int k = 0; i < n; ++i, ++k) out[i] = last[k];
  }
}

template <class L>
void FromBf16(const uint16_t* in, int64_t n, float* x) {
  constexpr int kW = L::kWidth;
  int64_t i = 0;
  for (; i + kW <= n; i += kW) L::Store(x + i, L::LoadBf16(in + i));
  if (i < n) {
    uint16_t last[kW] = {};
    for (int64_t k = i; k < n; ++k) last[k - i] = in[k];
    L::StoreFirst(x + i, static_cast<int>(n - i), L::LoadBf16(last));
  }
}

template <class L>
void FromF16(const uint16_t* in, int64_t n, float* x) {
  constexpr int kW = L::kWidth;
  int64_t i = 0;
  for (; i + kW <= n; i += kW) L::Store(x + i, L::LoadF16(in + i));
  if (i < n) {
    uint16_t last[kW] = {};
    for (int64_t k = i; k < n; ++k) last[k - i] = in[k];
    L::StoreFirst(x + i, static_cast<int>(n - i), L::LoadF16(last));
  }
}

// The stages of V vectors side by side, from h = 1 to V width / 2; then the factor, which is 1 before the last stage.
template <class L, int V>
void RotateVectors(const float* x, float factor, float* y) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  F v[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) v[i] = L::RotateWithin(L::Load(x + i * kW));
#pragma GCC unroll 8
  for (int h = 1; h < V; h *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) {
      if ((i & h) != 0) continue;
      const F a = v[i];
      const F b = v[i + h];
      v[i] = L::Add(a, b);
      v[i + h] = L::Sub(a, b);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) L::Store(y + i * kW, L::Mul(v[i], L::Set(factor)));
}

template <class L>
void RotateBlock(const float* x, int block, float* y) {
  constexpr int kW = L::kWidth;
  const auto factor = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(block)));
  if (block == kW) return RotateVectors<L, 1>(x, factor, y);
  if (block == 2 * kW) return RotateVectors<L, 2>(x, factor, y);
  if (block == 4 * kW) return RotateVectors<L, 4>(x, factor, y);
  if (block == 8 * kW) return RotateVectors<L, 8>(x, factor, y);
  for (int i = 0; i < block; i += 8 * kW) RotateVectors<L, 8>(x + i, 1.0f, y + i);
  for (int h = 8 * kW; h < block; h *= 2) {
    const typename L::F f = L::Set(2 * h == block ? factor : 1.0f);
    for (int i = 0; i < block; i += 2 * h) {
      for (int j = i; j < i + h; j += kW) {
        const typename L::F a = L::Load(y + j);
        const typename L::F b = L::Load(y + j + h);
        L::Store(y + j, L::Mul(L::Add(a, b), f));
        L::Store(y + j + h, L::Mul(L::Sub(a, b), f));
      }
    }
  }
}

template <class L>
void Rotate(const float* x, int n, int block, float* y) {
  for (int i = 0; i < n; i += block) RotateBlock<L>(x + i, block, y + i);
}

template <class L>
void ToFp8(const float* x, int n, float factor, uint8_t* codes) {
  const typename L::F f = L::Set(factor);
  for (int i = 0; i < n; i += L::kWidth) L::StoreFp8(codes + i, L::Mul(L::Load(x + i), f));
}

template <class L>
void FromFp8(const uint8_t* codes, int n, float scale, float* x) {
  const typename L::F s = L::Set(scale);
  for (int i = 0; i < n; i += L::kWidth) L::Store(x + i, L::Mul(L::LoadFp8(codes + i), s));
}

template <class L>
void ToInt8(const float* x, int n, float factor, int8_t* codes) {
  const typename L::F f = L::Set(factor);
  for (int i = 0; i < n; i += L::kWidth) L::StoreInt8(codes + i, L::Mul(L::Load(x + i), f));
}

template <class L>
void FromInt8(const int8_t* codes, int n, float scale, float* x) {
  const typename L::F s = L::Set(scale);
  for (int i = 0; i < n; i += L::kWidth) L::Store(x + i, L::Mul(L::LoadInt8(codes + i), s));
}

// A group's element of largest magnitude, the first of equals.
template <class L>
float ExtremeOf32(const float* x) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  F max = L::Zero();
  for (int i = 0; i < kInt4Group; i += kW) max = L::MaxMagnitude(max, L::Load(x + i));
  const uint32_t bits = L::ReduceMaxBits(max);
  uint32_t where = 0;
  for (int i = 0; i < kInt4Group; i += kW) where |= L::WhereMagnitude(L::Load(x + i), bits) << i;
  return x[__builtin_ctz(where)];
}

template <class L>
void ToInt4(const float* x, int groups, uint8_t* codes, uint16_t* scales) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  for (int first = 0; first < groups; first += kW) {
    const int count = groups - first < kW ? groups - first : kW;
    float extremes[kW] = {};
    for (int g = 0; g < count; ++g) extremes[g] = ExtremeOf32<L>(x + (first + g) * kInt4Group);
    uint16_t rounded[kW];
    L::StoreF16(rounded, L::Div(L::Load(extremes), L::Set(-8.0f)));
    for (uint16_t& s : rounded) {
      if ((s & 0x7fffu) == 0) s = 0x3c00;
    }
    float factors[kW];
    L::Store(factors, L::Div(L::Set(1.0f), L::LoadF16(rounded)));
    for (int g = 0; g < count; ++g) {
      // A group of zeros, or of values that vanish beside the least f16, has the scale 1 and, by the rule, codes of 8:
      // its values times 1 round to 0 by themselves.
      const int group = first + g;
      scales[group] = rounded[g];
      const F f = L::Set(factors[g]);
      for (int i = 0; i < kInt4Group / 2; i += kW) {
        const float* low = x + group * kInt4Group + i;
        L::StoreNibbles(codes + group * kInt4Group / 2 + i, L::Mul(L::Load(low), f),
                        L::Mul(L::Load(low + kInt4Group / 2), f));
      }
    }
  }
}

template <class L>
void FromInt4(const uint8_t* codes, int groups, const uint16_t* scales, float* x) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  for (int first = 0; first < groups; first += kW) {
    const int count = groups - first < kW ? groups - first : kW;
    uint16_t bits[kW] = {};
    for (int g = 0; g < count; ++g) bits[g] = scales[first + g];
    float factors[kW];
    L::Store(factors, L::LoadF16(bits));
    for (int g = 0; g < count; ++g) {
      const F f = L::Set(factors[g]);
      const int group = first + g;
      for (int i = 0; i < kInt4Group / 2; i += kW) {
        const uint8_t* bytes = codes + group * kInt4Group / 2 + i;
        L::Store(x + group * kInt4Group + i, L::Mul(L::LoadNibbles(bytes, 0), f));
        L::Store(x + group * kInt4Group + kInt4Group / 2 + i, L::Mul(L::LoadNibbles(bytes, 4), f));
      }
    }
  }
}

template <class L>
constexpr CodecKernels CodecKernelsOf() {
  return {MaxMagnitude<L>, MaxMagnitude16<L>, ToBf16<L>, FromBf16<L>, ToF16<L>,  FromF16<L>, Rotate<L>,
          ToFp8<L>,        FromFp8<L>,        ToInt8<L>, FromInt8<L>, ToInt4<L>, FromInt4<L>};
}

}  // namespace sluice
