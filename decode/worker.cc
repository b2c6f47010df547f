#include "decode/worker.h"

#include <algorithm>
#include <utility>

#include "model/handoff.h"
#include "spdlog/spdlog.h"

namespace sluice::decode {

Worker::Worker(WorkerOptions options, const ModelFacts& model, const ClusterKey& key, ForwardFunction forward,
               KvPool* pool, Staging* staging, const Clock* clock, DecodeMetrics* metrics, KvPark* park)
    : options_(std::move(options)),
      model_(model),
      key_(key),
      forward_(std::move(forward)),
      pool_(pool),
      park_(park),
      staging_(staging),
      clock_(clock),
      metrics_(metrics),
      mailbox_(static_cast<size_t>(options_.mailbox_messages_max)),
      receiver_({.hello = MakeHello("decode", Epoch{options_.identity.epoch()}, options_.identity.model_hash(),
                                    options_.identity.layout(), options_.store, options_.wire),
                 .connections_max = options_.connections_max,
                 .credit_bytes = options_.credit_bytes},
                pool, staging, metrics,
                [this](ReceiverEvent event) {
                  std::visit([this](auto&& message) { mailbox_.Post(std::move(message)); }, std::move(event));
                }),
      reservations_(pool, Epoch{options_.identity.epoch()}, options_.reservations, park),
      prefill_tokens_per_s_(options_.prefill_tokens_per_s_guess) {
  UpdateGauges();
}

Worker::~Worker() { mailbox_.Shut(); }

void Worker::Start(Transport* transport) {
  transport_ = transport;
  receiver_.Start(transport);
}

template <typename Call>
void Worker::PostCall(Call call) {
  const auto done = call.done;
  if (mailbox_.TryPost(std::move(call))) return;
  if (mailbox_.shut()) return done(absl::UnavailableError("decode has stopped"));
  metrics_->refused_busy.Increment();
  done(absl::ResourceExhaustedError(
      absl::StrCat("decode has ", options_.mailbox_messages_max, " calls waiting, the limit")));
}

void Worker::GetStatus(Done<proto::WorkerStatus> done) { PostCall(StatusCall{std::move(done)}); }
void Worker::Reserve(proto::ReserveRequest request, Done<proto::ReserveReply> done) {
  PostCall(ReserveCall{std::move(request), std::move(done)});
}
void Worker::Rearm(proto::RearmRequest request, Done<proto::ReserveReply> done) {
  PostCall(RearmCall{std::move(request), std::move(done)});
}
void Worker::Release(proto::ReleaseRequest request, Done<proto::ReleaseReply> done) {
  PostCall(ReleaseCall{std::move(request), std::move(done)});
}
void Worker::Attach(proto::GenerateRequest request, Done<std::shared_ptr<TokenStream>> done) {
  PostCall(AttachCall{std::move(request), std::move(done)});
}
void Worker::Detach(proto::GenerateRequest request) { mailbox_.Post(ReaderLeft{std::move(request)}); }
void Worker::Drain(absl::Notification* drained) { mailbox_.Post(DrainOrder{drained}); }
void Worker::Stop() { mailbox_.Post(StopOrder{}); }

void Worker::Run() {
  while (!stopping_) Turn(NextTurn());
}

absl::Time Worker::NextTurn() const { return HasWork() ? absl::InfinitePast() : NextDeadline(); }

void Worker::Turn(absl::Time wait_until) {
  for (Message& message : mailbox_.TakeAll(wait_until)) {
    std::visit([this](auto& each) { Handle(std::move(each)); }, message);
  }
  ExpireOverdue();
  NoteReaders();
  ReturnParked();
  Step();
  if (!prefills_.empty()) RunChunk();
  if (drained_ != nullptr && reservations_.size() == 0) std::exchange(drained_, nullptr)->Notify();
  UpdateGauges();
}

void Worker::Handle(DrainOrder order) {
  drained_ = order.drained;
  draining_ = true;
}

void Worker::Handle(StopOrder) {
  stopping_ = true;
  const Status why = absl::UnavailableError("decode is shutting down");
  for (const ReservationId id : reservations_.ids()) Fail(id, why);
  for (Message& message : mailbox_.Shut()) {
    std::visit(
        [&why](auto& each) {
          if constexpr (requires { each.done; }) each.done(why);
        },
        message);
  }
}

void Worker::ExpireOverdue() {
  for (const Reservations::Expired& expired : reservations_.Expire(clock_->Now())) {
    Status why = absl::AbortedError(
        absl::StrCat("the reservation expired: no sign of life while it was ", std::string(Name(expired.was))));
    if (expired.request_over) why = absl::DeadlineExceededError("the request's deadline passed");
    (expired.request_over ? metrics_->expired_requests : metrics_->expired_reservations).Increment();
    spdlog::warn("request {}: {}", requests_.at(expired.id)->id().value, std::string(why.message()));
    Forget(expired.id, why);
  }
  reservations_.ExpirePrefixes(clock_->Now());
  for (const TransferKey key : quarantine_.TakeOverdue(clock_->Now())) {
    spdlog::warn("reservation {}: its prefill still writes into pages that are not its own any more",
                 key.reservation.value);
    receiver_.Disconnect(key);
  }
}

void Worker::Fail(ReservationId id, const Status& why) {
  reservations_.Release(reservations_.epoch(), id);
  Forget(id, why);
}

void Worker::Forget(ReservationId id, const Status& why) {
  CloseTransfer(id, why);
  requests_.at(id)->stream()->Close(why);
  requests_.erase(id);
  DropSequences(id);
  std::erase_if(prefills_, [id](const LocalPrefill& prefill) { return prefill.reservation == id; });
}

void Worker::DropSequences(ReservationId id) {
  std::erase_if(sequences_, [id](const Sequence& sequence) { return sequence.reservation == id; });
}

// Pages that choices or prefixes share count once.
int64_t Worker::SlotsUsed() const {
  const int64_t page_tokens = pool_->options().page_tokens;
  std::vector<bool> counted(static_cast<size_t>(pool_->pages_total()));
  int64_t used = 0;
  for (const Sequence& sequence : sequences_) {
    Request& request = *requests_.at(sequence.reservation);
    const KeptSlots* kept = request.kept(sequence.choice);
    int64_t slots = kept != nullptr ? kept->held() : request.LastPosition(sequence.choice);
    const Reservation& reservation = *reservations_.Find(sequence.reservation);
    for (const PageIndex page : reservation.choices[static_cast<size_t>(sequence.choice)].pages()) {
      if (slots <= 0) break;
      if (!counted[static_cast<size_t>(page)]) used += std::min(slots, page_tokens);
      counted[static_cast<size_t>(page)] = true;
      slots -= page_tokens;
    }
  }
  return used;
}

void Worker::UpdateGauges() {
  const auto waiting = std::count_if(sequences_.begin(), sequences_.end(), [](const auto& s) { return !s.admitted; });
  const auto running = std::count_if(requests_.begin(), requests_.end(), [this](const auto& each) {
    return reservations_.Find(each.first)->state == ReservationState::kRunning;
  });
  metrics_->kv_pages_total.Set(pool_->pages_total());
  metrics_->kv_pages_free.Set(pool_->pages_free());
  metrics_->kv_pages_reserved.Set(pool_->pages_leased());
  metrics_->kv_slots_used.Set(static_cast<double>(SlotsUsed()));
  metrics_->kv_pages_cached.Set(pool_->pages_cached());
  metrics_->kv_pages_quarantined.Set(pool_->pages_quarantined());
  const int64_t evictions = reservations_.prefixes().evictions();
  metrics_->prefix_evictions.Increment(static_cast<double>(evictions - std::exchange(evictions_counted_, evictions)));
  metrics_->reservations.Set(static_cast<double>(reservations_.size()));
  metrics_->requests_active.Set(static_cast<double>(running));
  metrics_->requests_parked.Set(reservations_.requests_parked());
  metrics_->park_pages_total.Set(park_ == nullptr ? 0 : park_->pages_total());
  metrics_->park_pages_used.Set(park_ == nullptr ? 0 : park_->pages_total() - park_->pages_free());
  metrics_->sequences_waiting.Set(static_cast<double>(waiting));
  metrics_->staging_pieces_from_heap.Set(static_cast<double>(staging_->pieces_from_heap()));
  metrics_->staging_bytes_total.Set(static_cast<double>(staging_->bytes_total()));
  metrics_->staging_bytes_used.Set(static_cast<double>(staging_->bytes_total() - staging_->bytes_free()));
}

}  // namespace sluice::decode
