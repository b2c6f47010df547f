#include "common/dtype.h"

#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// Brute force: the nearest of all finite 16-bit values, ties to the even code.
template <typename Decode>
uint16_t NearestByScan(float value, Decode decode, uint16_t largest) {
  const float magnitude = std::fabs(value);
  uint16_t best = 0;
  for (uint16_t code = 0; code <= largest; ++code) {
    const double error = std::fabs(static_cast<double>(decode(code)) - magnitude);
    const double best_error = std::fabs(static_cast<double>(decode(best)) - magnitude);
    if (error < best_error || (error == best_error && code % 2 == 0)) best = code;
  }
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

TEST(Dtype, RoundsToTheNearest16BitValue) {
  for (const float v : {0.0f, -0.0f, 1.0f, 1.0f / 3, -3.14159f, 65503.0f, 65519.9f, 65520.0f, 5.9e-8f, 2.98e-8f,
                        6.1e-5f, 0x1.001p0f, 0x1.003p0f, 0x1.01p0f, 0x1.03p0f}) {
    EXPECT_EQ(F32ToF16(v), NearestByScan(v, F16ToF32, 0x7BFF)) << v;
    EXPECT_EQ(F32ToBf16(v), NearestByScan(v, Bf16ToF32, 0x7F7F)) << v;
  }
}

TEST(Dtype, RoundsToTheNearestE4m3Value) {
  for (int i = 0; i < 4000; ++i) {
    const float v = std::ldexp(static_cast<float>(1000 + i), i % 21 - 21) * (i % 2 == 0 ? 1.0f : -1.0f);
    const auto decode = [](uint16_t code) { return E4m3ToF32(static_cast<uint8_t>(code)); };
    const uint16_t nearest = NearestByScan(v, decode, 0x7E);
    EXPECT_EQ(F32ToE4m3(v), (nearest & 0x7F) | (std::signbit(v) ? 0x80 : 0)) << v;
  }
}

TEST(Dtype, EveryFinite16BitValueSurvivesARoundTrip) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const uint16_t bits = static_cast<uint16_t>(code);
    if ((bits & 0x7C00) != 0x7C00) {
      EXPECT_EQ(F32ToF16(F16ToF32(bits)), bits);
    }
    if ((bits & 0x7F80) != 0x7F80) {
      EXPECT_EQ(F32ToBf16(Bf16ToF32(bits)), bits);
    }
  }
}

TEST(Dtype, FiniteValuesBeyondTheRangeSaturate) {
  EXPECT_EQ(F32ToF16(1e30f), 0x7BFF);
  EXPECT_EQ(F32ToF16(-1e30f), 0xFBFF);
  EXPECT_EQ(F32ToBf16(std::numeric_limits<float>::max()), 0x7F7F);
}

TEST(Dtype, KeepsInfinitiesAndMakesNansCanonical) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(F32ToF16(inf), 0x7C00);
  EXPECT_EQ(F32ToF16(-inf), 0xFC00);
  EXPECT_EQ(F32ToF16(nan), 0x7E00);
  EXPECT_EQ(F32ToBf16(inf), 0x7F80);
  EXPECT_EQ(F32ToBf16(-inf), 0xFF80);
  EXPECT_EQ(F32ToBf16(nan), 0x7FC0);
}

TEST(Dtype, RowsAreWholeBlocks) {
  EXPECT_EQ(RowBytes(DType::kQ4_1, 576), 576u / 32 * 20);
  EXPECT_EQ(RowBytes(DType::kQ6_K, 512), 420u);
  EXPECT_EQ(RowBytes(DType::kF32, 7), 28u);
}

}  // namespace
}  // namespace sluice
