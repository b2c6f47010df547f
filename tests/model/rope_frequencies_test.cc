#include "model/rope_frequencies.h"

#include <cmath>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// DeepSeek's numbers: theta 1e4, 64 channels, trained on 4096, extended 40 times.
RopeConfig DeepSeekYarn() {
  RopeConfig rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 40;
  rope.original_context_tokens = 4096;
  return rope;
}

TEST(RopeFrequencies, YarnBlendsBetweenPairs10And23) {
  const RopeFrequencies f = ComputeRopeFrequencies(DeepSeekYarn(), 64);
  const auto part = [&f](int i) { return f.per_pair[static_cast<size_t>(i)] / std::pow(1e4, -2.0 * i / 64); };
  for (int i = 0; i <= 10; ++i) EXPECT_DOUBLE_EQ(part(i), 1) << i;
  EXPECT_NEAR(part(11), 0.925, 1e-12);
  EXPECT_NEAR(part(15), 0.625, 1e-12);
  EXPECT_NEAR(part(16), 0.55, 1e-12);
  EXPECT_NEAR(part(20), 0.25, 1e-12);
  EXPECT_NEAR(part(22), 0.10, 1e-12);
  for (int i = 23; i < 32; ++i) EXPECT_NEAR(part(i), 0.025, 1e-12) << i;
  EXPECT_NEAR(f.per_pair[16], 5.5e-3, 1e-9);
  EXPECT_NEAR(f.per_pair[22], 1.7782794e-4, 1e-11);
  EXPECT_NEAR(f.per_pair[31], 3.3338036e-6, 1e-13);
}

TEST(RopeFrequencies, YarnMagnitudeIsTheRatioOfItsTwoScales) {
  EXPECT_NEAR(YarnMagnitude(40, 0.707), 1.2608038, 1e-7);
  EXPECT_NEAR(YarnMagnitude(40, 1), 1.3688879, 1e-7);
  EXPECT_EQ(YarnMagnitude(1, 1), 1);
  RopeConfig rope = DeepSeekYarn();
  EXPECT_NEAR(ComputeRopeFrequencies(rope, 64).magnitude, 1.3688879, 1e-7);
  rope.mscale = 0.707;
  rope.mscale_all_dim = 0.707;
  EXPECT_EQ(ComputeRopeFrequencies(rope, 64).magnitude, 1);
  rope.mscale_all_dim = 1.0;
  EXPECT_NEAR(ComputeRopeFrequencies(rope, 64).magnitude, 1.2608038 / 1.3688879, 1e-7);
  rope.attention_factor = 0.5;
  EXPECT_EQ(ComputeRopeFrequencies(rope, 64).magnitude, 0.5);
}

TEST(AttentionScale, IsTheHeadsWidthTimesYarnsMagnitudeSquaredInLatentAttentionOnly) {
  ModelConfig config;
  config.head_dim = 192;
  config.rope = DeepSeekYarn();
  config.rope.mscale = 0.707;
  config.rope.mscale_all_dim = 0.707;
  EXPECT_NEAR(AttentionScale(config), 0.0721688, 1e-7);
  config.mla = MlaConfig{.latent = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  EXPECT_NEAR(AttentionScale(config), 0.1147214, 1e-7);
  config.rope.mscale_all_dim = 1.0;
  EXPECT_NEAR(AttentionScale(config), 0.1352338, 1e-7);
  config.rope.mscale_all_dim.reset();
  EXPECT_NEAR(AttentionScale(config), 0.0721688, 1e-7);
  config.rope = RopeConfig();
  EXPECT_NEAR(AttentionScale(config), 0.0721688, 1e-7);
}

TEST(RopeFrequencies, LinearDividesAllAndFactorsDivideEach) {
  RopeConfig rope;
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  EXPECT_DOUBLE_EQ(ComputeRopeFrequencies(rope, 8).per_pair[1], 0.025);
  rope.scaling = RopeScaling::kNone;
  rope.frequency_factors = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(ComputeRopeFrequencies(rope, 8).per_pair[0], 1);
  EXPECT_DOUBLE_EQ(ComputeRopeFrequencies(rope, 8).per_pair[3], 1e-3 / 8);
}

// Llama 3.1's own numbers: kept above 4 turns over 8192 tokens, divided by 8 below one, blended between.
TEST(RopeFrequencies, Llama3KeepsFastOnesDividesSlowOnesAndBlendsBetween) {
  RopeConfig rope;
  rope.theta = 500000;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.original_context_tokens = 8192;
  const RopeFrequencies f = ComputeRopeFrequencies(rope, 128);
  const auto plain = [](int i) { return std::pow(500000.0, -2.0 * i / 128); };
  EXPECT_DOUBLE_EQ(f.per_pair[0], 1);
  EXPECT_DOUBLE_EQ(f.per_pair[28], plain(28));         // 4.18 turns
  EXPECT_DOUBLE_EQ(f.per_pair[63], plain(63) / 8);     // 0.003 turns
  const double turns = 8192 * plain(31) / (2 * M_PI);  // 2.26
  const double kept = (turns - 1) / 3;
  EXPECT_NEAR(f.per_pair[31], plain(31) * (kept + (1 - kept) / 8), 1e-15);
}

}  // namespace
}  // namespace sluice
