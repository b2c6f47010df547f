// Requests that wait until a prefill worker would begin with them soon. Decode's pages are leased no earlier: they
// would lie empty while the prompt queues, and nobody else could have them. First come, first served: whoever waits
// counts on the queue of the prefill that he waits for, so that nobody who came later gets there before him; a prefill
// that is free goes to the first who is best served there. Lives on the loop's thread.
//
// How many may wait is bounded by options.requests_max, how long by each request's own deadline.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "gateway/event_loop.h"
#include "gateway/fleet.h"
#include "gateway/options.h"
#include "gateway/router.h"

namespace sluice {

class AdmissionQueue {
 public:
  // A place in the order of arrival; a request keeps it through all its tries.
  using Turn = uint64_t;

  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual RequestShape Shape() const = 0;
    // The workers that it would go to now. Sets cached_tokens of all of `fleet` for its prompt.
    virtual StatusOr<Route> Choose(FleetSnapshot* fleet) = 0;
    // One of these two ends the wait. Both may be called from within Enter(). `fleet` is what the choice was made from.
    virtual void OnAdmitted(const FleetSnapshot& fleet, const Route& route) = 0;
    virtual void OnNoWorker(const Status& why) = 0;
  };

  // All outlive it.
  AdmissionQueue(const GatewayOptions* options, EventLoop* loop, Fleet* fleet);
  ~AdmissionQueue();

  Turn NextTurn() { return ++last_turn_; }
  // REQUIRES: `turn` does not wait.
  void Enter(Turn turn, Waiter* waiter);
  // Does nothing where it does not wait.
  void Leave(Turn turn);

  // This prefill worker has less to do than it had: it is asked, if somebody waits, and its answer may open a place.
  void OnPrefillEnded(int prefill);
  // The same of what was only promised to one.
  void OnPromiseDropped();

 private:
  void Admit();
  bool BeginsSoon(const FleetSnapshot& fleet, int prefill) const;
  bool AnybodyBeginsSoon(const FleetSnapshot& fleet) const;

  const GatewayOptions* const options_;
  EventLoop* const loop_;
  Fleet* const fleet_;
  Turn last_turn_ = 0;
  std::map<Turn, Waiter*> waiters_;  // the first come first
  bool admitting_ = false;
  std::unique_ptr<EventLoop::Timer> soon_;
};

}  // namespace sluice
