// Root-mean-square normalisation of a row (Zhang, Sennrich 2019).
#pragma once

#include <cstdint>

namespace sluice {

// out[i] = x[i] weight[i] / sqrt(mean(x^2) + eps). `out` may be x.
void RmsNormRow(const float* x, const float* weight, int64_t size, float eps, float* out);

}  // namespace sluice
