// Counter-based random numbers: a pure function of (key, counter), so that a sampler's state is two integers that
// travel in a handoff record, and a draw does not depend on what else ran before it.
#pragma once

#include <cstdint>

namespace sluice {

// splitmix64's finaliser over key and counter (Steele, Lea, Flood 2014). Not for secrets.
inline uint64_t RandomBits(uint64_t key, uint64_t counter) {
  uint64_t z = key + (counter + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Uniform in [0, 1), 53 bits.
inline double RandomUniform(uint64_t key, uint64_t counter) {
  return static_cast<double>(RandomBits(key, counter) >> 11) * 0x1.0p-53;
}

// A stream for code that wants "the next number".
class Rng {
 public:
  explicit Rng(uint64_t key) : key_(key) {}
  uint64_t Bits() { return RandomBits(key_, counter_++); }
  double Uniform() { return RandomUniform(key_, counter_++); }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace sluice
