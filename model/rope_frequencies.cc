#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {

namespace {

// Slow frequencies are divided by the factor, fast ones kept, those between blended by how many turns they make over
// the trained context.
double Llama3(const RopeConfig& rope, double frequency) {
  const double turns = rope.original_context_tokens * frequency / (2 * std::numbers::pi);
  const double kept =
      std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / rope.factor);
}

// The pair, as a real number, that makes `turns` turns over the trained context.
double YarnPairAt(const RopeConfig& rope, int head_dim, double turns) {
  return head_dim * std::log(rope.original_context_tokens / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void ApplyYarn(const RopeConfig& rope, int head_dim, std::vector<double>& frequencies) {
  const double low = std::max(std::floor(YarnPairAt(rope, head_dim, rope.beta_fast)), 0.0);
  const double high = std::min(std::ceil(YarnPairAt(rope, head_dim, rope.beta_slow)), head_dim - 1.0);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
    frequencies[i] *= 1 - divided + divided / rope.factor;
  }
}

double YarnAttentionFactor(const RopeConfig& rope) {
  if (rope.attention_factor.has_value()) return *rope.attention_factor;
  if (rope.mscale.has_value() && rope.mscale_all_dim.has_value()) {
    return YarnMagnitude(rope.factor, *rope.mscale) / YarnMagnitude(rope.factor, *rope.mscale_all_dim);
  }
  return YarnMagnitude(rope.factor, 1.0);
}

}  // namespace

double YarnMagnitude(double factor, double mscale) { return factor > 1 ? 0.1 * mscale * std::log(factor) + 1.0 : 1.0; }

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& rope, int head_dim) {
  RopeFrequencies result;
  result.per_pair.resize(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.per_pair.size(); ++i) {
    result.per_pair[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / head_dim);
  }
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& f : result.per_pair) f /= rope.factor;
      break;
    case RopeScaling::kLlama3:
      for (double& f : result.per_pair) f = Llama3(rope, f);
      break;
    case RopeScaling::kYarn:
      ApplyYarn(rope, head_dim, result.per_pair);
      result.magnitude = YarnAttentionFactor(rope);
      break;
  }
  for (size_t i = 0; i < rope.frequency_factors.size() && i < result.per_pair.size(); ++i) {
    result.per_pair[i] /= rope.frequency_factors[i];
  }
  return result;
}

double AttentionScale(const ModelConfig& config) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  if (!config.mla || config.rope.scaling != RopeScaling::kYarn) return scale;
  const double magnitude = YarnMagnitude(config.rope.factor, config.rope.mscale_all_dim.value_or(0));
  return scale * magnitude * magnitude;
}

}  // namespace sluice
