#include "common/dtype.h"

#include <array>
#include <cmath>

namespace sluice {

const DTypeTraits& Traits(DType type) {
  static constexpr std::array<DTypeTraits, kDTypeCount> kTraits = {{
      {"F32", 1, 4},
      {"F16", 1, 2},
      {"BF16", 1, 2},
      {"Q8_0", 32, 34},
      {"Q4_0", 32, 18},
      {"Q4_1", 32, 20},
      {"Q4_K", 256, 144},
      {"Q5_K", 256, 176},
      {"Q6_K", 256, 210},
      {"F8_E4M3", 1, 1},
  }};
  return kTraits[static_cast<size_t>(type)];
}

uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7FC0;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude == 0x7F800000u) return static_cast<uint16_t>(sign | 0x7F80u);
  const uint32_t rounded = (magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(sign | (rounded >= 0x7F80u ? 0x7F7Fu : rounded));
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7E00;
  if (magnitude == 0x7F800000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the target is subnormal with step 2^-24: the rounding of nearbyint is to even in the default mode.
    const float steps = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1.0p24f);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(steps));
  }
  const uint32_t rounded = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  return static_cast<uint16_t>(sign | (rounded >= 0x7C00u ? 0x7BFFu : rounded));
}

float E4m3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 0xFu;
  const uint32_t mantissa = code & 7u;
  if ((code & 0x7Fu) == 0x7Fu) return std::bit_cast<float>(0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-9f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

uint8_t F32ToE4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7F;
  if (magnitude < 0x3C800000u) {  // below 2^-6 the step is 2^-9
    const float steps = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1.0p9f);
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(steps));
  }
  const uint32_t rounded = (magnitude - 0x3C000000u + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
  return static_cast<uint8_t>(sign | (rounded > 0x7Eu ? 0x7Eu : rounded));
}

}  // namespace sluice
