#include "kernels/dequantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

std::string ReadData(const std::string& name) {
  std::ifstream in(std::string(SLUICE_TEST_DATA) + "/dequantize/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class DequantizeGolden : public testing::TestWithParam<DType> {};

// tests/data/dequantize/make_dequantize.py made the data. Up to two roundings apart where the products associate
// otherwise.
TEST_P(DequantizeGolden, AgreesWithTheGgufPackage) {
  const DTypeTraits& traits = Traits(GetParam());
  const std::string bytes = ReadData(std::string(traits.name) + ".bytes");
  const std::string golden_bytes = ReadData(std::string(traits.name) + ".f32");
  std::vector<float> golden(golden_bytes.size() / sizeof(float));
  std::memcpy(golden.data(), golden_bytes.data(), golden_bytes.size());
  ASSERT_EQ(golden.size(), 1024u);
  ASSERT_EQ(bytes.size(), RowBytes(GetParam(), golden.size()));

  std::vector<float> values(golden.size());
  DequantizeRow(GetParam(), bytes.data(), static_cast<int64_t>(values.size()), values.data());

  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_NEAR(values[i], golden[i], 3e-7f * std::max(1.0f, std::abs(golden[i]))) << traits.name << " element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeGolden,
                         testing::Values(DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ5_K,
                                         DType::kQ6_K),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

TEST(Dequantize, FloatTypesAreExact) {
  const std::vector<float> values = {0.0f, -1.5f, 0.000030517578125f, 96.0f};
  std::vector<uint16_t> f16, bf16;
  for (const float v : values) {
    f16.push_back(F32ToF16(v));
    bf16.push_back(F32ToBf16(v));
  }
  std::vector<float> out(values.size());
  DequantizeRow(DType::kF32, values.data(), 4, out.data());
  EXPECT_EQ(out, values);
  DequantizeRow(DType::kF16, f16.data(), 4, out.data());
  EXPECT_EQ(out, values);
  DequantizeRow(DType::kBf16, bf16.data(), 4, out.data());
  EXPECT_EQ(out, values);
}

// 1.5 times a scale of its own for each block of 128, the last ones smaller.
TEST(Dequantize, Fp8CodesAreMultipliedByTheScaleOfTheirBlock) {
  const int64_t rows = 130, cols = 257;
  const std::vector<uint8_t> codes(static_cast<size_t>(rows * cols), 0x3C);
  const std::vector<float> scales = {0.5f, 1, 2, 4, 8, 16};
  const ConstMatrixView view = {codes.data(), DType::kF8E4M3, rows, cols, static_cast<size_t>(cols), scales.data()};
  std::vector<float> row(static_cast<size_t>(cols));
  for (const int64_t r : {0, 127, 128, 129}) {
    DequantizeRow(view, r, row.data());
    for (const int64_t c : {0, 127, 128, 255, 256}) {
      EXPECT_EQ(row[static_cast<size_t>(c)], 1.5f * scales[static_cast<size_t>(r / 128 * 3 + c / 128)])
          << r << " " << c;
    }
  }
}

}  // namespace
}  // namespace sluice
