// RMS norm, rotary embedding, SiLU and KV conversion on every instruction set.
#include <cmath>
#include <limits>
#include <vector>

#include "common/dtype.h"
#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/activation.h"
#include "kernels/convert.h"
#include "kernels/isa.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace sluice {
namespace {

class KernelOn : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }
};

std::vector<float> Random(size_t size, double range, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(size);
  for (float& v : x) v = static_cast<float>((rng.Uniform() * 2 - 1) * range);
  return x;
}

constexpr int64_t kSizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 48, 96, 576, 1000, 1536};

TEST_P(KernelOn, RmsNormAgreesWithTheFormula) {
  for (const int64_t size : kSizes) {
    const auto n = static_cast<size_t>(size);
    const std::vector<float> x = Random(n, 3, 1);
    const std::vector<float> w = Random(n, 2, 2);
    double sum = 0;
    for (const float v : x) sum += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(size) + 1e-3);
    std::vector<float> out(n + 1, 42.0f);
    RmsNormRow(x.data(), w.data(), size, 1e-3f, out.data());
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(out[i], x[i] * scale * w[i], 2e-6 * 6) << size << " at " << i;
    EXPECT_EQ(out[n], 42.0f);
  }
}

TEST_P(KernelOn, SiluMulAgreesWithTheFormulaAlsoFarOut) {
  for (const int64_t size : kSizes) {
    const auto n = static_cast<size_t>(size);
    std::vector<float> gate = Random(n, 100, 3);
    gate[0] = size > 4 ? -1000.0f : 0.0f;
    const std::vector<float> up = Random(n, 2, 4);
    std::vector<float> out(n + 1, 42.0f);
    SiluMulRow(gate.data(), up.data(), size, out.data());
    for (size_t i = 0; i < n; ++i) {
      const double want = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      ASSERT_NEAR(out[i], want, 1e-6 * std::abs(want) + 1e-30) << "silu(" << gate[i] << ")";
    }
    EXPECT_EQ(out[n], 42.0f);
  }
}

TEST_P(KernelOn, RopeRotatesEachPairByItsAngle) {
  for (const int head_dim : {2, 6, 16, 24, 64, 80, 128}) {
    for (const bool interleaved : {false, true}) {
      const auto n = static_cast<size_t>(head_dim);
      std::vector<double> frequencies(n / 2);
      for (size_t i = 0; i < n / 2; ++i) frequencies[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / head_dim);
      const std::vector<float> x = Random(n, 2, 5);
      std::vector<float> cos(n), sin(n), out = x;
      out.push_back(42.0f);
      RopeAngles(frequencies, 1.25, 4097, interleaved, cos.data(), sin.data());
      RopeHead(out.data(), cos.data(), sin.data(), head_dim, interleaved);
      for (size_t i = 0; i < n / 2; ++i) {
        const size_t a = interleaved ? 2 * i : i;
        const size_t b = interleaved ? 2 * i + 1 : i + n / 2;
        const double angle = 4097 * frequencies[i];
        EXPECT_NEAR(out[a], 1.25 * (x[a] * std::cos(angle) - x[b] * std::sin(angle)), 1e-6) << head_dim << " " << i;
        EXPECT_NEAR(out[b], 1.25 * (x[b] * std::cos(angle) + x[a] * std::sin(angle)), 1e-6) << head_dim << " " << i;
      }
      EXPECT_EQ(out[n], 42.0f);
    }
  }
}

TEST_P(KernelOn, Bf16RowsRoundAsTheScalarDoes) {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1.0f,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::lowest(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::denorm_min(),
                          1.00390625f,
                          1.01171875f};
  Rng rng(6);
  for (int i = 0; i < 20000; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng.Bits())));
  for (const size_t size : {x.size(), size_t{13}, size_t{3}}) {
    std::vector<uint16_t> out(size + 1, 0x1234);
    ConvertRow(x.data(), static_cast<int64_t>(size), DType::kBf16, out.data());
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(out[i], F32ToBf16(x[i])) << x[i];
    EXPECT_EQ(out[size], 0x1234);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, KernelOn, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace sluice
