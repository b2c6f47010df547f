// The end of a prefill: the last prompt token's logits become the first token of every choice. Whoever computed the
// prompt does it, a prefill process or decode itself, and both the same way.
#pragma once

#include "absl/types/span.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/generation.h"

namespace sluice {

// Each choice draws a token of its own from the same `logits`, [vocab]; its state, the token being unsent, is added to
// `record`. True where every choice ends with that token. Internal, with `record` in an unknown state, where the logits
// are no numbers.
StatusOr<bool> ChooseFirstTokens(const GenerationContext& context, absl::Span<const float> logits,
                                 proto::HandoffRecord* record);

}  // namespace sluice
