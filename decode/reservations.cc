#include "decode/reservations.h"

#include <algorithm>

#include "common/rng.h"

namespace sluice::decode {

std::string_view Name(ReservationState state) {
  switch (state) {
    case ReservationState::kArmed:
      return "armed";
    case ReservationState::kReceiving:
      return "receiving";
    case ReservationState::kPrefilling:
      return "prefilling";
    case ReservationState::kBroken:
      return "broken";
    case ReservationState::kRunning:
      return "running";
    case ReservationState::kUnread:
      return "unread";
    case ReservationState::kEnded:
      return "ended";
  }
  return "";
}

std::optional<ReservationState> Next(ReservationState from, ReservationEvent event) {
  using S = ReservationState;
  using E = ReservationEvent;
  if (from == S::kEnded) return std::nullopt;
  if (event == E::kRelease || event == E::kExpire) return S::kEnded;  // do give the pages back, end the stream
  if (event == E::kAttach && from != S::kUnread) return from;         // do renew
  switch (from) {
    case S::kArmed:
      if (event == E::kFrame) return S::kReceiving;         // do renew
      if (event == E::kPrefillHere) return S::kPrefilling;  // do compute the prompt in chunks
      if (event == E::kCommit) return S::kRunning;          // do start its sequences (a commit without KV)
      if (event == E::kTransferFailed) return S::kBroken;   // do drop what comes of this tenure
      if (event == E::kRearm) return S::kArmed;             // do begin a tenure, renew
      return std::nullopt;
    case S::kReceiving:
      if (event == E::kFrame) return S::kReceiving;        // do renew
      if (event == E::kCommit) return S::kRunning;         // do start its sequences
      if (event == E::kTransferFailed) return S::kBroken;  // do drop what comes of this tenure
      if (event == E::kRearm) return S::kArmed;            // do begin a tenure, renew
      return std::nullopt;
    case S::kPrefilling:
      if (event == E::kCommit) return S::kRunning;  // do start its sequences
      return std::nullopt;
    case S::kBroken:
      if (event == E::kRearm) return S::kArmed;  // do begin a tenure, renew
      return std::nullopt;
    case S::kRunning:
      if (event == E::kFinish) return S::kEnded;         // do give the pages back
      if (event == E::kFinishUnread) return S::kUnread;  // do give the pages back, renew
      return std::nullopt;
    case S::kUnread:
      if (event == E::kAttach) return S::kEnded;  // do hand the answer over
      return std::nullopt;
    case S::kEnded:
      return std::nullopt;
  }
  return std::nullopt;
}

namespace {
int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t PagesOfAChoice(const PageDemand& demand, int page_tokens) { return CeilDiv(demand.slots(), page_tokens); }

int64_t UnsharedPagesOfAChoice(const PageDemand& demand, int page_tokens) {
  return PagesOfAChoice(demand, page_tokens) - (demand.full() ? demand.prompt_tokens / page_tokens : 0);
}
}  // namespace

int64_t PagesNeeded(const PageDemand& demand, int page_tokens) {
  return PagesOfAChoice(demand, page_tokens) + (demand.choices - 1) * UnsharedPagesOfAChoice(demand, page_tokens);
}

Reservations::Reservations(KvPool* pool, Epoch epoch, const ReservationsOptions& options)
    : pool_(pool), epoch_(epoch), options_(options), prefixes_(pool, options.prefix_cache_pages) {}

// Life of a request, step 3: decode leases the pages that the request can need at most and promises them by a ticket.
StatusOr<std::variant<const Reservation*, NoRoom>> Reservations::Reserve(absl::Time now, RequestId request,
                                                                         const PageDemand& demand,
                                                                         absl::Time request_deadline,
                                                                         absl::Span<const TokenId> prompt,
                                                                         KvCoarseness coarseness_max) {
  SLUICE_CHECK(demand.prompt_tokens > 0 && demand.max_tokens > 0 && demand.choices > 0);
  const int page_tokens = pool_->options().page_tokens;
  const int64_t needed = PagesNeeded(demand, page_tokens);
  if (needed > pool_->pages_total()) {
    return absl::OutOfRangeError(absl::StrCat("the request needs ", needed, " KV pages of ", page_tokens,
                                              " tokens, this worker has ", pool_->pages_total(), " in all"));
  }
  if (static_cast<int>(by_id_.size()) >= options_.reservations_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(by_id_.size(), " reservations are held, the limit is ", options_.reservations_max));
  }
  // What a policy lets go of was chosen by attention over all of the prompt: nothing is reused, and nothing left
  // behind.
  if (!demand.full()) prompt = {};
  // Not the last token: prefill computes it in any case, for its logits.
  if (!prompt.empty()) prompt.remove_suffix(1);
  PrefixTree::Hit hit = prefixes_.Match(now, kFullPolicy, prompt, coarseness_max);
  const auto cached = static_cast<int64_t>(hit.pages.pages().size());
  const int available = pool_->pages_free() + prefixes_.pages_evictable();
  if (needed - cached > available) {
    // Pages come back when requests end; a deadline is the latest time of that, and a second is soon enough to look.
    const absl::Duration wait = std::clamp(NextDeadline() - now, absl::Milliseconds(50), absl::Seconds(1));
    return NoRoom{needed - cached, available, pool_->pages_total(), wait};
  }
  prefixes_.Evict(static_cast<int>(needed - cached) - pool_->pages_free());
  Reservation reservation;
  reservation.id = ReservationId{RandomBits(options_.id_key, ids_drawn_++)};
  reservation.request = request;
  reservation.demand = demand;
  reservation.request_deadline = request_deadline;
  const int first_pages = static_cast<int>(PagesOfAChoice(demand, page_tokens));
  SLUICE_RETURN_IF_ERROR(hit.pages.Extend(first_pages - static_cast<int>(cached)));
  reservation.choices.push_back(std::move(hit.pages));
  reservation.cached_tokens = hit.tokens;
  reservation.pin = std::move(hit.pin);
  reservation.coarseness = hit.coarseness;
  SLUICE_ASSIGN_OR_RETURN(reservation.spare, pool_->Lease(static_cast<int>(needed) - first_pages));
  const auto [it, inserted] = by_id_.emplace(reservation.id, std::move(reservation));
  SLUICE_CHECK(inserted, "a reservation id was drawn twice");
  Renew(now, it->second);
  return &it->second;
}

StatusOr<const Reservation*> Reservations::Rearm(absl::Time now, Epoch epoch, ReservationId id) {
  SLUICE_ASSIGN_OR_RETURN(Reservation * reservation, FindForGateway(epoch, id));
  const auto next = Next(reservation->state, ReservationEvent::kRearm);
  if (!next) return absl::FailedPreconditionError("the reservation runs already, or has run");
  reservation->state = *next;
  ++reservation->tenure.value;
  Renew(now, *reservation);
  return reservation;
}

Status Reservations::Attach(absl::Time now, Epoch epoch, ReservationId id) {
  SLUICE_ASSIGN_OR_RETURN(Reservation * reservation, FindForGateway(epoch, id));
  if (reservation->attached) return absl::FailedPreconditionError("the reservation's tokens have a reader already");
  reservation->attached = true;
  if (Next(reservation->state, ReservationEvent::kAttach) == ReservationState::kEnded) {
    End(*reservation, ReservationEvent::kAttach);
  } else {
    Renew(now, *reservation);
  }
  return absl::OkStatus();
}

bool Reservations::Release(Epoch epoch, ReservationId id) {
  const StatusOr<Reservation*> reservation = FindForGateway(epoch, id);
  if (!reservation.ok()) return false;
  End(**reservation, ReservationEvent::kRelease);
  return true;
}

bool Reservations::OnFrame(absl::Time now, ReservationId id, Tenure tenure) {
  return Apply(now, id, tenure, ReservationEvent::kFrame);
}

bool Reservations::OnCommit(absl::Time now, ReservationId id, Tenure tenure) {
  return Apply(now, id, tenure, ReservationEvent::kCommit);
}

bool Reservations::OnPrefillHere(absl::Time now, ReservationId id, Tenure tenure) {
  return Apply(now, id, tenure, ReservationEvent::kPrefillHere);
}

bool Reservations::OnTransferFailed(absl::Time now, ReservationId id, Tenure tenure) {
  return Apply(now, id, tenure, ReservationEvent::kTransferFailed);
}

void Reservations::Arrived(ReservationId id, KvCoarseness coarseness) {
  Reservation& reservation = by_id_.at(id);
  reservation.coarseness = std::max(reservation.coarseness, coarseness);
}

bool Reservations::OnFinish(absl::Time now, ReservationId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || !Next(it->second.state, ReservationEvent::kFinish)) return false;
  Reservation& reservation = it->second;
  if (reservation.attached) {
    End(reservation, ReservationEvent::kFinish);
    return true;
  }
  reservation.state = *Next(reservation.state, ReservationEvent::kFinishUnread);
  reservation.choices.clear();
  reservation.spare.Release();
  reservation.pin.Release();
  Renew(now, reservation);
  return true;
}

Status Reservations::ExchangePromptPages(ReservationId id) {
  Reservation& reservation = by_id_.at(id);
  const int cached = pool_->PagesFor(reservation.cached_tokens);
  const int pages = pool_->PagesFor(reservation.demand.prompt_slots()) - cached;
  prefixes_.Evict(pages - pool_->pages_free());
  return reservation.choices[0].Exchange(cached, pages);
}

Status Reservations::ForkChoices(ReservationId id) {
  const auto it = by_id_.find(id);
  SLUICE_CHECK(it != by_id_.end() && it->second.choices.size() == 1);
  Reservation& reservation = it->second;
  const int page_tokens = pool_->options().page_tokens;
  // The spare pages go back and are taken again below by the same thread, so nobody else can get at them.
  reservation.spare.Release();
  while (static_cast<int>(reservation.choices.size()) < reservation.demand.choices) {
    const PageLease& prompt = reservation.choices[0];
    SLUICE_ASSIGN_OR_RETURN(PageLease fork, reservation.demand.full()
                                                ? pool_->Fork(prompt, reservation.demand.prompt_tokens)
                                                : pool_->Copy(prompt, reservation.demand.prompt_slots()));
    const int pages = static_cast<int>(PagesOfAChoice(reservation.demand, page_tokens));
    SLUICE_RETURN_IF_ERROR(fork.Extend(pages - static_cast<int>(fork.pages().size())));
    reservation.choices.push_back(std::move(fork));
  }
  return absl::OkStatus();
}

void Reservations::ReleaseChoice(absl::Time now, ReservationId id, int choice, absl::Span<const TokenId> tokens) {
  const auto it = by_id_.find(id);
  SLUICE_CHECK(it != by_id_.end());
  Reservation& reservation = it->second;
  // Choices that never got pages of their own (all ended before a fork) have nothing to give.
  if (choice >= static_cast<int>(reservation.choices.size())) return;
  PageLease& pages = reservation.choices[static_cast<size_t>(choice)];
  if (!reservation.demand.full()) return pages.Release();
  const PrefixTree::Pin kept = prefixes_.Insert(now, kFullPolicy, tokens, pages.pages(), reservation.coarseness);
  pages.Release();
  // The other choices still share the prompt's pages.
  const auto prompt = static_cast<size_t>(reservation.demand.prompt_tokens);
  reservation.pin = prefixes_.Match(now, kFullPolicy, tokens.subspan(0, prompt), kAnyCoarseness).pin;
}

const Reservation* Reservations::Find(ReservationId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &it->second;
}

std::vector<Reservations::Expired> Reservations::Expire(absl::Time now) {
  std::vector<Expired> expired;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    Reservation& reservation = by_id_.at(by_deadline_.begin()->second);
    expired.push_back({reservation.id, reservation.state, reservation.request_deadline <= now});
    End(reservation, ReservationEvent::kExpire);
  }
  return expired;
}

absl::Time Reservations::NextDeadline() const {
  const absl::Time expires = prefixes_.OldestUse() + options_.prefix_cache_keep;
  return by_deadline_.empty() ? expires : std::min(expires, by_deadline_.begin()->first);
}

std::vector<ReservationId> Reservations::ids() const {
  std::vector<ReservationId> ids;
  for (const auto& [deadline, id] : by_deadline_) ids.push_back(id);
  return ids;
}

StatusOr<Reservation*> Reservations::FindForGateway(Epoch epoch, ReservationId id) {
  if (epoch != epoch_) {
    return absl::AbortedError(
        absl::StrCat("the reservation is of epoch ", epoch.value, ", this process is epoch ", epoch_.value));
  }
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return absl::AbortedError("the reservation expired, ended or was released");
  return &it->second;
}

bool Reservations::Apply(absl::Time now, ReservationId id, Tenure tenure, ReservationEvent event) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || it->second.tenure != tenure) return false;
  const auto next = Next(it->second.state, event);
  if (!next) return false;
  it->second.state = *next;
  Renew(now, it->second);
  return true;
}

void Reservations::Renew(absl::Time now, Reservation& reservation) {
  by_deadline_.erase({reservation.deadline, reservation.id});
  absl::Time deadline = now + options_.lease;
  if (reservation.attached && reservation.state == ReservationState::kArmed) {
    // A prefill that lacks the prefix which is here computes it first, and sends nothing of it.
    deadline = reservation.cached_tokens > 0 ? absl::InfiniteFuture() : now + options_.queue_wait_max;
  }
  // A request that is computed here and listened to has nothing left to prove before its own deadline.
  const bool here =
      reservation.state == ReservationState::kRunning || reservation.state == ReservationState::kPrefilling;
  if (reservation.attached && here) deadline = absl::InfiniteFuture();
  reservation.deadline = std::min(deadline, reservation.request_deadline);
  by_deadline_.emplace(reservation.deadline, reservation.id);
}

void Reservations::End(Reservation& reservation, ReservationEvent event) {
  const auto next = Next(reservation.state, event);
  SLUICE_CHECK(next == ReservationState::kEnded);
  by_deadline_.erase({reservation.deadline, reservation.id});
  by_id_.erase(reservation.id);  // the leases fall here
}

}  // namespace sluice::decode
