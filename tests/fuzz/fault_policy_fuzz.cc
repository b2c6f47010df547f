// The text of a fault policy, and the dice over what it became.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "transport/fault_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto policy = sluice::FaultPolicy::Parse(text);
  if (!policy.ok()) return 0;
  SLUICE_CHECK(policy->Validate().ok(), "what was parsed is valid");
  sluice::FaultDice dice(*policy);
  for (size_t payload_bytes : {0, 1, 1000}) {
    const sluice::FaultPlan plan = dice.Throw(text, payload_bytes);
    if (payload_bytes == 0) SLUICE_CHECK(!plan.has(sluice::FaultKind::kTruncate), "nothing cannot be cut");
  }
  return 0;
}
