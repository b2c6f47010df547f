// RMS norm, rotary embedding and SiLU, written over lanes L.
#pragma once

#include "kernels/exp_simd.h"
#include "kernels/simd_kernels.h"

namespace sluice {

template <class L>
void RmsNormRow(const float* x, const float* weight, int64_t size, float eps, float* out) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  F even = L::Zero();
  F odd = L::Zero();
  int64_t i = 0;
  for (; i + 2 * kW <= size; i += 2 * kW) {
    const F a = L::Load(x + i);
    const F b = L::Load(x + i + kW);
    even = L::Fma(a, a, even);
    odd = L::Fma(b, b, odd);
  }
  for (; i < size; i += kW) {
    const F a = size - i < kW ? L::LoadFirst(x + i, static_cast<int>(size - i)) : L::Load(x + i);
    even = L::Fma(a, a, even);
  }
  const float sum = L::ReduceAdd(L::Add(even, odd));
  const F scale = L::Set(1.0f / __builtin_sqrtf(sum / static_cast<float>(size) + eps));
  for (i = 0; i + kW <= size; i += kW) L::Store(out + i, L::Mul(L::Mul(L::Load(x + i), scale), L::Load(weight + i)));
  if (i < size) {
    const int left = static_cast<int>(size - i);
    L::StoreFirst(out + i, left, L::Mul(L::Mul(L::LoadFirst(x + i, left), scale), L::LoadFirst(weight + i, left)));
  }
}

template <class L>
void RopeHalf(float* x, const float* cos, const float* sin, int head_dim) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += kW) {
    const int n = half - i < kW ? half - i : kW;
    const F a = L::LoadFirst(x + i, n);
    const F b = L::LoadFirst(x + half + i, n);
    const F low = L::Fma(b, L::LoadFirst(sin + i, n), L::Mul(a, L::LoadFirst(cos + i, n)));
    const F high = L::Fma(a, L::LoadFirst(sin + half + i, n), L::Mul(b, L::LoadFirst(cos + half + i, n)));
    L::StoreFirst(x + i, n, low);
    L::StoreFirst(x + half + i, n, high);
  }
}

template <class L>
void RopeHead(float* x, const float* cos, const float* sin, int head_dim, bool interleaved) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  if (!interleaved) return RopeHalf<L>(x, cos, sin, head_dim);
  for (int i = 0; i < head_dim; i += kW) {
    const int n = head_dim - i < kW ? head_dim - i : kW;
    const F a = L::LoadFirst(x + i, n);
    const F rotated = L::Fma(L::SwapPairs(a), L::LoadFirst(sin + i, n), L::Mul(a, L::LoadFirst(cos + i, n)));
    L::StoreFirst(x + i, n, rotated);
  }
}

template <class L>
void SiluMulRow(const float* gate, const float* up, int64_t size, float* out) {
  using F = typename L::F;
  constexpr int kW = L::kWidth;
  for (int64_t i = 0; i < size; i += kW) {
    const int n = size - i < kW ? static_cast<int>(size - i) : kW;
    const F g = L::LoadFirst(gate + i, n);
    const F denominator = L::Add(L::Set(1.0f), Exp<L>(L::Sub(L::Zero(), g)));
    L::StoreFirst(out + i, n, L::Mul(L::Div(g, denominator), L::LoadFirst(up + i, n)));
  }
}

}  // namespace sluice
