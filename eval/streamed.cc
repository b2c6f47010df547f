#include "eval/streamed.h"

#include <algorithm>

namespace sluice {
namespace {

StreamedRow Summary(const CacheCase& cache, absl::Span<const TextOutcome> outcomes, int64_t block) {
  StreamedRow row = {.cache = cache, .policy = outcomes[0].policy};
  std::vector<int64_t> counts;
  for (const TextOutcome& outcome : outcomes) {
    for (size_t i = 0; i < outcome.nlls.size(); ++i) {
      const size_t b = i / static_cast<size_t>(block);
      if (b >= counts.size()) {
        counts.resize(b + 1);
        row.blocks.resize(b + 1);
      }
      ++counts[b];
      row.blocks[b] += outcome.nlls[i];
      row.nll += outcome.nlls[i];
      ++row.tokens;
    }
  }
  for (size_t b = 0; b < counts.size(); ++b) row.blocks[b] /= static_cast<double>(counts[b]);
  row.nll /= static_cast<double>(row.tokens);
  return row;
}

}  // namespace

StatusOr<std::vector<StreamedRow>> MeasureStreamed(TextRunner& runner,
                                                   absl::Span<const absl::Span<const TokenId>> texts,
                                                   absl::Span<const CacheCase> caches, const StreamedOptions& options) {
  std::vector<const CacheCase*> streamed;
  std::vector<TextRun> runs;
  for (const CacheCase& cache : caches) {
    if (cache.policy.kind == CachePolicyKind::kSnapKv) continue;
    streamed.push_back(&cache);
    SLUICE_ASSIGN_OR_RETURN(const CachePolicy policy, Resolve(cache.policy, options.budget_of));
    const auto tokens_max = static_cast<size_t>(policy.PositionsMax(runner.config().context_tokens_max));
    for (const absl::Span<const TokenId> ids : texts) {
      runs.push_back({.ids = ids.subspan(0, tokens_max),
                      .policy = policy,
                      .codec = cache.codec,
                      .group = static_cast<int64_t>(runs.size())});
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TextOutcome> outcomes, runner.Run(runs));
  std::vector<StreamedRow> rows;
  for (size_t i = 0; i < streamed.size(); ++i) {
    const auto of_cache = absl::MakeConstSpan(outcomes).subspan(i * texts.size(), texts.size());
    rows.push_back(Summary(*streamed[i], of_cache, options.block));
  }
  return rows;
}

}  // namespace sluice
