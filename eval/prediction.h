// What a row of logits predicts, in double: log p of a token, the likeliest token, and how far two rows are apart.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace sluice {

// log of the sum of e^logit: log p of token k is logits[k] minus it.
double LogSumExp(absl::Span<const float> logits);

// Of equal ones the lower id.
TokenId Likeliest(absl::Span<const float> logits);

// A distribution that others are compared with.
class BasePrediction {
 public:
  void Set(absl::Span<const float> logits, double log_sum_exp);

  TokenId likeliest() const { return likeliest_; }
  // KL divergence of the distribution of `logits` from this one, in nats. REQUIRES: Set, with as many logits.
  double Divergence(absl::Span<const float> logits, double log_sum_exp) const;

 private:
  std::vector<double> p_;
  double mean_log_p_ = 0;  // the sum of p log p
  TokenId likeliest_ = 0;
};

}  // namespace sluice
