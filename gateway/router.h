// Which workers take a request: a pure function of a snapshot of the fleet. Decode comes first, since it owns the
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/cache_policy.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"

namespace sluice {

struct WorkerSnapshot {
  std::string address;
  std::string unusable_because;  // empty where it takes work
  bool suspect = false;          // has failed lately: only where nobody else is left
  uint64_t epoch = 0;
  std::string model_hash;
  proto::KvLayout layout;
  std::vector<std::string> wire_codecs;  // that it sends or takes
  int page_tokens = 0;

  int64_t pages_total = 0;   // decode
  int64_t pages_free = 0;    // decode; cached ones, too; less what was promised to requests since its last report
  int64_t pages_cached = 0;  // decode; of those, what only its cache holds

  int64_t queued_prompt_tokens = 0;      // prefill; with what was sent to it since its last report
  int64_t local_prefill_tokens_max = 0;  // decode; rests of prompts that it may compute itself
  CachePolicySpec policy;                // decode; of requests that name none
  double prefill_tokens_per_s = 0.0;     // prefill; 0: not known yet
  double transfer_tokens_per_s = 0.0;  // prefill; whose handoff takes so long after the last one is computed; likewise

  int64_t cached_tokens = 0;  // of the request at hand, as far as is known (prefix_records.h)
};

struct FleetSnapshot {
  std::vector<WorkerSnapshot> prefill;
  std::vector<WorkerSnapshot> decode;
};

struct RequestShape {
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  int n = 1;
  std::optional<CachePolicySpec> policy;  // where the request names one
};

struct Excluded {
  std::set<int> prefill;
  std::set<int> decode;
};

struct Route {
  int decode = 0;
  int prefill = 0;
};

// The request's policy with that decode. What contradicts itself counts as full, until decode refuses it.
CachePolicy PolicyWith(const RequestShape& shape, const CachePolicySpec& of_decode);
// Pages that decode leases for it: prompt and generation of the first choice, and of the others what they cannot share;
// under a policy that lets tokens go, slots of each choice. The last generated token is never fed back, so its KV needs
// no slot.
int64_t PagesNeeded(const RequestShape& shape, int64_t page_tokens, const CachePolicySpec& of_decode = {});

// Empty where KV of `prefill` can go to `decode`; otherwise what differs, with both values.
std::string Mismatch(const WorkerSnapshot& prefill, const WorkerSnapshot& decode);

// How long until `prefill` would have computed all that was given to it before.
double PredictQueueSeconds(const FleetSnapshot& fleet, int prefill);

// How long it would take until the KV of the request is with decode.
struct ShipPrediction {
  double queue_s = 0.0;               // of prompts before it: PredictQueueSeconds()
  double compute_s = 0.0;             // of what prefill has not cached
  double transfer_s_per_token = 0.0;  // that decode has not; 0: not known
};
ShipPrediction PredictShip(const FleetSnapshot& fleet, const Route& route, const RequestShape& shape);

// The pair that is predicted to be done first, the time being stretched by the share of its pages that decode has given
// away: so a cached prefix draws requests, and the more there are on a worker the less it does.
// Unavailable where a role has no usable worker left, FailedPrecondition where there are some but none fit each other;
// both say why.
StatusOr<Route> Pick(const FleetSnapshot& fleet, const RequestShape& shape, const Excluded& excluded);
// For a reservation that exists: another prefill for that decode worker.
StatusOr<int> PickPrefill(const FleetSnapshot& fleet, int decode, const RequestShape& shape,
                          const std::set<int>& excluded);

}  // namespace sluice
