// How far a cache takes a model from what it says with all KV in f32: prompts are computed densely and pruned once, as
// requests are; then the text that follows is fed, and every prediction compared; and from the prompt on the likeliest
// tokens are drawn.
#pragma once

#include <vector>

#include "eval/cache_case.h"
#include "eval/text_runner.h"

namespace sluice {

struct AgreementOptions {
  int64_t prompt_tokens = 0;  // of each text; budgets that are shares are shares of it
  int64_t greedy_tokens = 32;
};

struct AgreementRow {
  CacheCase cache;
  CachePolicy policy;
  int64_t tokens = 0;         // predictions
  double nll = 0;             // the mean, in nats
  double mean_kld = 0;        // KL divergence from the full cache's distribution
  double top1_agreement = 0;  // share of predictions with its likeliest token
  double greedy_tokens = 0;   // tokens drawn until the first that is not the full cache's, the mean over texts
};

struct Agreement {
  double full_nll = 0;  // all KV, in f32
  std::vector<AgreementRow> rows;
};

// REQUIRES: texts of one length, longer by two than a prompt.
StatusOr<Agreement> MeasureAgreement(TextRunner& runner, absl::Span<const absl::Span<const TokenId>> texts,
                                     absl::Span<const CacheCase> caches, const AgreementOptions& options);

}  // namespace sluice
