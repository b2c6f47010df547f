#include "kernels/convert.h"

#include <cstring>

#include "common/status.h"
#include "kernels/simd_kernels.h"

namespace sluice {

void ConvertRow(const float* x, int64_t size, DType type, void* out) {
  if (type == DType::kF32) {
    std::memcpy(out, x, static_cast<size_t>(size) * sizeof(float));
    return;
  }
  SLUICE_CHECK(type == DType::kBf16, "no conversion to ", Traits(type).name.data());
  ActiveKernels().codec.to_bf16(x, size, static_cast<uint16_t*>(out));
}

}  // namespace sluice
