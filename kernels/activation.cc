#include "kernels/activation.h"

#include <cmath>

#include "kernels/portable_kernels.h"

namespace sluice {

void SiluMulRowPortable(const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void SiluMulRow(const float* gate, const float* up, int64_t size, float* out) {
  ActiveKernels().silu_mul_row(gate, up, size, out);
}

}  // namespace sluice
