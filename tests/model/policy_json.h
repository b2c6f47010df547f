// A cache policy as the policy goldens name it.
#pragma once

#include <string>

#include "common/cache_policy.h"
#include "nlohmann/json.hpp"

namespace sluice {

inline CachePolicy PolicyOf(const nlohmann::json& j) {
  CachePolicy policy = {.kind = ParseCachePolicyKind(j["kind"].get<std::string>()).value()};
  if (policy.kind == CachePolicyKind::kFull) return policy;
  policy.budget = j.value("budget", 0);
  policy.sinks = j.value("sinks", 0);
  policy.window = j.value("window", j.value("recent", 0));
  policy.pool = j.value("pool", 1);
  return policy;
}

}  // namespace sluice
