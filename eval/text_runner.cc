#include "eval/text_runner.h"

#include <algorithm>

#include "eval/lockstep.h"

namespace sluice {
namespace {

constexpr int kBatchTokens = 512;
constexpr int kLogitRows = 64;
constexpr int64_t kRankedSlots = int64_t{1} << 17;

Status CheckRun(const TextRun& run, const ModelConfig& config) {
  const auto tokens = static_cast<int64_t>(run.ids.size());
  if (run.prompt_tokens < 0 || run.prompt_tokens > tokens || TokensToFeed(run) < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", tokens, " tokens, ", run.prompt_tokens,
                                                   " of them a prompt, has nothing to be predicted"));
  }
  const int64_t end = run.prompt_tokens + TokensToFeed(run);
  if (run.prompt_tokens > config.context_tokens_max || end > run.policy.PositionsMax(config.context_tokens_max)) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(run.policy), ": a text of ", end, " tokens, ",
                                                   run.prompt_tokens, " of them a prompt, is longer than the model's ",
                                                   "context of ", config.context_tokens_max));
  }
  return absl::OkStatus();
}

}  // namespace

TransformerOptions TextRunner::Transformers(int threads, bool exact) {
  return {.threads = threads,
          .batch_tokens_max = kBatchTokens,
          .logit_rows_max = kLogitRows,
          .ranked_slots_max = kRankedSlots,
          .exact = exact};
}

StatusOr<size_t> TextRunner::WaveEnd(absl::Span<const TextRun> runs, size_t begin) const {
  const TransformerOptions& limits = transformer_->options();
  const KvLayout layout = KvLayout::Of(config());
  size_t end = begin;
  int64_t ranked_slots = 0;
  size_t bytes = 0;
  size_t prompt_bytes = 0;
  size_t i = begin;
  for (; i < runs.size(); ++i) {
    if (runs[i].policy.ranks_steps()) ranked_slots += SlotsOf(runs[i]);
    bytes += Bytes(layout, runs[i].codec, SlotsOf(runs[i]) + kLockstepPageTokens);
    prompt_bytes = std::max(prompt_bytes, Bytes(layout, runs[i].codec, runs[i].prompt_tokens + kLockstepPageTokens));
    const bool fits = static_cast<int>(i + 1 - begin) <= limits.logit_rows_max &&
                      ranked_slots <= limits.ranked_slots_max && bytes + prompt_bytes <= options_.kv_bytes_max;
    if (!fits) break;
    if (i + 1 == runs.size() || runs[i + 1].group != runs[i].group) end = i + 1;
  }
  if (end > begin) return end;
  return absl::ResourceExhaustedError(
      absl::StrCat(i + 1 - begin, " texts that are run together (at most ", limits.logit_rows_max, ") need ",
                   ranked_slots, " slots whose scores are kept (at most ", limits.ranked_slots_max, ") and ",
                   bytes + prompt_bytes, " bytes of KV (at most ", options_.kv_bytes_max,
                   "): allow more memory, or measure fewer caches at once or a shorter text"));
}

StatusOr<std::vector<TextOutcome>> TextRunner::Run(absl::Span<const TextRun> runs) {
  int64_t all = 0;
  for (const TextRun& run : runs) {
    SLUICE_RETURN_IF_ERROR(CheckRun(run, config()));
    all += run.prompt_tokens + TokensToFeed(run);
  }
  int64_t done = 0;
  const auto on_tokens = [&](int64_t tokens) {
    done += tokens;
    if (options_.on_progress) options_.on_progress(done, all);
  };
  std::vector<size_t> ends;
  while ((ends.empty() ? 0 : ends.back()) < runs.size()) {
    SLUICE_ASSIGN_OR_RETURN(const size_t end, WaveEnd(runs, ends.empty() ? 0 : ends.back()));
    ends.push_back(end);
  }
  std::vector<TextOutcome> outcomes(runs.size());
  size_t begin = 0;
  for (const size_t end : ends) {
    Lockstep lockstep(transformer_, runs, begin, end, &outcomes, on_tokens);
    SLUICE_RETURN_IF_ERROR(lockstep.Run());
    begin = end;
  }
  return outcomes;
}

}  // namespace sluice
