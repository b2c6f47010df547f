#include "model/kept_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice {

namespace {

// Ranks below everything that is a number.
float Rankable(float score) { return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score; }

// A score as it ranks: over the number of queries that have met the token, the newest one's included.
float RankOf(const CachePolicy& policy, float score, int64_t position, int64_t newest) {
  return Rankable(policy.by_age ? score / static_cast<float>(newest - position + 1) : score);
}

// Positions [0, sinks), the best `best` of [sinks, end) and all of [end, tokens), ascending.
template <typename F>
std::vector<int32_t> SinksBestAndRest(int64_t sinks, int64_t best, int64_t end, int64_t tokens, const F& rank) {
  std::vector<int32_t> keep(static_cast<size_t>(tokens));
  std::iota(keep.begin(), keep.end(), 0);
  const auto first = keep.begin() + sinks;
  const auto kept = first + best;
  const auto last = keep.begin() + end;
  if (best == end - sinks) return keep;
  if (best > 0) {
    std::nth_element(first, kept, last, [&](int32_t a, int32_t b) {
      const float rank_a = rank(a);
      const float rank_b = rank(b);
      return rank_a != rank_b ? rank_a > rank_b : a < b;
    });
    std::sort(first, kept);
  }
  keep.erase(kept, last);
  return keep;
}

}  // namespace

std::vector<float> PooledMeans(const CachePolicy& policy, int64_t tokens, absl::Span<const float> scores) {
  const int64_t end = std::max<int64_t>(0, tokens - policy.window);
  const auto queries = static_cast<float>(policy.QueriesScored(tokens));
  std::vector<float> means(static_cast<size_t>(end));
  const int64_t reach = policy.pool / 2;
  for (int64_t p = 0; p < end; ++p) {
    float sum = 0;
    for (int64_t q = std::max<int64_t>(0, p - reach); q <= std::min(end - 1, p + reach); ++q) {
      sum += scores[static_cast<size_t>(q)] / queries;
    }
    means[static_cast<size_t>(p)] = sum / static_cast<float>(policy.pool);
  }
  return means;
}

std::vector<int32_t> KeepOfPrompt(const CachePolicy& policy, int64_t tokens, absl::Span<const float> scores) {
  const int64_t kept = policy.Kept(tokens);
  const auto rank = [&](absl::Span<const float> by) {
    return [&policy, tokens, by](int32_t p) { return RankOf(policy, by[static_cast<size_t>(p)], p, tokens - 1); };
  };
  if (kept == tokens) return SinksBestAndRest(tokens, 0, tokens, tokens, rank({}));
  const int64_t best = kept - policy.sinks - policy.window;
  const int64_t end = tokens - policy.window;
  switch (policy.kind) {
    case CachePolicyKind::kFull:
    case CachePolicyKind::kSinkWindow:
      return SinksBestAndRest(policy.sinks, 0, end, tokens, rank({}));
    case CachePolicyKind::kSnapKv:
      return SinksBestAndRest(0, best, end, tokens, rank(PooledMeans(policy, tokens, scores)));
    case CachePolicyKind::kH2o:
    case CachePolicyKind::kTova:
      return SinksBestAndRest(policy.sinks, best, end, tokens, rank(scores));
  }
  return {};
}

int64_t SlotToLeave(const CachePolicy& policy, absl::Span<const int32_t> positions, absl::Span<const float> scores,
                    int64_t newest) {
  const bool ranks = policy.ranks();
  int64_t leaves = -1;
  float lowest = 0;
  for (size_t slot = 0; slot < positions.size(); ++slot) {
    const int32_t position = positions[slot];
    if (position < policy.sinks || position > newest - policy.window) continue;
    const float rank = ranks ? RankOf(policy, scores[slot], position, newest) : 0;
    if (leaves >= 0) {
      const int32_t other = positions[static_cast<size_t>(leaves)];
      // Without scores the oldest leaves; with equal ones the youngest.
      if (ranks ? rank > lowest || (rank == lowest && position < other) : position > other) continue;
    }
    leaves = static_cast<int64_t>(slot);
    lowest = rank;
  }
  return leaves;
}

int64_t SinkQueryPosition(const CachePolicy& policy, int64_t position) {
  return std::min(position, policy.sinks + policy.window);
}

}  // namespace sluice
