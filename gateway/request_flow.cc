#include "gateway/request_flow.h"

#include <algorithm>
#include <utility>

#include "common/proto/convert.h"

namespace sluice {

namespace {

bool FromPrefill(FlowEvent event) { return event == FlowEvent::kPrefillFailed; }

// The worker is of no use to this request now, but another one may be.
bool ElsewhereMayHelp(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:  // by the worker: it is going down
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

// The attempt is lost, the worker is fine.
bool AgainMayHelp(const Status& status) { return absl::IsAborted(status) || absl::IsDataLoss(status); }

// What workers say about each other is not the client's fault: of their codes only those pass that speak about the
// request itself.
Status ForClient(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
      return status;
    default:
      return absl::UnavailableError(status.message());
  }
}

}  // namespace

RequestFlow::RequestFlow(const FlowEnvironment& environment, FlowRequest request, FlowClient* client)
    : env_(environment), request_(std::move(request)), client_(client), prompt_(request_.prompt_ids) {}

RequestFlow::~RequestFlow() { Step(FlowEvent::kClientLeft); }

RequestShape RequestFlow::Shape() const {
  return {.prompt_tokens = static_cast<int64_t>(request_.prompt_ids.size()),
          .max_tokens = request_.sampling.max_tokens,
          .n = request_.sampling.n,
          .policy = request_.policy};
}

FleetSnapshot RequestFlow::Snapshot() const {
  FleetSnapshot fleet = env_.fleet->snapshot();
  env_.prefixes->Fill(prompt_, &fleet);
  return fleet;
}

Excluded RequestFlow::ExcludedNow() const {
  Excluded out = excluded_;
  out.decode.insert(full_.begin(), full_.end());
  return out;
}

void RequestFlow::Start() {
  deadline_ = env_.loop->Now() + request_.timeout;
  turn_ = env_.queue->NextTurn();
  deadline_timer_ = env_.loop->After(request_.timeout, [this] {
    StepWith(FlowEvent::kDeadline, absl::DeadlineExceededError(absl::StrCat(
                                       "the request took longer than ", absl::FormatDuration(request_.timeout),
                                       " (it was ", absl::string_view(Name(state_).data(), Name(state_).size()), ")")));
  });
  lost_ = env_.fleet->Listen([this](WorkerRef worker, const Status& why) { OnLost(worker, why); });
  Step(FlowEvent::kStart);
}

void RequestFlow::StepWith(FlowEvent event, Status error) {
  error_ = std::move(error);
  Step(event);
}

void RequestFlow::Step(FlowEvent event) {
  const FlowStep step = Transition(state_, event, Facts(event));
  const bool decode_accused = AccusesDecode(event);
  state_ = step.to;
  if (step.action != FlowAction::kNone) Blame(event);
  if (step.action == FlowAction::kRearm && !request_.canary) env_.metrics->CountRetry("prefill", error_.code());
  if (step.action == FlowAction::kStartOver && !request_.canary) {
    env_.metrics->CountRetry(FromPrefill(event) && !decode_accused ? "prefill" : "decode", error_.code());
  }
  Do(step.action);
}

// Asked before a transition: would there be anybody, with the worker that has just failed left out?
FlowFacts RequestFlow::Facts(FlowEvent event) const {
  FlowFacts facts;
  if (event == FlowEvent::kNoRoom) {
    Excluded excluded = ExcludedNow();
    facts.another_decode = Pick(Snapshot(), Shape(), excluded).ok();
    facts.may_wait = env_.loop->Now() + retry_after_ < room_deadline_;
  }
  const bool failure = event == FlowEvent::kPrefillFailed || event == FlowEvent::kReserveFailed ||
                       event == FlowEvent::kRearmFailed || event == FlowEvent::kStreamBroken;
  if (!failure) return facts;
  if (FromPrefill(event) && prefills_ < env_.options->prefill_tries &&
      (ElsewhereMayHelp(error_) || absl::IsDataLoss(error_))) {
    std::set<int> excluded = excluded_.prefill;
    if (ElsewhereMayHelp(error_)) excluded.insert(route_.prefill);
    facts.may_rearm = PickPrefill(Snapshot(), route_.decode, Shape(), excluded).ok();
  }
  if (reservations_ < env_.options->decode_tries && !client_->committed() &&
      (ElsewhereMayHelp(error_) || AgainMayHelp(error_))) {
    Excluded excluded{.decode = excluded_.decode};
    if (ElsewhereMayHelp(error_)) excluded.decode.insert(route_.decode);
    facts.may_start_over = Pick(Snapshot(), Shape(), excluded).ok();
  }
  // With another decode the same prefill may do; without one, another prefill may reach this decode after all.
  if (AccusesDecode(event) && facts.may_start_over) facts.may_rearm = false;
  return facts;
}

void RequestFlow::Do(FlowAction action) {
  switch (action) {
    case FlowAction::kNone:
      return;
    case FlowAction::kQueue:
      return Queue();
    case FlowAction::kReserve:
      return Reserve();
    case FlowAction::kWait:
      return Wait();
    case FlowAction::kOpenLegs:
      return OpenLegs();
    case FlowAction::kListen:
      return Listen();
    case FlowAction::kRearm:
      return Rearm();
    case FlowAction::kRunPrefill:
      return RunPrefill();
    case FlowAction::kStartOver:
      return StartOver();
    case FlowAction::kDeliver:
      return Deliver();
    case FlowAction::kComplete:
      return Complete();
    case FlowAction::kFail:
      return Fail();
    case FlowAction::kDrop:
      return DropLegs();
  }
}

// Both at once: decode must be listening for the commit before prefill can send it.
void RequestFlow::OpenLegs() {
  Listen();
  RunPrefill();
}

void RequestFlow::Listen() {
  proto::GenerateRequest request;
  request.set_reservation_id(reservation_->reservation_id());
  request.set_epoch(reservation_->epoch());
  generate_ = env_.workers->Generate(
      route_.decode, request, Remaining(), [this](proto::GenerateEvent event) { OnEvent(std::move(event)); },
      [this](const Status& status) { OnStreamEnd(status); });
  generate_->Next();
}

void RequestFlow::RunPrefill() {
  ++prefills_;
  proto::PrefillRequest request;
  request.set_request_id(request_.id);
  request.mutable_prompt_ids()->Assign(request_.prompt_ids.begin(), request_.prompt_ids.end());
  *request.mutable_sampling() = ToProto(request_.sampling);
  request.set_ticket(reservation_->ticket());
  request.set_deadline_unix_ms(absl::ToUnixMillis(deadline_));
  promise_->Sent();
  promise_.reset();
  run_ = env_.workers->Run(route_.prefill, request, Remaining(), [this](const StatusOr<proto::PrefillReply>& reply) {
    run_.reset();
    env_.queue->OnPrefillEnded(route_.prefill);
    if (reply.ok()) {
      env_.fleet->ReportSuccess({WorkerRole::kPrefill, route_.prefill});
      RecordPrefill();
      return Step(FlowEvent::kPrefillDone);
    }
    StepWith(FlowEvent::kPrefillFailed,
             WithContext(reply.status(), "prefill " + env_.workers->address({WorkerRole::kPrefill, route_.prefill})));
  });
}

void RequestFlow::Rearm() {
  run_.reset();
  if (ElsewhereMayHelp(error_)) excluded_.prefill.insert(route_.prefill);
  const FleetSnapshot fleet = Snapshot();
  const StatusOr<int> prefill = PickPrefill(fleet, route_.decode, Shape(), excluded_.prefill);
  if (!prefill.ok()) return StepWith(FlowEvent::kNoWorker, prefill.status());
  route_.prefill = *prefill;
  const WorkerSnapshot& worker = fleet.prefill[route_.prefill];
  prefill_page_tokens_ = worker.page_tokens;
  promise_ = env_.fleet->PromisePrefill(route_.prefill, Shape().prompt_tokens - worker.cached_tokens);
  proto::RearmRequest request;
  request.set_reservation_id(reservation_->reservation_id());
  request.set_epoch(reservation_->epoch());
  control_ = env_.workers->Rearm(route_.decode, request, std::min(kControlTimeout, Remaining()),
                                 [this](const StatusOr<proto::ReserveReply>& reply) { OnRearm(reply); });
}

void RequestFlow::OnRearm(const StatusOr<proto::ReserveReply>& reply) {
  control_.reset();
  if (!reply.ok() || !reply->has_ticket()) DropPromise();
  if (reply.ok() && reply->has_ticket()) {
    reservation_ = *reply;
    if (accuser_) env_.fleet->ReportFailure({WorkerRole::kPrefill, *std::exchange(accuser_, std::nullopt)});
    return Step(FlowEvent::kRearmed);
  }
  // It runs already: the commit had arrived, and only prefill's answer was lost. Its tokens are on their way.
  if (absl::IsFailedPrecondition(reply.status())) return Step(FlowEvent::kOvertaken);
  Status error = reply.ok() ? absl::AbortedError("decode gave no new ticket") : reply.status();
  if (absl::IsDeadlineExceeded(error)) error = absl::UnavailableError("decode did not answer a rearm in time");
  StepWith(FlowEvent::kRearmFailed, std::move(error));
}

void RequestFlow::StartOver() {
  if (ElsewhereMayHelp(error_)) excluded_.decode.insert(route_.decode);
  // Which end of a failed pair was at fault is not known: with another decode worker the old prefill gets a chance.
  excluded_.prefill.clear();
  accuser_.reset();
  DropLegs();
  first_choice_.clear();
  client_->OnRestart();
  Queue();
}

// Prefill has lost decode. When it says so of a second one, it is prefill that nobody reaches.
bool RequestFlow::AccusesDecode(FlowEvent event) const {
  return FromPrefill(event) && IsAtPeer(error_) && !accusers_.contains(route_.prefill);
}

// The router prefers others for a while to a worker that is gone.
void RequestFlow::Blame(FlowEvent event) {
  if (!absl::IsUnavailable(error_) && !absl::IsCancelled(error_)) return;
  if (AccusesDecode(event)) {
    accusers_.insert(route_.prefill);
    accuser_ = route_.prefill;  // is blamed if decode turns out to live; decode's own calls tell where it does not
    return;
  }
  if (FromPrefill(event)) return env_.fleet->ReportFailure({WorkerRole::kPrefill, route_.prefill});
  const bool from_decode =
      event == FlowEvent::kStreamBroken || event == FlowEvent::kReserveFailed || event == FlowEvent::kRearmFailed;
  if (from_decode) env_.fleet->ReportFailure({WorkerRole::kDecode, route_.decode});
}

void RequestFlow::OnEvent(proto::GenerateEvent event) {
  event_ = std::move(event);
  if (event_.choice() == 0) {
    for (const proto::GeneratedToken& token : event_.tokens()) first_choice_.push_back(token.token());
  }
  Step(event_.last() ? FlowEvent::kLast : FlowEvent::kTokens);
}

void RequestFlow::OnStreamEnd(const Status& status) {
  const std::string who = "decode " + env_.workers->address({WorkerRole::kDecode, route_.decode});
  StepWith(FlowEvent::kStreamBroken, status.ok()
                                         ? absl::UnavailableError(who + " ended the stream before the last token")
                                         : WithContext(status, who));
}

void RequestFlow::OnLost(WorkerRef worker, const Status& why) {
  if (worker == WorkerRef{WorkerRole::kPrefill, route_.prefill} && run_ != nullptr) {
    run_.reset();
    StepWith(FlowEvent::kPrefillFailed, why);
  } else if (worker == WorkerRef{WorkerRole::kDecode, route_.decode} && generate_ != nullptr) {
    StepWith(FlowEvent::kStreamBroken, why);
  } else if (worker == WorkerRef{WorkerRole::kDecode, route_.decode} && control_ != nullptr) {
    control_.reset();
    if (state_ == FlowState::kQueued) return;
    ++reservations_;
    StepWith(FlowEvent::kReserveFailed, why);
  }
}

void RequestFlow::Deliver() {
  if (control_ != nullptr) {  // a rearm that the commit has overtaken
    control_.reset();
    DropPromise();
  }
  paused_ = !client_->OnEvent(event_);
  if (!paused_) generate_->Next();
}

void RequestFlow::Resume() {
  if (!paused_ || state_ != FlowState::kStreaming) return;
  paused_ = false;
  generate_->Next();
}

void RequestFlow::Complete() {
  env_.fleet->ReportSuccess({WorkerRole::kDecode, route_.decode});
  if (reservation_->has_ticket()) RecordPrefill();
  RecordDecode();
  reservation_.reset();                    // decode has dropped its lease with the last event
  if (run_ != nullptr) run_->LetFinish();  // prefill's answer may come after the last token
  DropLegs();
  client_->OnEvent(event_);
  client_->OnDone(event_);
}

void RequestFlow::RecordPrefill() {
  env_.prefixes->Add({WorkerRole::kPrefill, route_.prefill}, prompt_.Of(prefill_page_tokens_));
}

void RequestFlow::RecordDecode() {
  if (!keeps_all_) return;
  // Where every choice ends with its first token, prefill's, decode is sent no KV.
  if (event_.usage().completion_tokens() <= static_cast<uint32_t>(request_.sampling.n)) return;
  std::vector<TokenId> tokens = request_.prompt_ids;
  if (!first_choice_.empty()) first_choice_.pop_back();  // the last one is never fed back: it has no KV
  tokens.insert(tokens.end(), first_choice_.begin(), first_choice_.end());
  env_.prefixes->Add({WorkerRole::kDecode, route_.decode}, HashPages(tokens, decode_page_tokens_));
}

void RequestFlow::CountRoute(std::string_view outcome) {
  if (!request_.canary) env_.metrics->CountRoute(outcome);
}

// Prefill will not get this prompt.
void RequestFlow::DropPromise() {
  if (promise_ == nullptr) return;
  promise_.reset();
  env_.queue->OnPromiseDropped();
}

void RequestFlow::Fail() {
  DropLegs();
  client_->OnFailed(ForClient(error_), retry_after_);
}

// Cancelling the stream frees the reservation, unless the cancellation overtakes the stream's opening: so it is also
// released by name.
void RequestFlow::DropLegs() {
  control_.reset();
  generate_.reset();
  if (run_ != nullptr) {
    run_.reset();
    env_.queue->OnPrefillEnded(route_.prefill);
  }
  wait_timer_.reset();
  env_.queue->Leave(turn_);
  SetQueued(false);
  DropPromise();
  if (IsFinal(state_)) deadline_timer_.reset();
  if (!reservation_.has_value()) return;
  proto::ReleaseRequest release;
  release.set_reservation_id(reservation_->reservation_id());
  release.set_epoch(reservation_->epoch());
  env_.workers->Release(route_.decode, release);
  reservation_.reset();
}

}  // namespace sluice
