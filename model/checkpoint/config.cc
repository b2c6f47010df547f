#include "model/checkpoint/config.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace sluice {
namespace {

struct Bound {
  std::string_view field;
  int value;
  int max;
};

void CheckBounds(absl::Span<const Bound> bounds, std::vector<std::string>& problems) {
  for (const Bound& bound : bounds) {
    if (bound.value >= 1 && bound.value <= bound.max) continue;
    problems.push_back(absl::StrCat(absl::string_view(bound.field.data(), bound.field.size()), " is ", bound.value,
                                    ", 1 to ", bound.max, " are supported"));
  }
}

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
  CheckBounds(bounds, problems);
}

void CheckMla(const MlaConfig& mla, std::vector<std::string>& problems) {
  const Bound bounds[] = {{"the latent", mla.latent, kLatentMax},
                          {"the unrotated part of a head", mla.nope_dim, kHeadDimMax},
                          {"the rotated part of a head", mla.rope_dim, kHeadDimMax},
                          {"the value of a head", mla.value_dim, kHeadDimMax}};
  CheckBounds(bounds, problems);
  for (const Bound& bound : bounds) {
    if (bound.value % 2 == 0) continue;
    problems.push_back(
        absl::StrCat(absl::string_view(bound.field.data(), bound.field.size()), " is odd (", bound.value, ")"));
  }
}

void CheckMoe(const MoeConfig& moe, std::vector<std::string>& problems) {
  const Bound bounds[] = {{"experts", moe.experts, kExpertsMax},
                          {"an expert's intermediate size", moe.intermediate_size, kHiddenSizeMax * 16},
                          {"groups of experts", moe.groups, kExpertsMax}};
  CheckBounds(bounds, problems);
  const int64_t shared = int64_t{moe.shared_experts} * moe.intermediate_size;
  if (moe.shared_experts < 0 || shared > kHiddenSizeMax * 16) {
    problems.push_back(absl::StrCat("the shared experts' intermediate size is ", shared, ", 0 to ", kHiddenSizeMax * 16,
                                    " are supported"));
  }
  if (moe.experts < 1 || moe.groups < 1) return;
  if (moe.experts % moe.groups != 0) {
    problems.push_back(absl::StrCat(moe.experts, " experts do not divide into ", moe.groups, " groups"));
    return;
  }
  if (moe.groups_kept < 1 || moe.groups_kept > moe.groups) {
    problems.push_back(absl::StrCat(moe.groups_kept, " groups of experts are kept of ", moe.groups));
  }
  const int available = moe.experts / moe.groups * moe.groups_kept;
  if (moe.experts_per_token < 1 || moe.experts_per_token > available) {
    problems.push_back(absl::StrCat(moe.experts_per_token, " experts a token of ", available, " that can be chosen"));
  }
  if (moe.choice == MoeChoice::kNoAuxTc && moe.experts / moe.groups < 2) {
    problems.push_back(absl::StrCat("groups are ranked by their two best experts, but ", moe.groups, " groups of ",
                                    moe.experts, " experts have one each"));
  }
  if (!std::isfinite(moe.scale)) problems.push_back(absl::StrCat("the experts' scale is ", moe.scale));
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
  CheckRope(config.rope, config.rotary_dim(), problems);
  if (config.mla) CheckMla(*config.mla, problems);
  if (config.moe) CheckMoe(*config.moe, problems);
  for (const TokenId id : config.eos_ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    problems.push_back(absl::StrCat("end token ", id, " is outside the vocabulary of ", config.vocab_size));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

}  // namespace sluice
