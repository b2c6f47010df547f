#include "model/kept_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/kept_tokens.h"

namespace sluice {

int ListsOfLayer(const CachePolicy& policy, const KvLayout& layout) {
  return policy.per_layer() ? 1 : layout.rows_per_token();
}

namespace {

size_t AllLists(const CachePolicy& policy, const KvLayout& layout) {
  return policy.ranks() ? static_cast<size_t>(layout.layers) * static_cast<size_t>(ListsOfLayer(policy, layout)) : 1;
}

}  // namespace

KeptSlots::KeptSlots(const CachePolicy& policy, const KvLayout& layout, int64_t slots_max)
    : policy_(policy), lists_(ListsOfLayer(policy, layout)), slots_max_(slots_max) {
  const size_t lists = AllLists(policy, layout);
  positions_.resize(lists * static_cast<size_t>(slots_max), -1);
  if (policy.ranks_steps()) scores_.resize(positions_.size());
  next_.resize(lists);
}

size_t KeptSlots::Bytes(const CachePolicy& policy, const KvLayout& layout, int64_t slots_max) {
  const size_t slot = sizeof(int32_t) + (policy.ranks_steps() ? sizeof(float) : 0);
  return AllLists(policy, layout) * (static_cast<size_t>(slots_max) * slot + sizeof(int32_t));
}

absl::Span<int32_t> KeptSlots::PositionsOf(size_t list, int64_t slots) {
  return absl::MakeSpan(positions_).subspan(list * static_cast<size_t>(slots_max_), static_cast<size_t>(slots));
}

absl::Span<float> KeptSlots::ScoresOf(size_t list, int64_t slots) {
  if (scores_.empty()) return {};
  return absl::MakeSpan(scores_).subspan(list * static_cast<size_t>(slots_max_), static_cast<size_t>(slots));
}

std::vector<int32_t> KeptSlots::Positions(int layer, int list) const {
  const auto first = positions_.begin() + static_cast<ptrdiff_t>(List(layer, list)) * slots_max_;
  std::vector<int32_t> kept;
  std::copy_if(first, first + slots_max_, std::back_inserter(kept), [](int32_t p) { return p >= 0; });
  std::sort(kept.begin(), kept.end());
  return kept;
}

std::vector<float> KeptSlots::Scores(int layer, int list) const {
  if (scores_.empty()) return {};
  const size_t first = List(layer, list) * static_cast<size_t>(slots_max_);
  std::vector<std::pair<int32_t, float>> kept;
  for (size_t i = first; i < first + static_cast<size_t>(slots_max_); ++i) {
    if (positions_[i] >= 0) kept.emplace_back(positions_[i], scores_[i]);
  }
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<float> scores;
  for (const auto& [position, score] : kept) scores.push_back(score);
  return scores;
}

void KeptSlots::KeepPrompt(int layer, int64_t tokens, const float* scores, int64_t stride) {
  if (!policy_.ranks() && layer > 0) return;
  for (int list = 0; list < (policy_.ranks() ? lists_ : 1); ++list) {
    const absl::Span<const float> all = policy_.ranks()
                                            ? absl::MakeConstSpan(scores + list * stride, static_cast<size_t>(tokens))
                                            : absl::Span<const float>();
    const std::vector<int32_t> keep = KeepOfPrompt(policy_, tokens, all);
    std::vector<float> of_kept;
    if (policy_.ranks_steps()) {
      for (const int32_t p : keep) of_kept.push_back(all[static_cast<size_t>(p)]);
    }
    SetPrompt(layer, list, keep, of_kept);
  }
}

void KeptSlots::SetPrompt(int layer, int list, absl::Span<const int32_t> positions, absl::Span<const float> scores) {
  const size_t l = List(layer, list);
  std::copy(positions.begin(), positions.end(), PositionsOf(l, static_cast<int64_t>(positions.size())).begin());
  std::copy(scores.begin(), scores.end(), ScoresOf(l, static_cast<int64_t>(scores.size())).begin());
  next_[l] = static_cast<int32_t>(positions.size());
}

void KeptSlots::FinishPrompt(int64_t tokens) {
  held_ = policy_.Kept(tokens);
  position_ = tokens;
}

int64_t KeptSlots::StepMax() const {
  if (policy_.ranks_steps()) return 1;
  if (!policy_.bounded()) return slots_max_ - held_;
  return std::max<int64_t>(1, std::min(policy_.budget, slots_max_) - held_);
}

// The step's tokens into their slots, and the one that has to leave out of its own.
void KeptSlots::Append(size_t list, int64_t tokens, const float* weights) {
  const int64_t slots = held_ + tokens;
  const absl::Span<int32_t> positions = PositionsOf(list, slots);
  const absl::Span<float> scores = ScoresOf(list, slots);
  for (int64_t i = 0; i < tokens; ++i) {
    const auto slot = static_cast<size_t>(next_[list] + i);
    positions[slot] = static_cast<int32_t>(position_ + i);
    if (!scores.empty()) scores[slot] = 0;
  }
  const bool replaces = policy_.kind == CachePolicyKind::kTova;
  for (size_t slot = 0; slot < scores.size(); ++slot) {
    scores[slot] = (replaces ? 0 : policy_.decay * scores[slot]) + weights[slot];
  }
  next_[list] = static_cast<int32_t>(slots);
  if (!policy_.bounded() || slots <= policy_.budget) return;
  const int64_t leaves = SlotToLeave(policy_, positions, scores, position_ + tokens - 1);
  positions[static_cast<size_t>(leaves)] = -1;
  next_[list] = static_cast<int32_t>(leaves);
}

void KeptSlots::StepLayer(int layer, int64_t tokens, const float* weights, int64_t stride) {
  if (!policy_.ranks_steps()) return;
  for (int list = 0; list < lists_; ++list) Append(List(layer, list), tokens, weights + list * stride);
}

void KeptSlots::FinishStep(int64_t tokens) {
  if (!policy_.ranks_steps()) {
    for (size_t list = 0; list < next_.size(); ++list) Append(list, tokens, nullptr);
  }
  held_ = policy_.bounded() ? std::min(held_ + tokens, policy_.budget) : held_ + tokens;
  position_ += tokens;
}

}  // namespace sluice
