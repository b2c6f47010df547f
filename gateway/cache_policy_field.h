// The body's field "cache_policy": which tokens' KV decode keeps for this request, where the deployment lets it choose.
//   "full", or {"kind": "h2o", "budget": 2048 or "20%", "sinks": 4, "window": 1020, "decay": 0.98, "by_age": true}
#pragma once

#include "common/cache_policy.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

// InvalidArgument, naming the member and its value, for another type, an unknown member or kind, and for numbers that
// contradict each other. Whether the deployment allows it, decode says.
StatusOr<CachePolicySpec> ReadCachePolicy(const nlohmann::ordered_json& value);

}  // namespace sluice
