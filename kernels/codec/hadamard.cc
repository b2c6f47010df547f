#include "kernels/codec/hadamard.h"

#include <cmath>
#include <cstring>

#include "common/status.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void RotatePortable(const float* x, int n, int block, float* y) {
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  if (x != y) std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
  for (int h = 1; h < block; h *= 2) {
    for (int i = 0; i < n; i += 2 * h) {
      for (int j = i; j < i + h; ++j) {
        const float a = y[j];
        const float b = y[j + h];
        y[j] = a + b;
        y[j + h] = a - b;
      }
    }
  }
  for (int i = 0; i < n; ++i) y[i] *= factor;
}

void RotateRow(const float* x, int width, float* y) {
  SLUICE_CHECK(width > 0 && width % 16 == 0, "width ", width);
  ActiveKernels().codec.rotate(x, width, HadamardBlock(width), y);
}

}  // namespace sluice
