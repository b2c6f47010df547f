#include "eval/cache_case.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace sluice {

StatusOr<CacheCase> ParseCacheCase(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const std::string& budget = parts.second;
  CacheCase result = {.name = text};
  SLUICE_ASSIGN_OR_RETURN(result.policy.kind, ParseCachePolicyKind(parts.first));
  if (result.policy.kind == CachePolicyKind::kSinkWindow && budget.find('+') != std::string::npos) {
    const std::pair<std::string, std::string> numbers = absl::StrSplit(budget, absl::MaxSplits('+', 1));
    int64_t sinks = 0;
    int64_t window = 0;
    if (!absl::SimpleAtoi(numbers.first, &sinks) || !absl::SimpleAtoi(numbers.second, &window)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not sinks and a window, as in sink-window:4+1020"));
    }
    result.policy.sinks = sinks;
    result.policy.window = window;
  } else if (text.find(':') != std::string::npos) {
    SLUICE_RETURN_IF_ERROR(WithContext(SetBudget(budget, &result.policy), text));
  }
  SLUICE_RETURN_IF_ERROR(Validate(result.policy));
  return result;
}

}  // namespace sluice
