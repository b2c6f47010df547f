#include "decode/policy_choice.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/kept_prompt.h"

namespace sluice::decode {

namespace {

Status CheckWanted(const PolicyLimits& limits, const CachePolicy& wanted, const CachePolicy& deployments,
                   int64_t prompt_tokens, int64_t max_tokens) {
  if (wanted == deployments) return absl::OkStatus();
  if (std::find(limits.allowed.begin(), limits.allowed.end(), wanted.kind) == limits.allowed.end()) {
    const auto name = [](std::string* out, CachePolicyKind kind) { out->append(Name(kind)); };
    return absl::InvalidArgumentError(absl::StrCat("cache policy ", std::string(Name(wanted.kind)),
                                                   " is none that a request may name here (",
                                                   absl::StrJoin(limits.allowed, ", ", name), ")"));
  }
  const auto slots_of = [&](const CachePolicy& policy) {
    return policy.Slots(prompt_tokens, policy.Generated(prompt_tokens, max_tokens, limits.context_tokens_max) - 1);
  };
  const int64_t slots = slots_of(wanted);
  const int64_t slots_max = slots_of(deployments);
  if (slots <= slots_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cache policy ", ToString(wanted), " needs ", slots,
                                                 " slots, this deployment's ", ToString(deployments), " ", slots_max));
}

}  // namespace

StatusOr<CachePolicy> ChoosePolicy(const PolicyLimits& limits, const std::optional<CachePolicySpec>& wanted,
                                   int64_t prompt_tokens, int64_t max_tokens) {
  SLUICE_ASSIGN_OR_RETURN(const CachePolicy deployments, Resolve(limits.deployments, prompt_tokens));
  CachePolicy policy = deployments;
  if (wanted) {
    SLUICE_ASSIGN_OR_RETURN(policy, Resolve(*wanted, prompt_tokens));
    SLUICE_RETURN_IF_ERROR(CheckWanted(limits, policy, deployments, prompt_tokens, max_tokens));
  }
  const size_t bytes = KeptPromptBytesMax(policy, limits.layout, prompt_tokens);
  if (bytes <= limits.kept_bytes_max) return policy;
  return absl::InvalidArgumentError(absl::StrCat("cache policy ", ToString(policy), " of ", ToString(limits.layout),
                                                 ": which tokens are kept may take ", bytes,
                                                 " bytes to tell, a message has at most ", limits.kept_bytes_max));
}

}  // namespace sluice::decode
