#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using Counts = absl::flat_hash_map<TokenId, int>;

struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<TokenId> prompt;
  Counts counts;
  std::vector<TokenId> excluded;
  uint64_t key = 1, counter = 0;

  StatusOr<Sampled> Sample() const { return SampleToken({logits, &params, prompt, &counts, excluded, key, counter}); }
  TokenId Token() const {
    const auto sampled = Sample();
    EXPECT_TRUE(sampled.ok()) << sampled.status();
    return sampled.ok() ? sampled->token : -1;
  }
};

Case Greedy(std::vector<float> logits) {
  Case c{.logits = std::move(logits)};
  c.params.temperature = 0;
  return c;
}

// The slow way, in double precision: everything is sorted, then cut, then walked through. `margin` is how near the draw
// came to the border of two tokens, or a cut to a border of its own.
struct Oracle {
  TokenId token = -1;
  double margin = 1;
};

std::vector<double> OracleLogits(const Case& c) {
  std::vector<double> logits(c.logits.begin(), c.logits.end());
  for (const LogitBias& b : c.params.logit_bias) logits[b.token] += b.bias;
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const int count = c.counts.contains(token) ? c.counts.at(token) : 0;
    if (count > 0 || std::count(c.prompt.begin(), c.prompt.end(), token) > 0) {
      logits[id] = logits[id] > 0 ? logits[id] / c.params.repetition_penalty : logits[id] * c.params.repetition_penalty;
    }
    if (count > 0) logits[id] -= c.params.presence_penalty + c.params.frequency_penalty * count;
  }
  for (const TokenId token : c.excluded) logits[token] = -std::numeric_limits<double>::infinity();
  return logits;
}

Oracle Expected(const Case& c) {
  const std::vector<double> logits = OracleLogits(c);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  if (c.params.temperature == 0) return {order[0]};
  std::vector<double> weights;
  for (const TokenId t : order) weights.push_back(std::exp((logits[t] - logits[order[0]]) / c.params.temperature));
  if (c.params.top_k > 0) weights.resize(std::min<size_t>(weights.size(), c.params.top_k));
  Oracle oracle;
  double total = std::accumulate(weights.begin(), weights.end(), 0.0), sum = 0;
  size_t kept = 0;
  for (const double weight : weights) {
    oracle.margin = std::min(oracle.margin, std::fabs(weight - c.params.min_p));
    if (kept > 0 && weight < c.params.min_p) break;
    sum += weight;
    ++kept;
    if (c.params.top_p < 1) oracle.margin = std::min(oracle.margin, std::fabs(sum / total - c.params.top_p));
    if (c.params.top_p < 1 && sum >= c.params.top_p * total) break;
  }
  const bool by_id = c.params.top_k == 0 && c.params.top_p >= 1 && c.params.min_p <= 0;
  std::vector<std::pair<TokenId, double>> walk;
  for (size_t i = 0; i < kept; ++i) walk.emplace_back(order[i], weights[i]);
  if (by_id) std::sort(walk.begin(), walk.end());
  const double target = RandomUniform(c.key, c.counter) * sum;
  double at = 0;
  for (const auto& [token, weight] : walk) {
    at += weight;
    oracle.margin = std::min(oracle.margin, std::fabs(at - target) / sum);
    if (oracle.token < 0 && at > target) oracle.token = token;
  }
  return oracle;
}

Case RandomCase(Rng& rng) {
  Case c;
  const size_t vocab = 1 + rng.Bits() % 60;
  for (size_t i = 0; i < vocab; ++i) c.logits.push_back(static_cast<float>(static_cast<int>(rng.Bits() % 41) - 20) / 4);
  const auto token = [&] { return static_cast<TokenId>(rng.Bits() % vocab); };
  c.params.temperature = rng.Bits() % 4 == 0 ? 0.0f : 0.25f * static_cast<float>(1 + rng.Bits() % 8);
  if (rng.Bits() % 2) c.params.top_k = static_cast<int>(rng.Bits() % (vocab + 1));
  if (rng.Bits() % 2) c.params.top_p = static_cast<float>(1 + rng.Bits() % 100) / 100;
  if (rng.Bits() % 3 == 0) c.params.min_p = static_cast<float>(rng.Bits() % 100) / 100;
  if (rng.Bits() % 2) c.params.repetition_penalty = rng.Bits() % 2 ? 2.0f : 0.5f;
  if (rng.Bits() % 2) c.params.presence_penalty = rng.Bits() % 2 ? 1.5f : -0.5f;
  if (rng.Bits() % 2) c.params.frequency_penalty = rng.Bits() % 2 ? 0.5f : -0.25f;
  if (rng.Bits() % 3 == 0) c.params.logit_bias = {{token(), 4.0f}, {token(), -100.0f}};
  for (int i = 0; i < 3; ++i) {
    if (rng.Bits() % 2) c.prompt.push_back(token());
    if (rng.Bits() % 2) ++c.counts[token()];
  }
  std::sort(c.prompt.begin(), c.prompt.end());
  c.prompt.erase(std::unique(c.prompt.begin(), c.prompt.end()), c.prompt.end());
  if (vocab > 1 && rng.Bits() % 3 == 0) c.excluded = {token()};
  c.key = rng.Bits();
  c.counter = rng.Bits() % 1000;
  return c;
}

TEST(Sampler, AgreesWithANaiveOneThatSortsEverything) {
  Rng rng(7);
  int near_a_border = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Case c = RandomCase(rng);
    const Oracle expected = Expected(c);
    // Where double and single precision may fall on different sides, either is right.
    if (expected.margin < 1e-5) {
      ++near_a_border;
      continue;
    }
    ASSERT_EQ(c.Token(), expected.token) << "round " << round;
  }
  EXPECT_LT(near_a_border, 6'000);
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheBest) { EXPECT_EQ(Greedy({1, 5, 5, 0}).Token(), 1); }

TEST(Sampler, WhatIsNoNumberIsAnErrorAndNeverAToken) {
  for (const float broken : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const size_t at : {size_t{0}, size_t{7}, size_t{16}}) {
        Case c = Greedy(std::vector<float>(17, 1.0f));
        c.params.temperature = temperature;
        c.logits[at] = broken;
        EXPECT_EQ(c.Sample().status().code(), absl::StatusCode::kInternal);
        EXPECT_THAT(std::string(c.Sample().status().message()), HasSubstr(absl::StrCat("token ", at)));
      }
    }
  }
}

TEST(Sampler, NothingLeftToDrawIsAnError) {
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(Greedy({none, none}).Sample().status().code(), absl::StatusCode::kInternal);
  Case c = Greedy({1, none});
  c.excluded = {0};
  EXPECT_EQ(c.Sample().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Greedy({none, 3, none}).Token(), 1);
}

TEST(Sampler, MinusInfinityIsNeverDrawn) {
  Case c{.logits = {-std::numeric_limits<float>::infinity(), 0, 0}};
  c.params.temperature = 2;
  for (c.counter = 0; c.counter < 1000; ++c.counter) EXPECT_NE(c.Token(), 0);
}

TEST(Sampler, RepetitionPenaltyPullsBothSignsDown) {
  Case c = Greedy({2.0f, 1.9f});
  c.params.repetition_penalty = 1.2f;
  c.prompt = {0};
  EXPECT_EQ(c.Token(), 1);
  c.logits = {-1.0f, -1.1f};
  EXPECT_EQ(c.Token(), 1);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesLookAtGeneratedTokensOnly) {
  Case c = Greedy({2.0f, 1.5f});
  c.params.presence_penalty = 0.2f;
  c.params.frequency_penalty = 0.2f;
  c.prompt = {0};
  EXPECT_EQ(c.Token(), 0);
  c.counts[0] = 1;
  EXPECT_EQ(c.Token(), 0);
  c.counts[0] = 2;
  EXPECT_EQ(c.Token(), 1);
}

TEST(Sampler, TopKKeepsExactlyKOfEqualLogits) {
  Case c{.logits = {0, 1, 1, 1, 1}};
  c.params.top_k = 2;
  for (c.counter = 0; c.counter < 200; ++c.counter) EXPECT_THAT(c.Token(), ::testing::AnyOf(1, 2));
}

TEST(Sampler, TopPKeepsTheTokenThatCrossesTheBorder) {
  Case c{.logits = {std::log(0.6f), std::log(0.3f), std::log(0.1f)}};
  c.params.top_p = 0.7f;
  std::vector<int> seen(3);
  for (c.counter = 0; c.counter < 1000; ++c.counter) ++seen[c.Token()];
  EXPECT_GT(seen[1], 0);
  EXPECT_EQ(seen[2], 0);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  for (const bool filtered : {false, true}) {
    Case c{.logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)}};
    if (filtered) c.params.top_k = 4;
    constexpr int kDraws = 40'000;
    std::vector<int> seen(4);
    for (c.counter = 0; c.counter < kDraws; ++c.counter) ++seen[c.Token()];
    const double expected[] = {0.5, 0.3, 0.15, 0.05};
    for (int i = 0; i < 4; ++i) {
      const double deviation = std::sqrt(kDraws * expected[i] * (1 - expected[i]));
      EXPECT_NEAR(seen[i], kDraws * expected[i], 4 * deviation) << i;
    }
  }
}

TEST(Sampler, ATinyTemperatureIsGreedy) {
  for (const float temperature : {1e-3f, 1e-30f, 1e-44f}) {
    Case c{.logits = {1, 3, 2}};
    c.params.temperature = temperature;
    for (c.counter = 0; c.counter < 100; ++c.counter) EXPECT_EQ(c.Token(), 1);
  }
}

TEST(Sampler, LogProbsAreOfTheUnmodifiedLogits) {
  Case c = Greedy({1, 2, 3, 2});
  c.params.logprobs = true;
  c.params.top_logprobs = 3;
  c.params.logit_bias = {{0, 50}};
  c.excluded = {2};
  const auto sampled = c.Sample();
  ASSERT_TRUE(sampled.ok());
  const double log_sum = std::log(std::exp(1.0) + 2 * std::exp(2.0) + std::exp(3.0));
  EXPECT_EQ(sampled->token, 0);
  EXPECT_NEAR(sampled->logprob, 1 - log_sum, 1e-6);
  ASSERT_EQ(sampled->top.size(), 3u);
  const TokenId order[] = {2, 1, 3};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sampled->top[i].token, order[i]);
    EXPECT_NEAR(sampled->top[i].logprob, c.logits[order[i]] - log_sum, 1e-6);
  }
}

TEST(Sampler, TokensOutsideTheVocabularyAreIgnoredInPenalties) {
  Case c = Greedy({1, 2});
  c.params.repetition_penalty = 2;
  c.prompt = {-1, 2, 1000};
  EXPECT_EQ(c.Token(), 1);
}

}  // namespace
}  // namespace sluice
