#include "kernels/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "kernels/matmul_kernels.h"
#include "tests/kernels/random_weights.h"

namespace sluice {
namespace {

constexpr double kUlp = 0x1.0p-24;  // largest relative error of one f32 operation

struct Case {
  Isa isa;
  DType type;
  bool exact;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Isa isa : SupportedIsas()) {
    for (const DType type : kAllTypes) {
      cases.push_back({isa, type, false});
      const bool differs = Traits(type).block_elements > 1 || type == DType::kBf16 || type == DType::kF8E4M3;
      if (differs) cases.push_back({isa, type, true});
    }
  }
  return cases;
}

class MatmulTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam().isa).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  RandomWeights Weights(int64_t rows, int64_t cols) const {
    return RandomWeights::Make(GetParam().type, rows, cols, static_cast<uint32_t>(rows * 1000 + cols));
  }

  PackedMatrix Pack(const RandomWeights& w, ThreadPool& pool) const {
    return *PackedMatrix::Pack(w.view, {.exact = GetParam().exact}, pool);
  }

  // cols of the smallest matrices that the type allows, and odd multiples of it.
  std::vector<int64_t> Columns() const {
    const int block = Traits(GetParam().type).block_elements;
    if (block == 1) return {1, 7, 64, 333};
    if (block == 32) return {32, 96, 576, 1056};
    return {256, 768};
  }
};

// What the product multiplies with: the weights, which FP8 ones became in bf16 where they were not packed exactly.
std::vector<float> PackedRow(const PackedMatrix& packed, const RandomWeights& w, int64_t r) {
  std::vector<float> row = w.Row(r);
  if (packed.type() != DType::kBf16) return row;
  for (float& v : row) v = Bf16ToF32(F32ToBf16(v));
  return row;
}

// What the product reads: x itself, or x rounded to 8 bits or to bf16.
std::vector<double> Seen(const PackedMatrix& w, const Activations& x, int64_t token) {
  std::vector<double> seen(static_cast<size_t>(x.cols()));
  const RoundedBlock* blocks = x.rounded() + token * ((x.cols() + 31) / 32);
  const RoundedBlock* remainder = w.rounds_activations() ? x.remainder(token) : nullptr;
  for (int64_t c = 0; c < x.cols(); ++c) {
    const RoundedBlock& block = blocks[c / 32];
    const float value = x.f32()[token * x.f32_stride() + c];
    seen[static_cast<size_t>(c)] = w.rounds_activations() ? static_cast<double>(block.scale) * block.q[c % 32]
                                   : w.rounds_to_bf16()   ? Bf16ToF32(F32ToBf16(value))
                                                          : value;
    if (remainder != nullptr) {
      seen[static_cast<size_t>(c)] += static_cast<double>(remainder[c / 32].scale) * remainder[c / 32].q[c % 32];
    }
  }
  return seen;
}

struct Expected {
  double value;
  double tolerance;
};

// Float types add one rounded product a column. Quantised types add two numbers a block, each with some four roundings,
// whose size is bounded by code * scale and the offset: at most four times the row's largest weight here, times |x|.
Expected Reference(const PackedMatrix& packed, const std::vector<float>& w, const std::vector<double>& x) {
  double sum = 0, magnitude = 0, activations = 0, largest = 0;
  for (size_t c = 0; c < w.size(); ++c) {
    sum += static_cast<double>(w[c]) * x[c];
    magnitude += std::fabs(w[c] * x[c]);
    activations += std::fabs(x[c]);
    largest = std::max<double>(largest, std::fabs(w[c]));
  }
  const double columns = static_cast<double>(w.size());
  if (!packed.rounds_activations()) return {sum, kUlp * (columns + 1) * magnitude};
  return {sum, kUlp * (2 * columns / 32 + 8) * 4 * largest * activations};
}

TEST_P(MatmulTest, AgreesWithFloat64) {
  ThreadPool pool(2);
  double worst = 0;
  for (const int64_t cols : Columns()) {
    for (const int64_t rows : {1, 8, 13, 40}) {
      const RandomWeights w = Weights(rows, cols);
      const PackedMatrix packed = Pack(w, pool);
      EXPECT_EQ(packed.bytes(), PackedMatrix::PackedBytes(w.view.type, rows, cols, {.exact = GetParam().exact}));
      const int64_t tokens = 6;
      const std::vector<float> x = RandomFloats(tokens * (cols + 3), 5);
      Activations activations = *Activations::Create(tokens, cols);
      activations.Set(x.data(), tokens, cols, cols + 3, !packed.rounds_activations(), pool);
      std::vector<float> y(static_cast<size_t>(tokens * (rows + 2)), 0.5f);
      Matmul(packed, activations, y.data(), rows + 2, /*accumulate=*/cols % 64 == 0, pool);
      const double before = cols % 64 == 0 ? 0.5 : 0;
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<double> seen = Seen(packed, activations, t);
        for (int64_t r = 0; r < rows; ++r) {
          const Expected expected = Reference(packed, PackedRow(packed, w, r), seen);
          const double got = y[static_cast<size_t>(t * (rows + 2) + r)];
          const double tolerance = expected.tolerance + kUlp * (std::fabs(got) + 1);
          ASSERT_NEAR(got, expected.value + before, tolerance) << rows << "x" << cols << " row " << r << " token " << t;
          worst = std::max(worst, std::fabs(got - expected.value - before) / tolerance);
        }
        EXPECT_EQ(y[static_cast<size_t>(t * (rows + 2) + rows)], 0.5f) << "written beyond the row";
      }
    }
  }
  std::printf("worst element: %.3f of its tolerance\n", worst);
}

TEST_P(MatmulTest, BitsDoNotDependOnTokensOrThreads) {
  const int64_t rows = 77, cols = 512, tokens_max = 17;
  ThreadPool one(1);
  const RandomWeights w = Weights(rows, cols);
  const PackedMatrix packed = Pack(w, one);
  std::vector<float> x = RandomFloats(tokens_max * cols, 9);
  for (int64_t t = 0; t < tokens_max; t += 3) x[static_cast<size_t>(t * cols + 40)] = 1000;  // these have remainders
  Activations activations = *Activations::Create(tokens_max, cols);

  std::vector<float> alone(static_cast<size_t>(tokens_max * rows));
  for (int64_t t = 0; t < tokens_max; ++t) {
    activations.Set(x.data() + t * cols, 1, cols, cols, !packed.rounds_activations(), one);
    Matmul(packed, activations, alone.data() + t * rows, rows, false, one);
  }
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (int64_t tokens = 1; tokens <= tokens_max; ++tokens) {
      std::vector<float> together(static_cast<size_t>(tokens * rows));
      activations.Set(x.data(), tokens, cols, cols, !packed.rounds_activations(), pool);
      Matmul(packed, activations, together.data(), rows, false, pool);
      ASSERT_TRUE(std::equal(together.begin(), together.end(), alone.begin())) << threads << " threads, " << tokens;
    }
  }
}

// One value a thousand times the others, as the first token of a text has it: its block's step would swallow them.
TEST_P(MatmulTest, AValueThatDwarfsItsBlockLeavesTheOthersPrecise) {
  const int64_t rows = 40, cols = 768;
  ThreadPool pool(2);
  const RandomWeights w = Weights(rows, cols);
  const PackedMatrix packed = Pack(w, pool);
  if (!packed.rounds_activations()) return;
  std::vector<float> x = RandomFloats(cols, 13);
  x[70] = 1000;
  Activations activations = *Activations::Create(1, cols);
  activations.Set(x.data(), 1, cols, cols, false, pool);
  std::vector<float> y(rows);
  Matmul(packed, activations, y.data(), rows, false, pool);
  const std::vector<double> seen = Seen(packed, activations, 0);
  for (int64_t c = 0; c < cols; ++c) EXPECT_NEAR(seen[static_cast<size_t>(c)], x[static_cast<size_t>(c)], 0.05) << c;
  for (int64_t r = 0; r < rows; ++r) {
    const Expected expected = Reference(packed, PackedRow(packed, w, r), seen);
    EXPECT_NEAR(y[static_cast<size_t>(r)], expected.value, 2 * expected.tolerance) << "row " << r;
  }
}

TEST_P(MatmulTest, LongPromptsAreCutIntoPartsWithTheSameBits) {
  const int64_t cols = std::max<int64_t>(64, Traits(GetParam().type).block_elements);
  const int64_t rows = 24, tokens = 261;
  ThreadPool pool(2);
  const PackedMatrix packed = Pack(Weights(rows, cols), pool);
  const std::vector<float> x = RandomFloats(tokens * cols, 11);
  Activations activations = *Activations::Create(tokens, cols);
  std::vector<float> together(static_cast<size_t>(tokens * rows)), alone(together.size());
  activations.Set(x.data(), tokens, cols, cols, !packed.rounds_activations(), pool);
  Matmul(packed, activations, together.data(), rows, false, pool);
  for (int64_t t = 0; t < tokens; ++t) {
    activations.Set(x.data() + t * cols, 1, cols, cols, !packed.rounds_activations(), pool);
    Matmul(packed, activations, alone.data() + t * rows, rows, false, pool);
  }
  EXPECT_EQ(together, alone);
}

// The largest codes against the largest activations of one sign: where 16-bit sums would saturate, this is off by much.
TEST_P(MatmulTest, TheLargestCodesDoNotSaturate) {
  const int64_t cols = std::max<int64_t>(64, Traits(GetParam().type).block_elements);
  ThreadPool pool(1);
  for (const uint8_t fill : {0xFF, 0x7F, 0x80, 0x00}) {
    RandomWeights w = Weights(8, cols);
    if (Traits(GetParam().type).block_elements == 1) return;
    w.FillCodes(fill);
    const PackedMatrix packed = Pack(w, pool);
    for (const float sign : {-1.0f, 1.0f}) {
      const std::vector<float> x(static_cast<size_t>(6 * cols), sign);
      Activations activations = *Activations::Create(6, cols);
      activations.Set(x.data(), 6, cols, cols, !packed.rounds_activations(), pool);
      std::vector<float> y(6 * 8);
      Matmul(packed, activations, y.data(), 8, false, pool);
      for (int64_t r = 0; r < 8; ++r) {
        const Expected expected = Reference(packed, PackedRow(packed, w, r), Seen(packed, activations, 5));
        // Offsets are below 1 here, also where all weights are zero.
        const double tolerance = expected.tolerance + kUlp * static_cast<double>((2 * cols / 32 + 8) * cols);
        EXPECT_NEAR(y[static_cast<size_t>(5 * 8 + r)], expected.value, tolerance) << int{fill} << " row " << r;
      }
    }
  }
}

TEST_P(MatmulTest, AGroupIsItsProducts) {
  const int64_t cols = std::max<int64_t>(96, Traits(GetParam().type).block_elements);
  const int64_t tokens = 5;
  ThreadPool pool(3);
  const PackedMatrix a = Pack(Weights(72, cols), pool), b = Pack(Weights(21, cols), pool);
  const std::vector<float> x = RandomFloats(tokens * cols, 13);
  Activations activations = *Activations::Create(tokens, cols);
  activations.Set(x.data(), tokens, cols, cols, !a.rounds_activations(), pool);
  std::vector<float> ya(tokens * 72), yb(tokens * 21), group_a(ya.size()), group_b(yb.size());
  Matmul(a, activations, ya.data(), 72, false, pool);
  Matmul(b, activations, yb.data(), 21, false, pool);
  const MatmulJob jobs[] = {{&a, group_a.data(), 72, false}, {&b, group_b.data(), 21, false}};
  MatmulGroup(jobs, activations, pool);
  EXPECT_EQ(group_a, ya);
  EXPECT_EQ(group_b, yb);
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, MatmulTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  return std::string(Name(info.param.isa)) + "_" + std::string(Traits(info.param.type).name) +
         (info.param.exact ? "_exact" : "");
});

class ActivationsTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }
};

TEST_P(ActivationsTest, RoundsToTheNearestOf255Steps) {
  const int64_t tokens = 9, cols = 81;
  ThreadPool pool(2);
  std::vector<float> x = RandomFloats(tokens * cols, 17);
  std::fill(x.begin() + cols, x.begin() + cols + 32, 0.0f);
  Activations activations = *Activations::Create(tokens, cols);
  activations.Set(x.data(), tokens, cols, cols, false, pool);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < 96; ++c) {
      const RoundedBlock& block = activations.rounded()[t * 3 + c / 32];
      const float value = c < cols ? x[static_cast<size_t>(t * cols + c)] : 0.0f;
      // Half a step, and what rounding x / scale to f32 adds.
      EXPECT_NEAR(static_cast<double>(block.scale) * block.q[c % 32], value, 0.50002 * block.scale) << t << " " << c;
    }
  }
}

TEST_P(ActivationsTest, SumsAreThoseOfTheRoundedValues) {
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(64, 19);
  Activations activations = *Activations::Create(1, 64);
  activations.Set(x.data(), 1, 64, 64, false, pool);
  for (int b = 0; b < 2; ++b) {
    const RoundedBlock& block = activations.rounded()[b];
    int low = 0, high = 0;
    for (int i = 0; i < 16; ++i) low += block.q[i], high += block.q[i + 16];
    EXPECT_EQ(block.sum, block.scale * static_cast<float>(low + high));
    EXPECT_EQ(block.sum_low, block.scale * static_cast<float>(low));
    EXPECT_EQ(block.sum_high, block.scale * static_cast<float>(high));
  }
}

TEST_P(ActivationsTest, BlocksTooSmallForAScaleAreZero) {
  ThreadPool pool(1);
  const std::vector<float> x(32, 1e-38f);
  Activations activations = *Activations::Create(1, 32);
  activations.Set(x.data(), 1, 32, 32, false, pool);
  EXPECT_EQ(activations.rounded()->scale, 0);
  EXPECT_EQ(activations.rounded()->q[7], 0);
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, ActivationsTest, testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace sluice
