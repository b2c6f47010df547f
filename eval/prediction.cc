#include "eval/prediction.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double LogSumExp(absl::Span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

TokenId Likeliest(absl::Span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void BasePrediction::Set(absl::Span<const float> logits, double log_sum_exp) {
  p_.resize(logits.size());
  mean_log_p_ = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = logits[i] - log_sum_exp;
    p_[i] = std::exp(log_p);
    mean_log_p_ += p_[i] * log_p;
  }
  likeliest_ = Likeliest(logits);
}

double BasePrediction::Divergence(absl::Span<const float> logits, double log_sum_exp) const {
  double mean_log_q = 0;
  for (size_t i = 0; i < logits.size(); ++i) mean_log_q += p_[i] * (logits[i] - log_sum_exp);
  return mean_log_p_ - mean_log_q;
}

}  // namespace sluice
