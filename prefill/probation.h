// When a decode process that could not be reached is tried again. A failure is remembered for a time that doubles with
// each one in a row and is bounded: until then tickets for it fail at once with its reason, instead of each costing a
// connect timeout; the next ticket after that tries. So a dead address costs little and a revived one is used soon.
// Pure bookkeeping: time is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/status.h"

namespace sluice::prefill {

// A decode process: where it is, and which incarnation of it. A restarted one has a clean record.
using PeerKey = std::pair<std::string, uint64_t>;

class Probation {
 public:
  explicit Probation(size_t peers_max) : peers_max_(peers_max) {}

  // OK, or why the last attempt failed and when the next one may be made.
  Status MayTry(const PeerKey& peer, absl::Time now) const;
  void OnFailed(const PeerKey& peer, absl::Time now, const Status& why);
  void OnReached(const PeerKey& peer) { records_.erase(peer); }

  static constexpr absl::Duration kFirst = absl::Milliseconds(100);
  static constexpr absl::Duration kLongest = absl::Seconds(5);

 private:
  struct Record {
    Status why;
    absl::Duration wait;
    absl::Time until;
  };

  const size_t peers_max_;  // records; the one that ends first makes room
  std::map<PeerKey, Record> records_;
};

}  // namespace sluice::prefill
