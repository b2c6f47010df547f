// exp over lanes, for softmax and SiLU.
#pragma once

#include "kernels/simd_kernels.h"

namespace sluice {

// e^x within 2 ulp for x in [-87.3, 88]; exactly 1 at 0, 0 below the range (minus infinity included), e^88 above it,
// NaN for NaN. 2^n times e^r with |r| <= ln 2 / 2, e^r by its Taylor series to r^6 / 720, whose rest is below 1.3e-7.
template <class L>
typename L::F Exp(typename L::F x) {
  using F = typename L::F;
  const F bounded = L::Min(L::Set(88.0f), x);  // this order of operands lets NaN through
  const F n = L::Round(L::Mul(bounded, L::Set(1.44269504f)));
  // ln 2 in two parts, the first short enough that n times it is exact.
  F r = L::Fma(n, L::Set(-0.693359375f), bounded);
  r = L::Fma(n, L::Set(2.12194440e-4f), r);
  F p = L::Fma(r, L::Set(1.0f / 720), L::Set(1.0f / 120));
  p = L::Fma(p, r, L::Set(1.0f / 24));
  p = L::Fma(p, r, L::Set(1.0f / 6));
  p = L::Fma(p, r, L::Set(0.5f));
  p = L::Fma(p, r, L::Set(1.0f));
  p = L::Fma(p, r, L::Set(1.0f));
  return L::ZeroWhereLess(L::ScaleByPowerOfTwo(p, n), x, L::Set(-87.3f));
}

}  // namespace sluice
