// Which cache policy a request gets: the deployment's, or its own within what the operator lets requests have. Pure.
#pragma once

#include <optional>
#include <vector>

#include "common/cache_policy.h"
#include "common/status.h"
#include "model/kv_layout.h"

namespace sluice::decode {

struct PolicyLimits {
  CachePolicySpec deployments;           // of requests that name none; and no other may need more slots
  std::vector<CachePolicyKind> allowed;  // kinds that a request may name
  KvLayout layout;
  int64_t context_tokens_max = 0;  // of the model
  size_t kept_bytes_max = 0;       // that one message tells of kept tokens: see KeptPromptBytesMax
};

// For a prompt and an answer of `max_tokens` tokens, or as many as a policy lets be generated. InvalidArgument with
// both values where the wish contradicts itself, is not allowed, needs more room than the deployment's policy would, or
// keeps more tokens than a message can tell of.
StatusOr<CachePolicy> ChoosePolicy(const PolicyLimits& limits, const std::optional<CachePolicySpec>& wanted,
                                   int64_t prompt_tokens, int64_t max_tokens);

}  // namespace sluice::decode
