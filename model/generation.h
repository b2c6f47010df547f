// One choice of one request, from logits to text: sampling, log-probabilities, stop conditions, detokenising. Knows no
// KV and no batch. Its whole state is a ChoiceState proto, so that it can stop after the first token in a prefill
// process and go on in a decode process. Driven by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/proto/handoff.pb.h"
#include "common/sampling_params.h"
#include "common/status.h"
#include "model/text/tokenizer.h"

namespace sluice {

// What every choice of a request shares; outlives the choices.
struct GenerationContext {
  const Tokenizer* tokenizer = nullptr;  // null: ids only, no text and no stop strings (models without a tokenizer)
  SamplingParams sampling;
  std::vector<TokenId> prompt_ids;  // for the repetition penalty
  std::vector<TokenId> eos_ids;
  int vocab_size = 0;
  int64_t positions_max = 0;  // prompt + generated never exceed it; then FINISH_LENGTH
};

class Generation {
 public:
  Generation(const GenerationContext* context, int choice_index);
  // Continues from another process's state, which came over a wire: everything in it is compared with what the
  // generated tokens lead to. DataLoss where the state contradicts itself or the context.
  static StatusOr<Generation> Resume(const GenerationContext* context, const proto::ChoiceState& state);

  // Samples the next token from `logits`, [vocab], and does everything that follows from it. Returns the token with the
  // text that became sendable; the last token's includes what had been held back. Internal where the logits are no
  // numbers or not `vocab_size` of them; nothing has changed then. REQUIRES: !finished().
  StatusOr<proto::GeneratedToken> Step(absl::Span<const float> logits);

  bool finished() const;
  proto::FinishReason finish() const;
  absl::Span<const TokenId> generated() const;
  std::string_view stop_match() const;  // the stop string that ended it; empty otherwise

  // Everything but `unsent`, which the caller fills.
  proto::ChoiceState State() const;

  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;
  ~Generation();

 private:
  struct Impl;
  explicit Generation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
