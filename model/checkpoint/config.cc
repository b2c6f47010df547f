#include "model/checkpoint/config.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_join.h"

namespace sluice {
namespace {

struct Bound {
  std::string_view field;
  int value;
  int max;
};

void CheckSizes(const ModelConfig& config, std::vector<std::string>& problems) {
  const Bound bounds[] = {
      {"vocab_size", config.vocab_size, kVocabSizeMax},
      {"hidden_size", config.hidden_size, kHiddenSizeMax},
      {"layers", config.layers, kLayersMax},
      {"heads", config.heads, kHeadsMax},
      {"kv_heads", config.kv_heads, kHeadsMax},
      {"head_dim", config.head_dim, kHeadDimMax},
      {"intermediate_size", config.intermediate_size, kHiddenSizeMax * 16},
      {"context_tokens_max", config.context_tokens_max, kContextTokensMax},
  };
  for (const Bound& bound : bounds) {
    if (bound.value >= 1 && bound.value <= bound.max) continue;
    problems.push_back(absl::StrCat(absl::string_view(bound.field.data(), bound.field.size()), " is ", bound.value,
                                    ", 1 to ", bound.max, " are supported"));
  }
}

bool Positive(double value) { return std::isfinite(value) && value > 0; }

void CheckRope(const RopeConfig& rope, int head_dim, std::vector<std::string>& problems) {
  if (!Positive(rope.theta)) problems.push_back(absl::StrCat("rope theta is ", rope.theta));
  if (rope.scaling != RopeScaling::kNone && !Positive(rope.factor)) {
    problems.push_back(absl::StrCat("rope scaling factor is ", rope.factor));
  }
  const bool has_original = rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn;
  if (has_original && (rope.original_context_tokens < 1 || rope.original_context_tokens > kContextTokensMax)) {
    problems.push_back(absl::StrCat("rope original context is ", rope.original_context_tokens, " tokens"));
  }
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(Positive(rope.low_freq_factor) && rope.high_freq_factor > rope.low_freq_factor)) {
    problems.push_back(absl::StrCat("llama3 rope needs low_freq_factor (", rope.low_freq_factor,
                                    ") above 0 and below high_freq_factor (", rope.high_freq_factor, ")"));
  }
  if (rope.scaling == RopeScaling::kYarn && !(Positive(rope.beta_slow) && rope.beta_fast >= rope.beta_slow)) {
    problems.push_back(absl::StrCat("yarn rope needs beta_slow (", rope.beta_slow,
                                    ") above 0 and not above beta_fast (", rope.beta_fast, ")"));
  }
  if (!rope.frequency_factors.empty() && rope.frequency_factors.size() * 2 != static_cast<size_t>(head_dim)) {
    problems.push_back(absl::StrCat("there are ", rope.frequency_factors.size(),
                                    " rope frequency factors for a head_dim of ", head_dim));
  }
  for (const float factor : rope.frequency_factors) {
    if (Positive(factor)) continue;
    problems.push_back(absl::StrCat("a rope frequency factor is ", factor));
    break;
  }
}

}  // namespace

Status Validate(const ModelConfig& config) {
  std::vector<std::string> problems;
  CheckSizes(config, problems);
  if (config.kv_heads > 0 && config.heads % config.kv_heads != 0) {
    problems.push_back(
        absl::StrCat("heads (", config.heads, ") is not a multiple of kv_heads (", config.kv_heads, ")"));
  }
  if (config.head_dim % 2 != 0) problems.push_back(absl::StrCat("head_dim (", config.head_dim, ") is odd"));
  if (!Positive(config.rms_norm_eps)) problems.push_back(absl::StrCat("rms_norm_eps is ", config.rms_norm_eps));
  CheckRope(config.rope, config.head_dim, problems);
  for (const TokenId id : config.eos_ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    problems.push_back(absl::StrCat("end token ", id, " is outside the vocabulary of ", config.vocab_size));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

}  // namespace sluice
