// Rows of any tensor type as f32: the plain reference for every quantised product, and the embedding look-up.
// Formulas: ggml's block structs (ggml-common.h) and its dequantize_row_* functions.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace sluice {

// REQUIRES: `elements` is a multiple of the type's block; `row` holds RowBytes(type, elements).
void DequantizeRow(DType type, const void* row, int64_t elements, float* out);

}  // namespace sluice
