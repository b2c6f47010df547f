// The rotation of int8 and int4: orthonormal Walsh-Hadamard in natural order on consecutive blocks, which spreads an
// outlier channel over its block. It is its own inverse and keeps inner products, so attention rotates q once instead
// of every key back.
#pragma once

namespace sluice {

// Elements of a block: the largest power of two that divides `width`.
inline int HadamardBlock(int width) { return width & -width; }

// y = x rotated: stages h = 1, 2, 4, ... in this order, each (a, b) -> (a + b, a - b) for elements h apart, then times
// block^-1/2. The order is part of the format. y may be x. REQUIRES: width is a multiple of 16.
void RotateRow(const float* x, int width, float* y);

}  // namespace sluice
