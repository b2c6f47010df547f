// A cache that is measured: a policy, whose budget may be a share of the prompt, and the codec that KV is kept in.
#pragma once

#include <string>
#include <vector>

#include "common/cache_policy.h"
#include "common/status.h"
#include "kernels/codec/codec.h"

namespace sluice {

struct CacheCase {
  std::string name;  // of the policy, as it was asked for
  CachePolicySpec policy;
  KvCodec codec = KvCodec::kF32;
};

// A policy as ParseCachePolicySpec reads it. The codec is left as it is.
StatusOr<CacheCase> ParseCacheCase(const std::string& text);

}  // namespace sluice
