#include "common/sampling_params.h"

#include <cmath>

#include "absl/strings/str_join.h"

namespace sluice {

namespace {
class Problems {
 public:
  template <typename T>
  void Range(absl::string_view field, T value, T low, T high) {
    // The negation also catches NaN.
    if (!(value >= low && value <= high)) {
      Add(absl::StrCat(field, " is ", value, ", must be from ", low, " to ", high));
    }
  }
  // Values come from a network: what is said about them stays short however many are wrong.
  void Add(std::string problem) {
    if (list_.size() < kProblemsMax) list_.push_back(std::move(problem));
  }
  bool Full() const { return list_.size() >= kProblemsMax; }
  Status ToStatus() const {
    return list_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(list_, "; "));
  }

 private:
  static constexpr size_t kProblemsMax = 16;
  std::vector<std::string> list_;
};
}  // namespace

Status SamplingParams::Validate(int vocab_size) const {
  Problems p;
  p.Range("temperature", temperature, 0.0f, 2.0f);
  p.Range("top_k", top_k, 0, vocab_size);
  p.Range("top_p", top_p, 0.0f, 1.0f);
  if (top_p == 0.0f) p.Add("top_p is 0, must be above 0");
  p.Range("min_p", min_p, 0.0f, 1.0f);
  p.Range("repetition_penalty", repetition_penalty, 0.01f, 100.0f);
  p.Range("presence_penalty", presence_penalty, -2.0f, 2.0f);
  p.Range("frequency_penalty", frequency_penalty, -2.0f, 2.0f);
  p.Range("n", n, 1, kMaxChoices);
  p.Range("max_tokens", max_tokens, 1, kMaxTokens);
  p.Range("min_tokens", min_tokens, 0, max_tokens);
  p.Range("top_logprobs", top_logprobs, 0, kMaxTopLogprobs);
  if (top_logprobs > 0 && !logprobs) p.Add(absl::StrCat("top_logprobs is ", top_logprobs, " but logprobs is false"));
  p.Range("number of logit_bias entries", static_cast<int>(logit_bias.size()), 0, kMaxLogitBias);
  for (const LogitBias& b : logit_bias) {
    if (p.Full()) break;
    p.Range("token id in logit_bias", b.token, 0, vocab_size - 1);
    p.Range(absl::StrCat("logit_bias of token ", b.token), b.bias, -100.0f, 100.0f);
  }
  p.Range("number of stop_token_ids", static_cast<int>(stop_token_ids.size()), 0, kMaxStops);
  for (const TokenId id : stop_token_ids) {
    if (p.Full()) break;
    p.Range("stop token id", id, 0, vocab_size - 1);
  }
  p.Range("number of stop strings", static_cast<int>(stop_strings.size()), 0, kMaxStops);
  for (const std::string& s : stop_strings) {
    if (p.Full()) break;
    p.Range("length of a stop string in bytes", static_cast<int>(s.size()), 1, kMaxStopBytes);
  }
  return p.ToStatus();
}

}  // namespace sluice
