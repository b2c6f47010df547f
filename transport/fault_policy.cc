#include "transport/fault_policy.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/rng.h"

namespace sluice {

namespace {

constexpr size_t kRulesMax = 64;
constexpr size_t kTextBytesMax = 4096;

bool IsOnPayload(FaultKind kind) { return kind == FaultKind::kCorruptPayload || kind == FaultKind::kTruncate; }

Status Wrong(absl::string_view part, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("faults: \"", part, "\": ", what));
}

StatusOr<FaultKind> ParseKind(absl::string_view part, absl::string_view name) {
  const auto it = std::find(std::begin(kFaultNames), std::end(kFaultNames), std::string_view(name.data(), name.size()));
  if (it != std::end(kFaultNames)) return static_cast<FaultKind>(it - std::begin(kFaultNames));
  const auto append = [](std::string* out, std::string_view fault) { out->append(fault); };
  return Wrong(part, absl::StrCat("no such fault; there are: ", absl::StrJoin(kFaultNames, ", ", append)));
}

// KIND[=PROBABILITY][@MESSAGE][:DURATION]
StatusOr<FaultRule> ParseRule(absl::string_view part) {
  FaultRule rule;
  absl::string_view rest = part;
  if (const size_t colon = rest.find(':'); colon != rest.npos) {
    if (!absl::ParseDuration(rest.substr(colon + 1), &rule.duration)) return Wrong(part, "no duration after ':'");
    rest = rest.substr(0, colon);
  }
  if (const size_t at = rest.find('@'); at != rest.npos) {
    uint64_t message = 0;
    if (!absl::SimpleAtoi(rest.substr(at + 1), &message)) return Wrong(part, "no message's number after '@'");
    rule.at_message = message;
    rest = rest.substr(0, at);
  }
  if (const size_t equals = rest.find('='); equals != rest.npos) {
    if (!absl::SimpleAtod(rest.substr(equals + 1), &rule.probability)) return Wrong(part, "no probability after '='");
    rest = rest.substr(0, equals);
  }
  SLUICE_ASSIGN_OR_RETURN(rule.kind, ParseKind(part, rest));
  return rule;
}

}  // namespace

StatusOr<FaultPolicy> FaultPolicy::Parse(std::string_view text) {
  if (text.size() > kTextBytesMax)
    return absl::InvalidArgumentError(absl::StrCat("faults: ", text.size(), " characters, at most ", kTextBytesMax));
  FaultPolicy policy;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',', absl::SkipEmpty())) {
    if (absl::string_view seed = part; absl::ConsumePrefix(&seed, "seed=")) {
      if (!absl::SimpleAtoi(seed, &policy.seed)) return Wrong(part, "no number after '='");
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(FaultRule rule, ParseRule(part));
    policy.rules.push_back(std::move(rule));
  }
  SLUICE_RETURN_IF_ERROR(policy.Validate());
  return policy;
}

Status FaultPolicy::Validate() const {
  std::vector<std::string> problems;
  if (rules.size() > kRulesMax)
    problems.push_back(absl::StrCat("faults have ", rules.size(), " rules, at most ", kRulesMax));
  for (const FaultRule& rule : rules) {
    const std::string name(kFaultNames[static_cast<size_t>(rule.kind)]);
    if (!(rule.probability >= 0 && rule.probability <= 1))
      problems.push_back(absl::StrCat("the probability of ", name, " is ", rule.probability, ", must be in [0, 1]"));
    if (rule.probability == 0 && !rule.at_message)
      problems.push_back(absl::StrCat(name, " has neither a probability nor a message's number"));
    if (rule.duration < absl::ZeroDuration())
      problems.push_back(absl::StrCat("the duration of ", name, " is ", absl::FormatDuration(rule.duration)));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

FaultPlan FaultDice::Throw(std::string_view header, size_t payload_bytes) {
  FaultPlan plan;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    if (!Strikes(i, header, payload_bytes)) continue;
    const FaultRule& rule = policy_.rules[i];
    plan.strikes[static_cast<size_t>(rule.kind)] = true;
    if (rule.kind == FaultKind::kDelay) plan.delay = std::max(plan.delay, rule.duration);
    if (rule.kind == FaultKind::kReorder) plan.reorder = std::max(plan.reorder, rule.duration);
    if (rule.kind == FaultKind::kStall) plan.stall = std::max(plan.stall, rule.duration);
  }
  for (const FaultKind last : {FaultKind::kKill, FaultKind::kDrop}) {
    if (!plan.has(last)) continue;
    plan = {};
    plan.strikes[static_cast<size_t>(last)] = true;
  }
  plan.bits = RandomBits(policy_.seed, thrown_++);
  for (size_t kind = 0; kind < kFaultKinds; ++kind) counts_[kind] += plan.strikes[kind] ? 1 : 0;
  return plan;
}

bool FaultDice::Strikes(size_t index, std::string_view header, size_t payload_bytes) {
  const FaultRule& rule = policy_.rules[index];
  if (IsOnPayload(rule.kind) && payload_bytes == 0) return false;
  if (rule.kind == FaultKind::kCorruptHeader && header.empty()) return false;
  if (rule.matches && !rule.matches(header, payload_bytes)) return false;
  const uint64_t number = matched_[index]++;
  // A stream of its own for each rule, apart from the one of the plans' bits.
  const uint64_t key = RandomBits(policy_.seed, ~uint64_t{index});
  return rule.at_message == number || RandomUniform(key, number) < rule.probability;
}

void FlipBit(absl::Span<std::byte> bytes, uint64_t bits) {
  const uint64_t bit = bits % (bytes.size() * 8);
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

}  // namespace sluice
