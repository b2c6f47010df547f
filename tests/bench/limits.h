// What this machine can do at best, measured in the run that compares with it: each figure is the best of several short
// loops on `threads` threads at once.
#pragma once

namespace sluice {

struct MachineLimits {
  double stream_bytes_per_s = 0;  // reading memory far larger than the caches
  double f32_macs_per_s = 0;      // independent fused multiply-adds in registers
  double int8_macs_per_s = 0;     // 8-bit products added to 16 bits in registers, two instructions for 32 of them
};

// Measured once for each number of threads and kept.
const MachineLimits& LimitsOf(int threads);

}  // namespace sluice
