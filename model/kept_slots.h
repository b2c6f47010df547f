// What one choice of a request keeps of its KV under a cache policy, and where: for each list of slots the position of
// each slot's token, and its score. A list is a kv head of a layer, or a whole layer where all heads keep the same
// (latent attention, tova), or everything (sink-window): slot s of a list is its rows of the s-th token of the
// sequence's pages. All lists hold equally many, packed at the front, so that attention runs over slots as it would
// over positions.
//
// Softmax does not ask for order, so slots are used again in place. Until the first token leaves, a slot is a position,
// and everything is what it would be without a policy, to the bit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/cache_policy.h"
#include "model/kv_layout.h"

namespace sluice {

// Of a layer.
int ListsOfLayer(const CachePolicy& policy, const KvLayout& layout);

class KeptSlots {
 public:
  // Empty: nothing of the prompt has been computed. `slots_max` is the policy's Slots.
  KeptSlots(const CachePolicy& policy, const KvLayout& layout, int64_t slots_max);
  static size_t Bytes(const CachePolicy& policy, const KvLayout& layout, int64_t slots_max);

  const CachePolicy& policy() const { return policy_; }
  int lists() const { return lists_; }                              // of a layer: 1 or the kv heads
  int all_lists() const { return static_cast<int>(next_.size()); }  // of all layers; 1 of sink-window
  int64_t held() const { return held_; }                            // slots of each list, between steps
  int64_t position() const { return position_; }                    // of the next token
  int64_t dropped() const { return position_ - held_; }
  // Positions that a list keeps, ascending, and their scores in the same order.
  std::vector<int32_t> Positions(int layer, int list) const;
  std::vector<float> Scores(int layer, int list) const;

  // The prompt was computed densely: keeps of `layer`'s lists what the policy keeps. `scores`, where the policy ranks,
  // has a row for each list, `stride` floats apart; see KeepOfPrompt. The token at the position that Positions names
  // i-th belongs into slot i. After every layer, FinishPrompt.
  void KeepPrompt(int layer, int64_t tokens, const float* scores, int64_t stride);
  // The same of one list that somebody else has chosen: ascending positions, and scores where the policy ranks steps.
  void SetPrompt(int layer, int list, absl::Span<const int32_t> positions, absl::Span<const float> scores);
  void FinishPrompt(int64_t tokens);

  // A step of `tokens` tokens, at most StepMax(): one, where the policy ranks steps or would let a token go.
  int64_t StepMax() const;
  // Where KV of the step's `token`-th goes.
  int32_t SlotFor(int layer, int list, int64_t token) const {
    return next_[List(layer, list)] + static_cast<int32_t>(token);
  }
  // After attention over held() + tokens slots: `weights`, where the policy ranks steps, has a row of them for each
  // list, the mean over its query heads, by slot. After every layer, FinishStep.
  void StepLayer(int layer, int64_t tokens, const float* weights, int64_t stride);
  void FinishStep(int64_t tokens);

 private:
  size_t List(int layer, int list) const {
    return policy_.ranks() ? static_cast<size_t>(layer) * static_cast<size_t>(lists_) + static_cast<size_t>(list) : 0;
  }
  absl::Span<int32_t> PositionsOf(size_t list, int64_t slots);
  absl::Span<float> ScoresOf(size_t list, int64_t slots);
  void Append(size_t list, int64_t tokens, const float* weights);

  CachePolicy policy_;
  int lists_;
  int64_t slots_max_;
  int64_t held_ = 0;
  int64_t position_ = 0;
  std::vector<int32_t> positions_;  // [all lists][slots_max]; -1 where the slot's token has left
  std::vector<float> scores_;       // likewise; empty where the policy does not rank steps
  std::vector<int32_t> next_;       // [all lists]: the slot of the next token
};

}  // namespace sluice
