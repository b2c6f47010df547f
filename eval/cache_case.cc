#include "eval/cache_case.h"

namespace sluice {

StatusOr<CacheCase> ParseCacheCase(const std::string& text) {
  CacheCase result = {.name = text};
  SLUICE_ASSIGN_OR_RETURN(result.policy, ParseCachePolicySpec(text));
  return result;
}

}  // namespace sluice
