// From a request's arrival to its reservation: the queue, the pages, the wait for room.
#include <algorithm>

#include "common/proto/convert.h"
#include "common/rng.h"
#include "gateway/request_flow.h"

namespace sluice {

namespace {

constexpr absl::Duration kWaitMin = absl::Milliseconds(50);  // a refusal is never answered by asking again at once
constexpr absl::Duration kWaitMax = absl::Seconds(2);

}  // namespace

void RequestFlow::Queue() {
  queued_since_ = env_.loop->Now();
  SetQueued(true);
  env_.queue->Enter(turn_, this);
  if (state_ == FlowState::kQueued && !request_.canary) AskDecodeAlone();
}

// Where little of the prompt is to be computed decode may do that itself, and nobody waits for prefill. The turn in the
// queue is kept meanwhile.
void RequestFlow::AskDecodeAlone() {
  const FleetSnapshot fleet = Snapshot();
  const StatusOr<Route> route = Pick(fleet, Shape(), ExcludedNow());
  if (!route.ok()) return;
  const WorkerSnapshot& decode = fleet.decode[route->decode];
  if (Shape().prompt_tokens - decode.cached_tokens > decode.local_prefill_tokens_max) return;
  TakeRoute(fleet, *route);
  proto::ReserveRequest request = ReservationWanted();
  request.set_only_local(true);
  control_ = env_.workers->Reserve(route_.decode, request, std::min(kControlTimeout, Remaining()),
                                   [this](const StatusOr<proto::ReserveReply>& reply) { OnDecodeAlone(reply); });
}

void RequestFlow::OnDecodeAlone(const StatusOr<proto::ReserveReply>& reply) {
  control_.reset();
  if (!reply.ok() || !reply->local()) return;  // what it does instead is wait
  env_.queue->Leave(turn_);
  SetQueued(false);
  env_.fleet->PromisePages(route_.decode, Shape());
  ++reservations_;
  reservation_ = *reply;
  CountRoute("local");
  Step(FlowEvent::kReservedLocal);
}

void RequestFlow::SetQueued(bool queued) {
  if (queued != queued_ && !request_.canary) env_.metrics->requests_queued.Increment(queued ? 1 : -1);
  queued_ = queued;
}

StatusOr<Route> RequestFlow::Choose(FleetSnapshot* fleet) {
  env_.prefixes->Fill(prompt_, fleet);
  return Pick(*fleet, Shape(), ExcludedNow());
}

void RequestFlow::OnNoWorker(const Status& why) {
  CountRoute(absl::IsFailedPrecondition(why) ? "mismatch" : "no_worker");
  StepWith(FlowEvent::kNoWorker, why);
}

void RequestFlow::OnAdmitted(const FleetSnapshot& fleet, const Route& route) {
  SetQueued(false);
  const absl::Duration waited = env_.loop->Now() - queued_since_;
  if (!request_.canary) env_.metrics->queue_seconds.Observe(absl::ToDoubleSeconds(waited));
  // Waiting for prefill is not waiting for room.
  if (waited > absl::ZeroDuration() || room_deadline_ == absl::Time()) {
    room_deadline_ = std::min(env_.loop->Now() + request_.room_wait, deadline_);
  }
  TakeRoute(fleet, route);
  env_.fleet->PromisePages(route_.decode, Shape());
  promise_ =
      env_.fleet->PromisePrefill(route_.prefill, Shape().prompt_tokens - fleet.prefill[route_.prefill].cached_tokens);
  Step(FlowEvent::kAdmitted);
}

void RequestFlow::TakeRoute(const FleetSnapshot& fleet, const Route& route) {
  route_ = route;
  ship_ = PredictShip(fleet, route_, Shape());
  prefill_page_tokens_ = fleet.prefill[route_.prefill].page_tokens;
  decode_page_tokens_ = fleet.decode[route_.decode].page_tokens;
  keeps_all_ = PolicyWith(Shape(), fleet.decode[route_.decode].policy).kind == CachePolicyKind::kFull;
}

proto::ReserveRequest RequestFlow::ReservationWanted() const {
  proto::ReserveRequest request;
  request.set_request_id(request_.id);
  request.set_prompt_tokens(static_cast<uint32_t>(request_.prompt_ids.size()));
  request.mutable_prompt_ids()->Assign(request_.prompt_ids.begin(), request_.prompt_ids.end());
  *request.mutable_sampling() = ToProto(request_.sampling);
  if (request_.policy) *request.mutable_policy() = ToProto(*request_.policy);
  request.set_deadline_unix_ms(absl::ToUnixMillis(deadline_));
  // A canary is to show that the whole path works.
  if (!request_.canary) {
    request.mutable_ship()->set_queue_seconds(ship_.queue_s);
    request.mutable_ship()->set_compute_seconds(ship_.compute_s);
    request.mutable_ship()->set_transfer_seconds_per_token(ship_.transfer_s_per_token);
  }
  return request;
}

void RequestFlow::Reserve() {
  control_ = env_.workers->Reserve(route_.decode, ReservationWanted(), std::min(kControlTimeout, Remaining()),
                                   [this](const StatusOr<proto::ReserveReply>& reply) { OnReserve(reply); });
}

void RequestFlow::OnReserve(const StatusOr<proto::ReserveReply>& reply) {
  control_.reset();
  if (!reply.ok() || !reply->has_ticket()) DropPromise();
  if (reply.ok() && reply->has_no_room()) return OnNoRoom(reply->no_room());
  ++reservations_;
  if (reply.ok() && (reply->has_ticket() || reply->local())) {
    reservation_ = *reply;
    prefills_ = 0;
    CountRoute(reply->has_ticket() ? "disaggregated" : "local");
    return Step(reply->has_ticket() ? FlowEvent::kReserved : FlowEvent::kReservedLocal);
  }
  Status error = reply.ok() ? absl::InternalError("decode answered a reservation with nothing") : reply.status();
  // The call's own time is short: that it is over says that this worker is stuck, not that the request is late.
  if (absl::IsDeadlineExceeded(error)) error = absl::UnavailableError("decode did not answer a reservation in time");
  StepWith(FlowEvent::kReserveFailed,
           WithContext(error, "decode " + env_.workers->address({WorkerRole::kDecode, route_.decode})));
}

void RequestFlow::OnNoRoom(const proto::NoRoom& no_room) {
  if (!request_.canary) env_.metrics->no_room.Increment();
  full_.insert(route_.decode);
  // Spread by up to a half, so that those refused together do not all come back together.
  const absl::Duration hint = std::clamp(absl::Milliseconds(no_room.retry_after_ms()), kWaitMin, kWaitMax);
  retry_after_ = hint * (1.0 + 0.5 * RandomUniform(request_.id, static_cast<uint64_t>(full_.size())));
  StepWith(FlowEvent::kNoRoom, absl::ResourceExhaustedError(
                                   absl::StrCat("no room: the request needs ", no_room.pages_needed(), " KV pages, ",
                                                no_room.pages_free(), " of ", no_room.pages_total(), " are free")));
}

void RequestFlow::Wait() {
  wait_timer_ = env_.loop->After(retry_after_, [this] {
    full_.clear();
    Step(FlowEvent::kWaitOver);
  });
}

}  // namespace sluice
