// Which chunks of which prompts the next step computes. A pure function: no clock, no thread, no I/O.
//
// First come, first served: a step is filled with the oldest prompts' next tokens, so several short prompts share one
// and a long one is cut. A prompt starts when its pages and the memory to prune it are free, and no younger one before
// it: overtaking would let a stream of short prompts starve a long one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace sluice::prefill {

struct SchedulerLimits {
  int batch_tokens_max = 0;  // of one step
  int logit_rows_max = 0;    // prompts whose last chunk may run in one step
};

// A prompt that is queued or being computed.
struct PromptView {
  int64_t prompt_tokens = 0;
  int64_t computed_tokens = 0;
  int pages_needed = 0;
  int64_t pruning_bytes_needed = 0;
  bool started = false;  // has its pages, and what pruning it takes
  bool cancelled = false;
  absl::Time deadline;
};

struct Chunk {
  size_t prompt = 0;  // index into the state
  int64_t first_token = 0;
  int64_t tokens = 0;
  bool last = false;  // ends its prompt: logits are wanted
  bool operator==(const Chunk&) const = default;
};

struct Decision {
  std::vector<size_t> cancelled;  // to give up; disjoint from everything else
  std::vector<size_t> expired;    // likewise
  std::vector<size_t> start;      // give it what it needs first
  std::vector<Chunk> chunks;      // then run these together; empty: nothing to do
  absl::Time wake_at;             // decide again then at the latest, should nothing happen before: the next deadline
};

// `prompts` in order of arrival; of each 0 <= computed_tokens < prompt_tokens.
Decision Next(absl::Time now, const SchedulerLimits& limits, absl::Span<const PromptView> prompts, int pages_free,
              int64_t pruning_bytes_free = 0);

}  // namespace sluice::prefill
