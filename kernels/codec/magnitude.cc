// What decides about zero, poisoned and saturated rows: the largest magnitude, compared as bits, among which NaNs stand
// above infinities and infinities above all numbers.
#include <algorithm>
#include <bit>

#include "kernels/portable_kernels.h"

namespace sluice {

uint32_t MaxMagnitudePortable(const float* x, int64_t n) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  return max;
}

uint16_t MaxMagnitude16Portable(const uint16_t* x, int64_t n) {
  uint16_t max = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, static_cast<uint16_t>(x[i] & 0x7FFFu));
  return max;
}

}  // namespace sluice
