#include "model/first_tokens.h"

#include <utility>

namespace sluice {

StatusOr<bool> ChooseFirstTokens(const GenerationContext& context, absl::Span<const float> logits,
                                 proto::HandoffRecord* record) {
  bool all_finished = true;
  for (int i = 0; i < context.sampling.n; ++i) {
    Generation generation(&context, i);
    SLUICE_ASSIGN_OR_RETURN(proto::GeneratedToken token, generation.Step(logits));
    proto::ChoiceState& choice = *record->add_choices();
    choice = generation.State();
    *choice.add_unsent() = std::move(token);
    all_finished &= generation.finished();
  }
  return all_finished;
}

}  // namespace sluice
