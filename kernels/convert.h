// f32 rows to rows of floats of another type.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace sluice {

// Rounds as F32ToBf16 of common/dtype.h does, element by element. REQUIRES: type is kF32 or kBf16.
void ConvertRow(const float* x, int64_t size, DType type, void* out);

}  // namespace sluice
