// How much attention the tokens of a prompt got while it was computed: what a policy that ranks keeps its tokens by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cache_policy.h"
#include "kernels/simd_kernels.h"
#include "model/kept_slots.h"
#include "model/kv_layout.h"

namespace sluice {

// Sums over the queries that the policy scores of the weights' mean over a list's query heads; see KeptSlots for lists.
class PromptScores {
 public:
  PromptScores(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens)
      : lists_(ListsOfLayer(policy, layout)),
        prompt_tokens_(prompt_tokens),
        first_query_(prompt_tokens - policy.QueriesScored(prompt_tokens)),
        sums_(Floats(policy, layout, prompt_tokens)) {}
  static size_t Bytes(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens) {
    return Floats(policy, layout, prompt_tokens) * sizeof(float);
  }

  int lists() const { return lists_; }  // of a layer
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t first_query() const { return first_query_; }  // position of the first one that is scored
  int64_t stride() const { return Stride(prompt_tokens_); }
  float* layer(int layer) { return sums_.data() + layer * lists_ * stride(); }  // [lists, stride]

 private:
  static int64_t Stride(int64_t prompt_tokens) { return (prompt_tokens + kDimPad - 1) / kDimPad * kDimPad; }
  static size_t Floats(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens) {
    return static_cast<size_t>(layout.layers * ListsOfLayer(policy, layout) * Stride(prompt_tokens));
  }

  int lists_;
  int64_t prompt_tokens_;
  int64_t first_query_;
  std::vector<float> sums_;
};

}  // namespace sluice
