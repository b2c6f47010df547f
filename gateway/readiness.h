// Whether a request sent now would be answered: shown by a canary, a request for one token that goes through the real
// path from reservation to last event, at start, then periodically, and at once after the fleet has changed.
#pragma once

#include <memory>
#include <string>

#include "gateway/request_flow.h"

namespace sluice {

class Readiness {
 public:
  explicit Readiness(const FlowEnvironment& environment);
  ~Readiness();

  // Empty where ready.
  std::string NotReadyReason() const;
  void OnFleetChange();
  // A client's request has had its first token: as good as a canary.
  void NoteServed();
  // A client's request has had tokens, the first or others.
  void NoteTokens() { tokens_ = env_.loop->Now(); }

 private:
  class Canary;

  void Probe();
  void OnProbed(const Status& status);
  void Judge(const Status& status);

  const FlowEnvironment env_;
  std::unique_ptr<Canary> canary_;  // under way
  std::unique_ptr<EventLoop::Timer> next_;
  absl::Time started_;   // the one under way, or the last one
  bool again_ = false;   // the fleet changed while a canary was under way
  bool proven_ = false;  // a request has come through
  // Likewise; or a canary was on its way through a busy prefill that made progress, or found decode full and
  // generating.
  absl::Time served_ = absl::InfinitePast();
  absl::Time tokens_ = absl::InfinitePast();
  absl::Time failed_ = absl::InfinitePast();
  Status failure_ = absl::UnavailableError("no canary has come back yet");
  uint64_t probes_ = 0;
};

}  // namespace sluice
