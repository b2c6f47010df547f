// Rows of any tensor type as f32: the plain reference for every quantised product, and the embedding look-up.
// Formulas: ggml's block structs (ggml-common.h) and its dequantize_row_* functions.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "common/dtype.h"

namespace sluice {

// REQUIRES: `elements` is a multiple of the type's block; `row` holds RowBytes(type, elements); not kF8E4M3, whose
// scales are the matrix's.
void DequantizeRow(DType type, const void* row, int64_t elements, float* out);
// Row `row` of a matrix of any type.
void DequantizeRow(const ConstMatrixView& matrix, int64_t row, float* out);

// What the packing of the K types reads of a block of 256: the 6-bit scale and min of each 32 elements (Q4_K and Q5_K
// keep them in the 12 bytes at offset 4), and the unsigned code of element i.
struct KScale {
  uint8_t scale;
  uint8_t min;
};
KScale KScaleOf(const uint8_t* scales, int block);
uint8_t Q5_KCode(const uint8_t* block, int i);
uint8_t Q6_KCode(const uint8_t* block, int i);  // 32 is zero

}  // namespace sluice
