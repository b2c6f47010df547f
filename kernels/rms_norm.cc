#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/portable_kernels.h"

namespace sluice {

void RmsNormRowPortable(const float* x, const float* weight, int64_t size, float eps, float* out) {
  float sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < size; ++i) out[i] = x[i] * scale * weight[i];
}

void RmsNormRow(const float* x, const float* weight, int64_t size, float eps, float* out) {
  ActiveKernels().rms_norm_row(x, weight, size, eps, out);
}

}  // namespace sluice
