#include "common/cache_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sluice {

namespace {

constexpr int64_t kSlotsMax = int64_t{1} << 30;
constexpr int64_t kDefaultSinks = 4;
constexpr int64_t kDefaultSnapKvWindow = 32;
constexpr int kSnapKvPool = 5;
constexpr double kShareError = 1e-6;  // of a share of a prompt, as doubles have it: 29 % of 100 tokens are 29

void CheckRange(const char* field, int64_t value, int64_t low, int64_t high, std::vector<std::string>* problems) {
  if (value >= low && value <= high) return;
  problems->push_back(absl::StrCat(field, " is ", value, ", not ", low, " to ", high));
}

Status Told(CachePolicyKind kind, const std::vector<std::string>& problems) {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cache policy ", std::string(Name(kind)), ": ", absl::StrJoin(problems, "; ")));
}

// What is given to a policy that takes nothing.
void AddGiven(const CachePolicySpec& spec, std::vector<std::string>* problems) {
  const auto add = [&](const char* field, const std::string& value) {
    problems->push_back(absl::StrCat("has no ", field, ", and ", value, " is given"));
  };
  if (spec.budget) add("budget", absl::StrCat(*spec.budget));
  if (spec.budget_share) add("budget", absl::StrCat(100 * *spec.budget_share, "%"));
  if (spec.sinks) add("sinks", absl::StrCat(*spec.sinks));
  if (spec.window) add("window", absl::StrCat(*spec.window));
  if (spec.decay) add("decay", absl::StrCat(*spec.decay));
  if (spec.by_age) add("by_age", "true");
}

}  // namespace

std::string_view Name(CachePolicyKind kind) {
  switch (kind) {
    case CachePolicyKind::kFull:
      return "full";
    case CachePolicyKind::kSinkWindow:
      return "sink-window";
    case CachePolicyKind::kH2o:
      return "h2o";
    case CachePolicyKind::kSnapKv:
      return "snapkv";
    case CachePolicyKind::kTova:
      return "tova";
  }
  return "";
}

StatusOr<CachePolicyKind> ParseCachePolicyKind(std::string_view name) {
  for (const CachePolicyKind kind : kCachePolicyKinds) {
    if (Name(kind) == name) return kind;
  }
  const auto names = [](std::string* out, CachePolicyKind kind) { out->append(Name(kind)); };
  return absl::InvalidArgumentError(absl::StrCat("cache policy '", std::string(name), "' is none of ",
                                                 absl::StrJoin(kCachePolicyKinds, ", ", names)));
}

int64_t CachePolicy::QueriesScored(int64_t prompt_tokens) const {
  switch (kind) {
    case CachePolicyKind::kFull:
    case CachePolicyKind::kSinkWindow:
      return 0;
    case CachePolicyKind::kH2o:
      return prompt_tokens;
    case CachePolicyKind::kSnapKv:
      return std::min(window, prompt_tokens);
    case CachePolicyKind::kTova:
      return std::min<int64_t>(1, prompt_tokens);
  }
  return 0;
}

int64_t CachePolicy::Kept(int64_t prompt_tokens) const {
  return kind == CachePolicyKind::kFull ? prompt_tokens : std::min(prompt_tokens, budget);
}

int64_t CachePolicy::Slots(int64_t prompt_tokens, int64_t more_tokens) const {
  if (!bounded()) return Kept(prompt_tokens) + more_tokens;
  return std::min(prompt_tokens + more_tokens, budget + 1);
}

int64_t CachePolicy::PositionsMax(int64_t context_tokens) const {
  constexpr int64_t kEndless = int64_t{1} << 30;
  return kind == CachePolicyKind::kSinkWindow && budget < context_tokens ? kEndless : context_tokens;
}

int64_t CachePolicy::Generated(int64_t prompt_tokens, int64_t max_tokens, int64_t context_tokens) const {
  return std::min(max_tokens, PositionsMax(context_tokens) - prompt_tokens);
}

std::string ToString(const CachePolicy& policy) {
  const std::string name(Name(policy.kind));
  switch (policy.kind) {
    case CachePolicyKind::kFull:
      return name;
    case CachePolicyKind::kSinkWindow:
      return absl::StrCat(name, " ", policy.sinks, "+", policy.window);
    default:
      return absl::StrCat(name, " ", policy.budget, " (sinks ", policy.sinks, ", window ", policy.window, ")");
  }
}

Status Validate(const CachePolicy& policy) {
  std::vector<std::string> problems;
  const auto range = [&](const char* field, int64_t value, int64_t low, int64_t high) {
    CheckRange(field, value, low, high, &problems);
  };
  if (policy.kind == CachePolicyKind::kFull) {
    if (policy != CachePolicy()) problems.push_back("takes no numbers");
    return Told(policy.kind, problems);
  }
  range("budget", policy.budget, 1, kSlotsMax);
  if (!problems.empty()) return Told(policy.kind, problems);  // ranges within it would be empty
  // The newest token has to stay, but for TOVA as it was published.
  const int64_t window_min = policy.kind == CachePolicyKind::kTova ? 0 : 1;
  range("sinks", policy.sinks, 0, policy.budget - window_min);
  if (problems.empty()) range("window", policy.window, window_min, policy.budget - policy.sinks);
  if (policy.kind == CachePolicyKind::kSinkWindow && policy.sinks + policy.window != policy.budget) {
    problems.push_back(absl::StrCat("budget is ", policy.budget, ", sinks and window ", policy.sinks + policy.window));
  }
  const bool h2o = policy.kind == CachePolicyKind::kH2o;
  const bool snapkv = policy.kind == CachePolicyKind::kSnapKv;
  if ((snapkv || policy.kind == CachePolicyKind::kTova) && policy.sinks != 0) {
    problems.push_back(absl::StrCat("sinks is ", policy.sinks, ", and it has none"));
  }
  range("pool", policy.pool, 1, snapkv ? 63 : 1);
  if (policy.pool % 2 == 0) problems.push_back(absl::StrCat("pool is ", policy.pool, ", not odd"));
  if (!(policy.decay > 0 && policy.decay <= 1)) {
    problems.push_back(absl::StrCat("decay is ", policy.decay, ", not above 0 and up to 1"));
  }
  if (!h2o && policy.decay != 1) problems.push_back(absl::StrCat("decay is ", policy.decay, ", and only h2o has one"));
  if (!h2o && policy.by_age) problems.push_back("by_age is true, and only h2o ranks by age");
  return Told(policy.kind, problems);
}

Status SetBudget(const std::string& text, CachePolicySpec* spec) {
  const absl::string_view number = absl::StripSuffix(text, "%");
  if (number.size() != text.size()) {
    double percent = 0;
    if (absl::SimpleAtod(number, &percent) && percent > 0 && percent <= 100) {
      spec->budget_share = percent / 100;
      spec->budget.reset();
      return absl::OkStatus();
    }
  } else if (int64_t slots = 0; absl::SimpleAtoi(number, &slots) && slots >= 1 && slots <= kSlotsMax) {
    spec->budget = slots;
    spec->budget_share.reset();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("cache budget '", text, "' is neither 1 to ", kSlotsMax,
                                                 " slots nor a share of the prompt such as 20%"));
}

StatusOr<CachePolicySpec> ParseCachePolicySpec(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const std::string& budget = parts.second;
  CachePolicySpec spec;
  SLUICE_ASSIGN_OR_RETURN(spec.kind, ParseCachePolicyKind(parts.first));
  if (spec.kind == CachePolicyKind::kSinkWindow && budget.find('+') != std::string::npos) {
    const std::pair<std::string, std::string> numbers = absl::StrSplit(budget, absl::MaxSplits('+', 1));
    int64_t sinks = 0;
    int64_t window = 0;
    if (!absl::SimpleAtoi(numbers.first, &sinks) || !absl::SimpleAtoi(numbers.second, &window)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not sinks and a window, as in sink-window:4+1020"));
    }
    spec.sinks = sinks;
    spec.window = window;
  } else if (text.find(':') != std::string::npos) {
    SLUICE_RETURN_IF_ERROR(WithContext(SetBudget(budget, &spec), text));
  }
  SLUICE_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

Status Validate(const CachePolicySpec& spec) {
  std::vector<std::string> problems;
  const bool has_budget = spec.budget.has_value() || spec.budget_share.has_value();
  const bool sink_window = spec.kind == CachePolicyKind::kSinkWindow;
  if (spec.budget && spec.budget_share) problems.push_back("has a budget of slots and one of a share");
  if (spec.kind == CachePolicyKind::kFull) {
    AddGiven(spec, &problems);
    return Told(spec.kind, problems);
  }
  if (sink_window && !has_budget && !spec.window) problems.push_back("needs a window or a budget");
  if (sink_window && spec.window == 0) problems.push_back("window is 0, not 1 or more");
  if (!sink_window && !has_budget) problems.push_back("needs a budget: slots, or a share of the prompt such as 20%");
  if (spec.budget_share && !(*spec.budget_share > 0 && *spec.budget_share <= 1)) {
    problems.push_back(absl::StrCat("budget is ", *spec.budget_share, " of the prompt"));
  }
  for (const auto& [field, value] : {std::pair("sinks", spec.sinks), std::pair("window", spec.window)}) {
    if (value) CheckRange(field, *value, 0, kSlotsMax, &problems);
  }
  SLUICE_RETURN_IF_ERROR(Told(spec.kind, problems));
  if (spec.budget_share) return absl::OkStatus();
  return Resolve(spec, 0).status();
}

StatusOr<CachePolicy> Resolve(const CachePolicySpec& spec, int64_t prompt_tokens) {
  CachePolicy policy = {.kind = spec.kind, .decay = spec.decay.value_or(1), .by_age = spec.by_age};
  if (spec.kind == CachePolicyKind::kFull) {
    SLUICE_RETURN_IF_ERROR(Validate(policy));
    return policy;
  }
  const bool sink_window = spec.kind == CachePolicyKind::kSinkWindow;
  policy.sinks = spec.sinks.value_or(sink_window ? kDefaultSinks : 0);
  if (spec.budget_share) {
    const auto share =
        static_cast<int64_t>(std::floor(*spec.budget_share * static_cast<double>(prompt_tokens) + kShareError));
    policy.budget = std::max({share, policy.sinks + spec.window.value_or(1), int64_t{1}});
  } else {
    policy.budget = spec.budget.value_or(policy.sinks + spec.window.value_or(0));
  }
  switch (spec.kind) {
    case CachePolicyKind::kFull:
    case CachePolicyKind::kSinkWindow:
      policy.window = spec.window.value_or(policy.budget - policy.sinks);
      // A share says how much is kept altogether.
      if (spec.budget_share) policy.window = policy.budget - policy.sinks;
      break;
    case CachePolicyKind::kH2o:
      policy.window =
          spec.window.value_or(std::max<int64_t>(1, std::min(policy.budget / 2, policy.budget - policy.sinks)));
      break;
    case CachePolicyKind::kSnapKv:
      policy.window = spec.window.value_or(std::clamp<int64_t>(policy.budget / 2, 1, kDefaultSnapKvWindow));
      policy.pool = kSnapKvPool;
      break;
    case CachePolicyKind::kTova:
      policy.window = spec.window.value_or(1);
      break;
  }
  SLUICE_RETURN_IF_ERROR(Validate(policy));
  return policy;
}

}  // namespace sluice
