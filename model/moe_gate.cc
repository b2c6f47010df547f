#include "model/moe_gate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/status.h"

namespace sluice {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

using Scores = std::array<float, kExpertsMax>;

void Softmax(absl::Span<const float> logits, Scores& scores) {
  const float max = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += scores[i] = std::exp(logits[i] - max);
  for (size_t i = 0; i < logits.size(); ++i) scores[i] /= sum;
}

void Sigmoid(absl::Span<const float> logits, Scores& scores) {
  for (size_t i = 0; i < logits.size(); ++i) scores[i] = 1 / (1 + std::exp(-logits[i]));
}

// The place of the largest value, the first of equal ones; taken out so that the next call finds the next.
size_t TakeBest(absl::Span<float> values, absl::Span<bool> taken) {
  size_t best = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!taken[i] && (best == values.size() || values[i] > values[best])) best = i;
  }
  taken[best] = true;
  return best;
}

float GroupScore(MoeChoice choice, absl::Span<const float> group) {
  float first = kOut;
  float second = kOut;
  for (const float value : group) {
    second = std::max(second, std::min(first, value));
    first = std::max(first, value);
  }
  return choice == MoeChoice::kNoAuxTc ? first + second : first;
}

// Experts outside the best groups are out.
void KeepGroups(const MoeConfig& config, absl::Span<float> choice) {
  const auto groups = static_cast<size_t>(config.groups);
  const size_t size = choice.size() / groups;
  Scores scores;
  std::array<bool, kExpertsMax> kept = {};
  for (size_t g = 0; g < groups; ++g) scores[g] = GroupScore(config.choice, choice.subspan(g * size, size));
  for (int i = 0; i < config.groups_kept; ++i) {
    TakeBest({scores.data(), groups}, {kept.data(), groups});
  }
  for (size_t i = 0; i < choice.size(); ++i) {
    if (!kept[i / size]) choice[i] = kOut;
  }
}

}  // namespace

void ChooseExperts(const MoeConfig& config, absl::Span<const float> logits, absl::Span<const float> bias,
                   absl::Span<ExpertWeight> chosen) {
  const auto experts = static_cast<size_t>(config.experts);
  SLUICE_CHECK(logits.size() == experts && (bias.empty() || bias.size() == experts), "logits ", logits.size());
  Scores scores;
  config.scoring == MoeScoring::kSoftmax ? Softmax(logits, scores) : Sigmoid(logits, scores);
  Scores choice = scores;
  for (size_t i = 0; i < bias.size(); ++i) choice[i] += bias[i];
  for (size_t i = 0; i < experts; ++i) {
    if (std::isnan(choice[i])) choice[i] = kOut;
  }
  const absl::Span<float> candidates(choice.data(), experts);
  if (config.choice != MoeChoice::kGreedy) KeepGroups(config, candidates);

  std::array<bool, kExpertsMax> taken = {};
  float sum = 0;
  for (ExpertWeight& c : chosen) {
    const size_t expert = TakeBest(candidates, {taken.data(), experts});
    c = {static_cast<int32_t>(expert), scores[expert]};
    sum += c.weight;
  }
  const float divisor = config.normalise && chosen.size() > 1 ? sum + 1e-20f : 1.0f;
  for (ExpertWeight& c : chosen) c.weight = c.weight / divisor * static_cast<float>(config.scale);
}

}  // namespace sluice
