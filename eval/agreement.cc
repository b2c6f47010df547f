#include "eval/agreement.h"

#include <algorithm>
#include <numeric>

namespace sluice {
namespace {

double Sum(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

size_t SameBeginning(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

// Of each text: a run in which the text follows, of the full cache in f32 and of each cache; then as many that draw.
StatusOr<Agreement> MeasureAgreement(TextRunner& runner, absl::Span<const absl::Span<const TokenId>> texts,
                                     absl::Span<const CacheCase> caches, const AgreementOptions& options) {
  const size_t variants = caches.size() + 1;
  std::vector<TextRun> runs;
  for (size_t t = 0; t < texts.size(); ++t) {
    for (const bool draws : {false, true}) {
      const auto base = static_cast<int>(runs.size());
      for (size_t v = 0; v < variants; ++v) {
        TextRun run = {.ids = texts[t], .prompt_tokens = options.prompt_tokens, .group = static_cast<int64_t>(t)};
        if (draws) {
          run.ids = texts[t].subspan(0, static_cast<size_t>(options.prompt_tokens));
          run.generated_tokens = options.greedy_tokens;
        } else if (v > 0) {
          run.compared_with = base;
        }
        if (v > 0) {
          SLUICE_ASSIGN_OR_RETURN(run.policy, Resolve(caches[v - 1].policy, options.prompt_tokens));
          run.codec = caches[v - 1].codec;
        }
        runs.push_back(run);
      }
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TextOutcome> outcomes, runner.Run(runs));

  Agreement result;
  int64_t full_tokens = 0;
  result.rows.resize(caches.size());
  for (size_t t = 0; t < texts.size(); ++t) {
    const TextOutcome* fed = &outcomes[2 * t * variants];
    const TextOutcome* drawn = fed + variants;
    result.full_nll += Sum(fed[0].nlls);
    full_tokens += static_cast<int64_t>(fed[0].nlls.size());
    for (size_t c = 0; c < caches.size(); ++c) {
      AgreementRow& row = result.rows[c];
      const TextOutcome& outcome = fed[c + 1];
      row.cache = caches[c];
      row.policy = outcome.policy;
      row.tokens += outcome.compared;
      row.nll += Sum(outcome.nlls);
      row.mean_kld += outcome.kld;
      row.top1_agreement += static_cast<double>(outcome.same_top);
      row.greedy_tokens += static_cast<double>(SameBeginning(drawn[0].generated_tokens, drawn[c + 1].generated_tokens));
    }
  }
  result.full_nll /= static_cast<double>(full_tokens);
  for (AgreementRow& row : result.rows) {
    for (double* sum : {&row.nll, &row.mean_kld, &row.top1_agreement}) *sum /= static_cast<double>(row.tokens);
    row.greedy_tokens /= static_cast<double>(texts.size());
  }
  return result;
}

}  // namespace sluice
