// One request through its workers: a turn in the queue, Reserve, then Generate and Run side by side, then tokens;
// retries, waits and cancellation as request_lifecycle.h lists them. Lives on the loop's thread. Destroying it cancels
// whatever is under way and releases what decode holds for it.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/sampling_params.h"
#include "gateway/admission_queue.h"
#include "gateway/event_loop.h"
#include "gateway/fleet.h"
#include "gateway/metrics.h"
#include "gateway/options.h"
#include "gateway/prefix_records.h"
#include "gateway/request_lifecycle.h"
#include "gateway/router.h"
#include "gateway/workers.h"

namespace sluice {

struct FlowRequest {
  uint64_t id = 0;
  std::vector<TokenId> prompt_ids;
  SamplingParams sampling;
  std::optional<CachePolicySpec> policy;  // decode's own otherwise
  absl::Duration timeout;                 // of the whole request
  absl::Duration room_wait;               // of that, at most, waiting for KV pages
  bool canary = false;                    // a probe: leaves no trace in the metrics of requests
};

// Who gets the tokens. May destroy the flow, but not from within these calls.
class FlowClient {
 public:
  virtual ~FlowClient() = default;
  // False where it takes no more for now: then nothing comes until Resume().
  virtual bool OnEvent(const proto::GenerateEvent& event) = 0;
  // What came so far is void, and it comes again from the beginning.
  virtual void OnRestart() = 0;
  // The last call, one of these two. `last` is the event that carries usage and stage times; it has been given to
  // OnEvent too.
  virtual void OnDone(const proto::GenerateEvent& last) = 0;
  virtual void OnFailed(const Status& status, absl::Duration retry_after) = 0;
  // Something has been sent that cannot be taken back: OnRestart() is no longer possible.
  virtual bool committed() const = 0;
};

// What flows share. All outlive them.
struct FlowEnvironment {
  const GatewayOptions* options = nullptr;
  EventLoop* loop = nullptr;
  Workers* workers = nullptr;
  Fleet* fleet = nullptr;
  AdmissionQueue* queue = nullptr;
  PrefixRecords* prefixes = nullptr;
  GatewayMetrics* metrics = nullptr;
};

class RequestFlow final : private AdmissionQueue::Waiter {
 public:
  RequestFlow(const FlowEnvironment& environment, FlowRequest request, FlowClient* client);
  ~RequestFlow() override;
  RequestFlow(const RequestFlow&) = delete;
  RequestFlow& operator=(const RequestFlow&) = delete;

  void Start();   // calls the client from within at the earliest where nobody can take the request
  void Resume();  // after OnEvent() has returned false
  FlowState state() const { return state_; }

 private:
  static constexpr absl::Duration kControlTimeout = absl::Seconds(3);  // of Reserve and Rearm

  void Step(FlowEvent event);
  void StepWith(FlowEvent event, Status error);
  FlowFacts Facts(FlowEvent event) const;
  void Do(FlowAction action);

  void Queue();
  RequestShape Shape() const override;
  StatusOr<Route> Choose(FleetSnapshot* fleet) override;
  void OnAdmitted(const FleetSnapshot& fleet, const Route& route) override;
  void OnNoWorker(const Status& why) override;
  void SetQueued(bool queued);
  void TakeRoute(const FleetSnapshot& fleet, const Route& route);
  void AskDecodeAlone();
  void OnDecodeAlone(const StatusOr<proto::ReserveReply>& reply);
  void Reserve();
  proto::ReserveRequest ReservationWanted() const;
  void OnReserve(const StatusOr<proto::ReserveReply>& reply);
  void OnNoRoom(const proto::NoRoom& no_room);
  void Wait();
  void OpenLegs();
  void Listen();
  void RunPrefill();
  void Rearm();
  void OnRearm(const StatusOr<proto::ReserveReply>& reply);
  void StartOver();
  void OnEvent(proto::GenerateEvent event);
  void OnStreamEnd(const Status& status);
  void OnLost(WorkerRef worker, const Status& why);
  void Deliver();
  void Complete();
  void Fail();
  void DropLegs();
  void DropPromise();
  bool AccusesDecode(FlowEvent event) const;
  void Blame(FlowEvent event);
  void CountRoute(std::string_view outcome);

  absl::Duration Remaining() const { return deadline_ - env_.loop->Now(); }
  FleetSnapshot Snapshot() const;
  // What the workers have now, for requests that go on from there.
  void RecordPrefill();
  void RecordDecode();
  Excluded ExcludedNow() const;

  const FlowEnvironment env_;
  const FlowRequest request_;
  FlowClient* const client_;
  mutable PromptHashes prompt_;        // of request_.prompt_ids
  std::vector<TokenId> first_choice_;  // what was generated of it
  FlowState state_ = FlowState::kNew;
  absl::Time deadline_;
  absl::Time room_deadline_;

  AdmissionQueue::Turn turn_ = 0;
  absl::Time queued_since_;
  bool queued_ = false;
  Route route_;
  ShipPrediction ship_;
  std::unique_ptr<PromisedLoad::Hold> promise_;  // of the prompt, to the prefill of the route
  int prefill_page_tokens_ = 0;
  int decode_page_tokens_ = 0;
  bool keeps_all_ = true;  // no cache policy lets tokens of it go
  std::optional<proto::ReserveReply> reservation_;
  Excluded excluded_;           // workers that have failed this request
  std::set<int> accusers_;      // prefill workers that said it was decode that failed it
  std::optional<int> accuser_;  // of the present decode
  std::set<int> full_;          // decode workers without room, until the next wait is over
  int reservations_ = 0;        // made or tried, refusals for want of room not counted
  int prefills_ = 0;            // started for this reservation
  Status error_;                // the last one, in the client's words
  absl::Duration retry_after_ = absl::Seconds(1);
  proto::GenerateEvent event_;  // being delivered
  bool paused_ = false;

  Workers::CallHandle control_;  // Reserve or Rearm
  Workers::StreamHandle generate_;
  Workers::CallHandle run_;
  std::unique_ptr<EventLoop::Timer> deadline_timer_;
  std::unique_ptr<EventLoop::Timer> wait_timer_;
  std::unique_ptr<Fleet::Subscription> lost_;
};

}  // namespace sluice
