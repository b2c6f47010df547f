#include "kernels/rope.h"

#include <cmath>

#include "kernels/portable_kernels.h"

namespace sluice {

void RopeAngles(absl::Span<const double> frequencies, double magnitude, double position, bool interleaved, float* cos,
                float* sin) {
  const size_t pairs = frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const size_t first = interleaved ? 2 * i : i;
    const size_t second = interleaved ? 2 * i + 1 : i + pairs;
    const double angle = position * frequencies[i];
    cos[first] = cos[second] = static_cast<float>(std::cos(angle) * magnitude);
    sin[second] = static_cast<float>(std::sin(angle) * magnitude);
    sin[first] = -sin[second];
  }
}

void RopeHeadPortable(float* x, const float* cos, const float* sin, int head_dim, bool interleaved) {
  for (int i = 0; i < head_dim / 2; ++i) {
    const int first = interleaved ? 2 * i : i;
    const int second = interleaved ? 2 * i + 1 : i + head_dim / 2;
    const float a = x[first];
    const float b = x[second];
    x[first] = a * cos[first] + b * sin[first];
    x[second] = b * cos[second] + a * sin[second];
  }
}

void RopeHead(float* x, const float* cos, const float* sin, int head_dim, bool interleaved) {
  ActiveKernels().rope_head(x, cos, sin, head_dim, interleaved);
}

}  // namespace sluice
