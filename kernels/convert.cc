#include "kernels/convert.h"

#include <cstring>

#include "common/status.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void F32ToBf16RowPortable(const float* x, int64_t size, uint16_t* out) {
  for (int64_t i = 0; i < size; ++i) out[i] = F32ToBf16(x[i]);
}

void ConvertRow(const float* x, int64_t size, DType type, void* out) {
  if (type == DType::kF32) {
    std::memcpy(out, x, static_cast<size_t>(size) * sizeof(float));
    return;
  }
  SLUICE_CHECK(type == DType::kBf16, "no conversion to ", Traits(type).name.data());
  ActiveKernels().f32_to_bf16_row(x, size, static_cast<uint16_t*>(out));
}

}  // namespace sluice
