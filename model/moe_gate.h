// Which experts a token goes to, and with what weights: a pure function of the router's logits.
//
// Formulas: DeepSeek-V2's modeling_deepseek.py, class MoEGate, and DeepSeek-V3's inference/model.py, class Gate. V2
// scores by softmax and keeps the groups with the best experts. V3 scores by sigmoid, adds the correction bias to
// choose, keeps the groups whose two best have the largest sum, and weighs with the scores as they were before the
// bias. An expert of a group that is not kept is out of the question, not merely at zero: biased scores may be
// negative.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "model/checkpoint/config.h"

namespace sluice {

struct ExpertWeight {
  int32_t expert = 0;
  float weight = 0;
};

// The experts of one token, the best first; of equal ones the lower number. `bias` is empty but with
// MoeChoice::kNoAuxTc. An expert whose logit is no number comes last, and its weight is none either.
// REQUIRES: `config` has passed Validate, `logits` has a value for each expert, `chosen` room for experts_per_token.
void ChooseExperts(const MoeConfig& config, absl::Span<const float> logits, absl::Span<const float> bias,
                   absl::Span<ExpertWeight> chosen);

}  // namespace sluice
