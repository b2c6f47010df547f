// The control calls of the gateway, on the engine thread.
#include <algorithm>
#include <utility>

#include "common/proto/convert.h"
#include "decode/worker.h"
#include "model/handoff.h"

namespace sluice::decode {

namespace {
constexpr double kRateRegained = 0.05;  // of what it is short of the start's, with each prompt that is not taken on
}  // namespace

void Worker::Handle(StatusCall call) {
  proto::WorkerStatus status = options_.identity;
  status.set_kv_pages_total(static_cast<uint32_t>(pool_->pages_total()));
  // While somebody is parked, nobody new gets the pages that are free.
  const bool parked = reservations_.requests_parked() > 0;
  status.set_kv_pages_free(static_cast<uint32_t>(parked ? 0 : pool_->pages_free()));
  status.set_kv_pages_cached(static_cast<uint32_t>(parked ? 0 : pool_->pages_cached()));
  status.set_requests_active(static_cast<uint32_t>(requests_.size()));
  status.set_draining(draining_);
  if (draining_) status.set_not_ready_reason("draining");
  status.set_kv_address(transport_->address());
  call.done(std::move(status));
}

void Worker::Handle(ReserveCall call) { call.done(TryReserve(call.request)); }

Status Worker::CheckPrompt(const proto::ReserveRequest& request) const {
  if (request.prompt_ids_size() == 0) return absl::OkStatus();
  if (static_cast<uint32_t>(request.prompt_ids_size()) != request.prompt_tokens())
    return absl::InvalidArgumentError(
        absl::StrCat("prompt_tokens is ", request.prompt_tokens(), ", prompt_ids are ", request.prompt_ids_size()));
  for (const TokenId id : request.prompt_ids()) {
    if (id < 0 || id >= model_.vocab_size)
      return absl::InvalidArgumentError(
          absl::StrCat("prompt token ", id, " is outside of the vocabulary of ", model_.vocab_size));
  }
  return absl::OkStatus();
}

StatusOr<CachePolicy> Worker::PolicyOf(const proto::ReserveRequest& request) const {
  std::optional<CachePolicySpec> wanted;
  if (request.has_policy()) {
    SLUICE_ASSIGN_OR_RETURN(wanted, FromProto(request.policy()));
  }
  return ChoosePolicy(options_.policies, wanted, request.prompt_tokens(), request.sampling().max_tokens());
}

StatusOr<proto::ReserveReply> Worker::TryReserve(const proto::ReserveRequest& request) {
  const absl::Time now = clock_->Now();
  const absl::Time deadline = absl::FromUnixMillis(request.deadline_unix_ms());
  const SamplingParams sampling = FromProto(request.sampling());
  const int64_t context = model_.context_tokens_max;
  if (draining_) return absl::UnavailableError("decode is draining");
  SLUICE_RETURN_IF_ERROR(sampling.Validate(model_.vocab_size));
  if (request.prompt_tokens() == 0) return absl::InvalidArgumentError("prompt_tokens is 0, must be at least 1");
  if (request.prompt_tokens() + int64_t{1} > context) {
    return absl::OutOfRangeError(absl::StrCat("a prompt of ", request.prompt_tokens(),
                                              " tokens leaves no room for an answer in the context of ", context));
  }
  SLUICE_RETURN_IF_ERROR(CheckPrompt(request));
  if (request.deadline_unix_ms() == 0) return absl::InvalidArgumentError("deadline_unix_ms is missing");
  if (deadline <= now) return absl::DeadlineExceededError("the request's deadline passed");
  SLUICE_ASSIGN_OR_RETURN(const CachePolicy policy, PolicyOf(request));
  const int64_t max_tokens = policy.Generated(request.prompt_tokens(), sampling.max_tokens, context);
  const PageDemand demand{
      .prompt_tokens = request.prompt_tokens(), .max_tokens = max_tokens, .choices = sampling.n, .policy = policy};
  SLUICE_ASSIGN_OR_RETURN(const auto outcome, reservations_.Reserve(now, RequestId{request.request_id()}, demand,
                                                                    deadline, request.prompt_ids(), link_coarseness_));
  if (const NoRoom* no_room = std::get_if<NoRoom>(&outcome)) {
    metrics_->no_room.Increment();
    proto::ReserveReply reply;
    reply.mutable_no_room()->set_pages_needed(static_cast<uint32_t>(no_room->pages_needed));
    reply.mutable_no_room()->set_pages_free(static_cast<uint32_t>(no_room->pages_free));
    reply.mutable_no_room()->set_pages_total(static_cast<uint32_t>(no_room->pages_total));
    reply.mutable_no_room()->set_retry_after_ms(absl::ToInt64Milliseconds(no_room->retry_after));
    reply.set_epoch(options_.identity.epoch());
    return reply;
  }
  const Reservation& reservation = *std::get<const Reservation*>(outcome);
  // The stream outlives neither the mailbox nor the process: calls end before the worker does.
  auto stream = std::make_shared<TokenStream>(options_.stream_tokens_max, [this] { mailbox_.Post(ReaderCaughtUp{}); });
  std::vector<TokenId> prompt(request.prompt_ids().begin(), request.prompt_ids().end());
  requests_.emplace(reservation.id,
                    std::make_unique<Request>(&model_, reservation.request, demand.prompt_tokens, sampling,
                                              std::move(stream), std::move(prompt), reservation.cached_tokens, policy));
  // What a policy needs to know of a prompt, prefill tells.
  const bool local = demand.full() && request.has_ship() && request.prompt_ids_size() > 0 &&
                     PrefillsLocally(Facts(request.ship(), reservation));
  // What is not taken on is not measured: a rate that was low for a while must not keep everything away for ever.
  if (!local && request.has_ship())
    prefill_tokens_per_s_ += kRateRegained * std::max(0.0, options_.prefill_tokens_per_s_guess - prefill_tokens_per_s_);
  if (!local && request.only_local()) return GiveUp(reservation);
  metrics_->prefix_hit_tokens.Increment(static_cast<double>(reservation.cached_tokens));
  if (local) return TakeOn(reservation, request);
  OpenTransfer(reservation);
  return Promise(reservation);
}

LocalPrefillFacts Worker::Facts(const proto::ShipTime& ship, const Reservation& reservation) const {
  LocalPrefillFacts facts = {.uncached_tokens = reservation.demand.prompt_tokens - reservation.cached_tokens,
                             .queue_seconds = ship.queue_seconds(),
                             .compute_seconds = ship.compute_seconds(),
                             .transfer_seconds_per_token = ship.transfer_seconds_per_token(),
                             .tokens_max = options_.local_prefill_tokens_max,
                             .tokens_per_second = prefill_tokens_per_s_,
                             .chunk_tokens = options_.local_prefill_chunk_tokens,
                             .step_seconds = step_seconds_,
                             .running_sequences = static_cast<int>(sequences_.size())};
  for (const LocalPrefill& prefill : prefills_)
    facts.waiting_tokens += static_cast<int64_t>(prefill.context.prompt_ids.size()) - prefill.computed_tokens;
  return facts;
}

proto::ReserveReply Worker::TakeOn(const Reservation& reservation, const proto::ReserveRequest& request) {
  const absl::Time now = clock_->Now();
  SLUICE_CHECK(reservations_.OnPrefillHere(now, reservation.id, reservation.tenure));
  prefills_.push_back({.reservation = reservation.id,
                       .context = {.tokenizer = model_.tokenizer,
                                   .sampling = FromProto(request.sampling()),
                                   .prompt_ids = {request.prompt_ids().begin(), request.prompt_ids().end()},
                                   .eos_ids = model_.eos_ids,
                                   .vocab_size = model_.vocab_size,
                                   .positions_max = model_.context_tokens_max},
                       .sampling = request.sampling(),
                       .computed_tokens = reservation.cached_tokens,
                       .accepted = now});
  metrics_->local_prefills.Increment();
  proto::ReserveReply reply;
  reply.set_local(true);
  reply.set_reservation_id(reservation.id.value);
  reply.set_generation(reservation.tenure.value);
  reply.set_epoch(options_.identity.epoch());
  return reply;
}

proto::ReserveReply Worker::GiveUp(const Reservation& reservation) {
  Fail(reservation.id, absl::AbortedError("decode does not compute this prompt itself"));
  proto::ReserveReply reply;
  reply.set_not_local(true);
  reply.set_epoch(options_.identity.epoch());
  return reply;
}

void Worker::OpenTransfer(const Reservation& reservation) {
  const auto prompt_pages = static_cast<size_t>(pool_->PagesFor(reservation.demand.prompt_slots()));
  const auto cached_pages = static_cast<size_t>(pool_->PagesFor(reservation.cached_tokens));
  const absl::Span<const PageIndex> pages = reservation.choices[0].pages().subspan(0, prompt_pages);
  incoming_[reservation.id] = {reservation.tenure, pool_->Share(pages.subspan(cached_pages), LeaseFor::kQuiet)};
  receiver_.Open({.key = {reservation.id, reservation.tenure},
                  .handoff = requests_.at(reservation.id)->expected(),
                  .pages = {pages.begin(), pages.end()}});
}

bool Worker::CloseTransfer(ReservationId id, const Status& why) {
  const auto incoming = incoming_.extract(id);
  if (receiver_.Close(id, why)) return true;
  SLUICE_CHECK(incoming, "pages of a complete transfer are written into");
  quarantine_.Add({id, incoming.mapped().tenure}, std::move(incoming.mapped().pages),
                  clock_->Now() + options_.reservations.lease);
  return false;
}

proto::ReserveReply Worker::Promise(const Reservation& reservation) {
  proto::Ticket ticket;
  ticket.set_request_id(reservation.request.value);
  ticket.set_reservation_id(reservation.id.value);
  ticket.set_decode_epoch(options_.identity.epoch());
  ticket.set_generation(reservation.tenure.value);
  // Until when a prefill may begin: with a reader attached the reservation waits that long for the first frame.
  ticket.set_deadline_unix_ms(
      absl::ToUnixMillis(std::min(clock_->Now() + options_.reservations.queue_wait_max, reservation.request_deadline)));
  ticket.set_model_hash(options_.identity.model_hash());
  ticket.set_layout_hash(LayoutHash(options_.identity.layout()));
  for (const KvCodec codec : options_.wire) ticket.add_wire_codecs(std::string(sluice::Name(codec)));
  ticket.set_store_codec(std::string(sluice::Name(options_.store)));
  ticket.set_kv_address(transport_->address());
  ticket.set_prompt_tokens(static_cast<uint32_t>(reservation.demand.prompt_tokens));
  ticket.set_kv_from_token(static_cast<uint32_t>(reservation.cached_tokens));
  if (!reservation.demand.full()) *ticket.mutable_policy() = ToProto(reservation.demand.policy);
  proto::ReserveReply reply;
  reply.set_ticket(Seal(ticket, key_));
  reply.set_reservation_id(reservation.id.value);
  reply.set_generation(reservation.tenure.value);
  reply.set_epoch(options_.identity.epoch());
  return reply;
}

void Worker::Handle(RearmCall call) {
  const ReservationId id{call.request.reservation_id()};
  const auto reservation = reservations_.Rearm(clock_->Now(), Epoch{call.request.epoch()}, id);
  if (!reservation.ok()) return call.done(reservation.status());
  // Where the former prefill's frames may still be written, the new one gets other pages.
  if (!CloseTransfer(id, absl::AbortedError("the reservation was given to another prefill"))) {
    if (const Status exchanged = reservations_.ExchangePromptPages(id); !exchanged.ok()) {
      const Status lost = absl::AbortedError(
          absl::StrCat("the former prefill may still write into the reservation's pages: ", exchanged.message()));
      Fail(id, lost);
      return call.done(lost);
    }
  }
  requests_.at(id)->RestartTransfer();
  OpenTransfer(**reservation);
  call.done(Promise(**reservation));
}

void Worker::Handle(ReleaseCall call) {
  const ReservationId id{call.request.reservation_id()};
  if (reservations_.Release(Epoch{call.request.epoch()}, id)) {
    metrics_->requests_released.Increment();
    Forget(id, absl::AbortedError("the reservation was released"));
  }
  call.done(proto::ReleaseReply());
}

void Worker::Handle(AttachCall call) {
  const ReservationId id{call.request.reservation_id()};
  const Status attached = reservations_.Attach(clock_->Now(), Epoch{call.request.epoch()}, id);
  if (!attached.ok()) return call.done(attached);
  call.done(requests_.at(id)->stream());
  if (reservations_.Find(id) == nullptr) Forget(id, absl::OkStatus());  // it was unread: the stream has all of it
}

// Also after the last event was read; by then there is nothing to release.
void Worker::Handle(ReaderLeft message) {
  const ReservationId id{message.request.reservation_id()};
  if (!reservations_.Release(Epoch{message.request.epoch()}, id)) return;
  metrics_->requests_released.Increment();
  Forget(id, absl::CancelledError("the client left"));
}

}  // namespace sluice::decode
