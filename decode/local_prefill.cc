#include "decode/local_prefill.h"

namespace sluice::decode {

namespace {
// What a handoff takes when nothing of it has to be waited for: two messages across the wire and one call.
constexpr double kHandoffSeconds = 0.002;
}  // namespace

bool PrefillsLocally(const LocalPrefillFacts& facts) {
  if (facts.uncached_tokens > facts.tokens_max || facts.tokens_per_second <= 0) return false;
  const int64_t ahead = facts.waiting_tokens + facts.uncached_tokens;
  const int64_t chunks = (ahead + facts.chunk_tokens - 1) / facts.chunk_tokens;
  const double steps_between = facts.running_sequences > 0 ? static_cast<double>(chunks) * facts.step_seconds : 0;
  const double here = static_cast<double>(ahead) / facts.tokens_per_second + steps_between;
  const double others_wait = static_cast<double>(facts.running_sequences) * static_cast<double>(facts.uncached_tokens) /
                             facts.tokens_per_second;
  const double shipped = facts.queue_seconds + facts.compute_seconds + kHandoffSeconds +
                         static_cast<double>(facts.uncached_tokens) * facts.transfer_seconds_per_token;
  return here + others_wait <= shipped;
}

}  // namespace sluice::decode
