#include "prefill/scheduler.h"

#include <algorithm>

#include "common/status.h"

namespace sluice::prefill {

Decision Next(absl::Time now, const SchedulerLimits& limits, absl::Span<const PromptView> prompts, int pages_free,
              int64_t pruning_bytes_free) {
  Decision decision;
  decision.wake_at = absl::InfiniteFuture();
  int64_t tokens_left = limits.batch_tokens_max;
  int logit_rows_left = limits.logit_rows_max;
  bool someone_waits = false;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const PromptView& prompt = prompts[i];
    SLUICE_CHECK(prompt.computed_tokens >= 0 && prompt.computed_tokens < prompt.prompt_tokens);
    if (prompt.cancelled) {
      decision.cancelled.push_back(i);
      continue;
    }
    if (prompt.deadline <= now) {
      decision.expired.push_back(i);
      continue;
    }
    decision.wake_at = std::min(decision.wake_at, prompt.deadline);
    if (tokens_left == 0 || logit_rows_left == 0) continue;
    if (!prompt.started) {
      someone_waits |= prompt.pages_needed > pages_free || prompt.pruning_bytes_needed > pruning_bytes_free;
      if (someone_waits) continue;
      pages_free -= prompt.pages_needed;
      pruning_bytes_free -= prompt.pruning_bytes_needed;
      decision.start.push_back(i);
    }
    const int64_t remaining = prompt.prompt_tokens - prompt.computed_tokens;
    const int64_t tokens = std::min(tokens_left, remaining);
    const bool last = tokens == remaining;
    decision.chunks.push_back({.prompt = i, .first_token = prompt.computed_tokens, .tokens = tokens, .last = last});
    tokens_left -= tokens;
    logit_rows_left -= last ? 1 : 0;
  }
  return decision;
}

}  // namespace sluice::prefill
