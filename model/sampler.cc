#include "model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/rng.h"

namespace sluice {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 8;

struct Candidate {
  float logit;
  TokenId token;
};
// Whether `a` comes before `b` in the order of likelihood.
bool Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Working memory of a thread: a vocabulary's worth, whatever the number of requests.
struct Scratch {
  std::vector<float> logits;
  std::vector<float> weights;
  std::vector<Candidate> candidates;
};
Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// The largest logit. Internal where one is no logit or all are minus infinity.
StatusOr<float> LargestLogit(absl::Span<const float> logits) {
  // Eight lanes side by side, so that the compiler keeps them in vector registers.
  float largest[kLanes];
  int broken[kLanes] = {};
  std::fill(largest, largest + kLanes, kMinusInfinity);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      largest[lane] = x > largest[lane] ? x : largest[lane];
      broken[lane] |= !(x < std::numeric_limits<float>::infinity());
    }
  }
  for (; i < logits.size(); ++i) {
    largest[0] = std::max(largest[0], logits[i]);
    broken[0] |= !(logits[i] < std::numeric_limits<float>::infinity());
  }
  if (std::accumulate(broken, broken + kLanes, 0) != 0) {
    const auto at = std::find_if(logits.begin(), logits.end(),
                                 [](float x) { return !(x < std::numeric_limits<float>::infinity()); });
    return absl::InternalError(absl::StrCat("the logit of token ", at - logits.begin(), " is ", *at));
  }
  const float best = *std::max_element(largest, largest + kLanes);
  if (best == kMinusInfinity) return absl::InternalError("no token is left to draw: every logit is minus infinity");
  return best;
}

// e^x for x <= 0 as a power of two times a polynomial: plain float arithmetic that vectorises, and the same bits on
// every machine, which std::exp does not promise. Relative error below 3e-7; below -87 it is zero.
inline float ExpNegative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float t = clamped * 1.44269504f;
  const int32_t n = static_cast<int32_t>(t - 0.5f);  // to the nearest, since t <= 0
  const float f = (t - static_cast<float>(n)) * 0.693147182f;
  float p = 1.0f / 5040;
  p = p * f + 1.0f / 720;
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const float scaled = p * std::bit_cast<float>((n + 127) << 23);
  return x < -87.0f ? 0.0f : scaled;
}

// weights[i] = e^((logits[i] - largest) * scale); returns their sum, always added in the same order.
double Weights(absl::Span<const float> logits, float largest, float scale, std::vector<float>& weights) {
  weights.resize(logits.size());
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const float* const in = logits.data() + i;
    float* const out = weights.data() + i;
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = ExpNegative((in[lane] - largest) * scale);
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(out[lane]);
  }
  for (; i < logits.size(); ++i) {
    weights[i] = ExpNegative((logits[i] - largest) * scale);
    sums[0] += static_cast<double>(weights[i]);
  }
  return std::accumulate(sums, sums + kLanes, 0.0);
}

// The logits that are drawn from; `input.logits` themselves where nothing changes them.
absl::Span<const float> Adjusted(const SamplerInput& input, std::vector<float>& storage) {
  const SamplingParams& p = *input.params;
  const bool counted = input.generated_counts != nullptr && !input.generated_counts->empty();
  const bool repetition = p.repetition_penalty != 1.0f;
  const bool presence = p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
  if (p.logit_bias.empty() && input.excluded.empty() && !repetition && !(presence && counted)) return input.logits;
  storage.assign(input.logits.begin(), input.logits.end());
  const auto known = [&](TokenId token) { return token >= 0 && static_cast<size_t>(token) < storage.size(); };
  for (const LogitBias& b : p.logit_bias) {
    if (known(b.token)) storage[b.token] += b.bias;
  }
  const auto penalise = [&](TokenId token) {
    if (!known(token)) return;
    float& logit = storage[token];
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  };
  if (repetition) {
    for (const TokenId token : input.prompt_tokens) {
      if (!counted || !input.generated_counts->contains(token)) penalise(token);
    }
  }
  if (counted) {
    for (const auto& [token, count] : *input.generated_counts) {
      if (repetition) penalise(token);
      if (known(token)) storage[token] -= p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const TokenId token : input.excluded) {
    if (known(token)) storage[token] = kMinusInfinity;
  }
  return storage;
}

TokenId FirstWith(absl::Span<const float> logits, float value) {
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), value) - logits.begin());
}

// The token at which the running sum of weights passes `target`. `weight_of(i)` for i in [0, count).
template <typename WeightOf>
size_t Walk(size_t count, double target, WeightOf weight_of) {
  double sum = 0;
  size_t last = 0;  // rounding may leave the target just above the sum: the last possible one then
  for (size_t i = 0; i < count; ++i) {
    const float weight = weight_of(i);
    if (weight <= 0) continue;
    sum += weight;
    last = i;
    if (sum > target) break;
  }
  return last;
}

bool LessLikely(const Candidate& a, const Candidate& b) { return Likelier(b, a); }

// The `count` likeliest with a weight, likeliest first: a heap of that many, whose top is the least likely of them,
// lets nearly all others pass with one comparison.
std::vector<Candidate> LikeliestOf(absl::Span<const float> logits, const std::vector<float>& weights, size_t count) {
  std::vector<Candidate> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c{logits[i], static_cast<TokenId>(i)};
    if (weights[i] <= 0 || (best.size() == count && !Likelier(c, best.front()))) continue;
    if (best.size() == count) {
      std::pop_heap(best.begin(), best.end(), Likelier);
      best.pop_back();
    }
    best.push_back(c);
    std::push_heap(best.begin(), best.end(), Likelier);
  }
  std::sort_heap(best.begin(), best.end(), Likelier);
  return best;
}

// The candidates that top-k, top-p and min-p keep, likeliest first. All three keep a beginning of the same order, so
// that only what is kept is ever put in order.
void Keep(absl::Span<const float> logits, const SamplingParams& p, double total, Scratch& scratch) {
  auto& heap = scratch.candidates;
  const auto& weights = scratch.weights;
  heap.clear();
  std::vector<Candidate> kept;
  if (p.top_k > 0) {
    kept = LikeliestOf(logits, weights, static_cast<size_t>(p.top_k));
    total = 0;
    for (const Candidate& c : kept) total += weights[c.token];
  } else {
    // Left out at once: tokens that min-p drops, and those that all together are less than the share beyond top-p.
    const double beyond = p.top_p < 1 ? total * (1.0 - p.top_p) / static_cast<double>(logits.size()) : 0;
    const double floor = std::max<double>(beyond, p.min_p);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (weights[i] > 0 && weights[i] >= floor) heap.push_back({logits[i], static_cast<TokenId>(i)});
    }
    std::make_heap(heap.begin(), heap.end(), LessLikely);
  }
  const size_t most = kept.size() + heap.size();
  double sum = 0;
  size_t count = 0;
  while (count < most) {
    if (count == kept.size()) {
      std::pop_heap(heap.begin(), heap.end(), LessLikely);
      kept.push_back(heap.back());
      heap.pop_back();
    }
    const float weight = weights[kept[count].token];
    if (count > 0 && weight < p.min_p) break;  // the likeliest weighs 1
    sum += weight;
    ++count;
    if (p.top_p < 1 && sum >= p.top_p * total) break;
  }
  kept.resize(count);
  heap.swap(kept);
}

TokenId Draw(const SamplerInput& input, absl::Span<const float> logits, float largest, Scratch& scratch) {
  const SamplingParams& p = *input.params;
  // A temperature too small to divide by is greedy but for ties.
  const float scale = std::min(1.0f / p.temperature, 1e30f);
  double total = Weights(logits, largest, scale, scratch.weights);
  const double uniform = RandomUniform(input.key, input.counter);
  const auto& weights = scratch.weights;
  if (p.top_k == 0 && p.top_p >= 1 && p.min_p <= 0) {
    return static_cast<TokenId>(Walk(logits.size(), uniform * total, [&](size_t i) { return weights[i]; }));
  }
  Keep(logits, p, total, scratch);
  const auto& kept = scratch.candidates;
  total = 0;
  for (const Candidate& c : kept) total += weights[c.token];
  return kept[Walk(kept.size(), uniform * total, [&](size_t i) { return weights[kept[i].token]; })].token;
}

// The `count` likeliest of all, likeliest first.
std::vector<Candidate> Likeliest(absl::Span<const float> logits, size_t count) {
  std::vector<Candidate> best;
  if (count == 0) return best;
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c{logits[i], static_cast<TokenId>(i)};
    if (best.size() == count && !Likelier(c, best.back())) continue;
    if (best.size() == count) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), c, Likelier), c);
  }
  return best;
}

void AddLogProbs(const SamplerInput& input, float largest, Scratch& scratch, Sampled& sampled) {
  const double log_sum = std::log(Weights(input.logits, largest, 1.0f, scratch.weights));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(largest) - log_sum);
  };
  sampled.logprob = logprob(input.logits[sampled.token]);
  for (const Candidate& c : Likeliest(input.logits, static_cast<size_t>(input.params->top_logprobs))) {
    sampled.top.push_back({c.token, logprob(c.logit)});
  }
}

}  // namespace

bool DrawsRandomly(const SamplingParams& params) { return params.temperature > 0; }

StatusOr<Sampled> SampleToken(const SamplerInput& input) {
  Scratch& scratch = ThreadScratch();
  SLUICE_ASSIGN_OR_RETURN(const float largest, LargestLogit(input.logits));
  const absl::Span<const float> logits = Adjusted(input, scratch.logits);
  float adjusted_largest = largest;
  if (logits.data() != input.logits.data()) {
    SLUICE_ASSIGN_OR_RETURN(adjusted_largest, LargestLogit(logits));
  }
  Sampled sampled;
  sampled.token = DrawsRandomly(*input.params) ? Draw(input, logits, adjusted_largest, scratch)
                                               : FirstWith(logits, adjusted_largest);
  if (input.params->logprobs) AddLogProbs(input, largest, scratch, sampled);
  return sampled;
}

}  // namespace sluice
