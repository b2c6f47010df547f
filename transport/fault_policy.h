// What the `faulty` transport does to messages, and to which. Pure: whether a rule strikes is a function of the seed,
// the rule's place in the policy and how many messages it has matched before.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/status.h"

namespace sluice {

enum class FaultKind : uint8_t {
  kDrop,            // is never offered; its sender is told that it went
  kDelay,           // is offered `duration` later; others pass it
  kDuplicate,       // is offered twice, one after the other
  kReorder,         // is offered after the next one of its connection, or `duration` later
  kCorruptPayload,  // one bit of the payload is flipped
  kCorruptHeader,   // one bit of the header is flipped
  kTruncate,        // the payload is offered without its end, which may be all of it
  kStall,           // for `duration` nothing of its connection is offered, itself included; then all, in order
  kKill,            // the connection ends, and the message with it: Unavailable at both ends
};
inline constexpr size_t kFaultKinds = 9;
inline constexpr std::string_view kFaultNames[kFaultKinds] = {
    "drop", "delay", "duplicate", "reorder", "corrupt-payload", "corrupt-header", "truncate", "stall", "kill"};

using FaultCounts = std::array<uint64_t, kFaultKinds>;  // by FaultKind

struct FaultRule {
  FaultKind kind = FaultKind::kDrop;
  double probability = 0;              // of each message that it matches
  std::optional<uint64_t> at_message;  // and the one with this number among them, from 0
  absl::Duration duration = absl::Milliseconds(100);
  // Which messages are counted and struck; null: all. Those without payload are never matched by a rule on payloads.
  std::function<bool(std::string_view header, size_t payload_bytes)> matches;
};

struct FaultPolicy {
  uint64_t seed = 1;
  std::vector<FaultRule> rules;               // empty: no faults
  size_t held_bytes_max = size_t{256} << 20;  // messages held back; one more ends its connection (ResourceExhausted)

  // "seed=7,drop=0.01,stall@12:2s,kill@30": KIND, a probability after '=', a message's number after '@', a duration
  // after ':'. InvalidArgument names the part that is wrong.
  static StatusOr<FaultPolicy> Parse(std::string_view text);
  // Every problem at once. InvalidArgument.
  Status Validate() const;
};

// What happens to one message.
struct FaultPlan {
  std::array<bool, kFaultKinds> strikes = {};
  absl::Duration delay, reorder, stall;  // of the rules that strike
  uint64_t bits = 0;                     // where to flip, where to cut

  bool has(FaultKind kind) const { return strikes[static_cast<size_t>(kind)]; }
  bool is_clean() const { return strikes == decltype(strikes){}; }
};

// Throws for one message after the other. A message that is killed or dropped suffers nothing else, killing first.
class FaultDice {
 public:
  explicit FaultDice(FaultPolicy policy) : policy_(std::move(policy)), matched_(policy_.rules.size(), 0) {}

  FaultPlan Throw(std::string_view header, size_t payload_bytes);
  const FaultCounts& counts() const { return counts_; }

 private:
  bool Strikes(size_t rule, std::string_view header, size_t payload_bytes);

  const FaultPolicy policy_;
  std::vector<uint64_t> matched_;  // by rule
  uint64_t thrown_ = 0;
  FaultCounts counts_ = {};
};

// REQUIRES: not empty.
void FlipBit(absl::Span<std::byte> bytes, uint64_t bits);

}  // namespace sluice
