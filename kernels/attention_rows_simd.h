// How attention reads the rows of each KV codec, written over lanes L. What a row's one scale multiplies is done once a
// key (scores, weights) and not once a channel, so codes are widened without it; int4 has a scale for 32 channels.
#pragma once

#include "kernels/simd_kernels.h"

namespace sluice {

// Whether a row has one scale, kept apart.
constexpr bool HasRowScale(KvCodec codec) { return codec == KvCodec::kFp8 || codec == KvCodec::kInt8; }
// Whether scores are sums of integer products.
constexpr bool HasIntegerKeys(KvCodec codec) { return codec == KvCodec::kInt8 || codec == KvCodec::kInt4; }
// Codes of fp8 are widened to 2^-8 times their value.
constexpr float UnitOf(KvCodec codec) { return codec == KvCodec::kFp8 ? 256.0f : 1.0f; }

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

}  // namespace sluice
