#include "model/moe_gate.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

// The worked example: eight logits and a bias whose choice differs from the scores'.
constexpr float kLogits[] = {0.5f, -0.2f, 1.2f, 0.1f, -0.3f, 0.8f, 0.0f, 0.4f};
constexpr float kBias[] = {0.0f, 0.3f, -0.5f, 0.1f, 0.6f, -0.9f, 0.2f, 0.05f};

MoeConfig V3() {
  return {.experts = 8,
          .experts_per_token = 2,
          .groups = 4,
          .groups_kept = 2,
          .scoring = MoeScoring::kSigmoid,
          .choice = MoeChoice::kNoAuxTc,
          .normalise = true,
          .scale = 2.5};
}

MoeConfig Lite() { return {.experts = 8, .experts_per_token = 2}; }

std::vector<ExpertWeight> Choose(const MoeConfig& config, absl::Span<const float> logits,
                                 absl::Span<const float> bias = {}) {
  std::vector<ExpertWeight> chosen(static_cast<size_t>(config.experts_per_token));
  ChooseExperts(config, logits, bias, absl::MakeSpan(chosen));
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.expert < b.expert; });
  return chosen;
}

std::vector<int> Ids(const std::vector<ExpertWeight>& chosen) {
  std::vector<int> ids;
  for (const ExpertWeight& c : chosen) ids.push_back(c.expert);
  return ids;
}

TEST(MoeGate, ChoosesWithTheBiasAndWeighsWithoutIt) {
  const auto chosen = Choose(V3(), kLogits, kBias);
  EXPECT_THAT(Ids(chosen), ElementsAre(1, 6));
  EXPECT_NEAR(chosen[0].weight, 1.18444, 1e-5);
  EXPECT_NEAR(chosen[1].weight, 1.31556, 1e-5);
}

// All biased scores negative: a group that were masked with zeros would win.
TEST(MoeGate, NegativeScoresDoNotLetDroppedGroupsBackIn) {
  std::vector<float> bias(std::begin(kBias), std::end(kBias));
  for (float& b : bias) b -= 3;
  EXPECT_THAT(Ids(Choose(V3(), kLogits, bias)), ElementsAre(1, 6));
}

TEST(MoeGate, SoftmaxWeightsStayRawWhereTheyAreNotNormalised) {
  const auto chosen = Choose(Lite(), kLogits);
  EXPECT_THAT(Ids(chosen), ElementsAre(2, 5));
  EXPECT_NEAR(chosen[0].weight, 0.268815, 1e-6);
  EXPECT_NEAR(chosen[1].weight, 0.180192, 1e-6);
  MoeConfig normalised = Lite();
  normalised.normalise = true;
  const auto ones = Choose(normalised, kLogits);
  EXPECT_NEAR(ones[0].weight + ones[1].weight, 1.0, 1e-6);
}

// Groups by their best expert: {2, 3} and {4, 5} have 1.2 and 0.8; {0, 1} is out although 0.5 is above 0.1 and -0.3.
TEST(MoeGate, GroupLimitedGreedyKeepsTheGroupsWithTheBestExperts) {
  MoeConfig config = Lite();
  config.experts_per_token = 3;
  config.choice = MoeChoice::kGroupLimitedGreedy;
  config.groups = 4;
  config.groups_kept = 2;
  config.scale = 16;
  const auto chosen = Choose(config, kLogits);
  EXPECT_THAT(Ids(chosen), ElementsAre(2, 3, 5));
  EXPECT_NEAR(chosen[0].weight, 16 * 0.268815, 2e-5);
}

TEST(MoeGate, OfEqualExpertsTheLowerNumberIsChosen) {
  const std::vector<float> equal(8, 0.25f);
  EXPECT_THAT(Ids(Choose(Lite(), equal)), ElementsAre(0, 1));
  EXPECT_THAT(Ids(Choose(V3(), equal, std::vector<float>(8, 0.0f))), ElementsAre(0, 1));
}

TEST(MoeGate, LogitsThatAreNoNumbersChooseDistinctExpertsWhoseWeightsShowIt) {
  std::vector<float> logits(8, std::numeric_limits<float>::quiet_NaN());
  auto chosen = Choose(V3(), logits, kBias);
  EXPECT_NE(chosen[0].expert, chosen[1].expert);
  EXPECT_TRUE(std::isnan(chosen[0].weight));
  logits.assign(std::begin(kLogits), std::end(kLogits));
  logits[1] = std::numeric_limits<float>::quiet_NaN();
  chosen = Choose(V3(), logits, kBias);
  EXPECT_NE(chosen[0].expert, 1);
  EXPECT_NE(chosen[1].expert, 1);
}

}  // namespace
}  // namespace sluice
