#include "decode/reservations.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

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
    case ReservationState::kParked:
      return "parked";
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
      if (event == E::kPark) return S::kParked;          // do step it no more
      return std::nullopt;
    case S::kParked:
      if (event == E::kReturn) return S::kRunning;  // do go on
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

Reservations::Reservations(KvPool* pool, Epoch epoch, const ReservationsOptions& options, KvPark* park)
    : pool_(pool), park_(park), epoch_(epoch), options_(options), prefixes_(pool, options.prefix_cache_pages) {}

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
  const int64_t own = needed - cached;
  const PageDemand at_first = LeasedAtFirst(demand);
  const int64_t own_at_first = PagesNeeded(at_first, page_tokens) - cached;
  const int64_t promisable = Promisable(own);
  if (own > promisable || own_at_first > pages_available()) {
    // Pages come back when requests end; a deadline is the latest time of that, and a second is soon enough to look.
    const absl::Duration wait = std::clamp(NextDeadline() - now, absl::Milliseconds(50), absl::Seconds(1));
    if (own > promisable) return NoRoom{own, static_cast<int>(promisable), pool_->pages_total(), wait};
    return NoRoom{own_at_first, pages_available(), pool_->pages_total(), wait};
  }
  prefixes_.Evict(static_cast<int>(own_at_first) - pool_->pages_free());
  Reservation reservation;
  reservation.age = ids_drawn_;
  reservation.id = ReservationId{RandomBits(options_.id_key, ids_drawn_++)};
  reservation.request = request;
  reservation.demand = demand;
  reservation.request_deadline = request_deadline;
  reservation.pages_own_max = own;
  reservation.pages_to_come = own - own_at_first;
  const int first_pages = static_cast<int>(PagesOfAChoice(at_first, page_tokens) - cached);
  SLUICE_RETURN_IF_ERROR(hit.pages.Extend(first_pages));
  reservation.choices.push_back(std::move(hit.pages));
  reservation.cached_tokens = hit.tokens;
  reservation.pin = std::move(hit.pin);
  reservation.coarseness = hit.coarseness;
  SLUICE_ASSIGN_OR_RETURN(reservation.spare, pool_->Lease(static_cast<int>(own_at_first) - first_pages));
  const auto [it, inserted] = by_id_.emplace(reservation.id, std::move(reservation));
  SLUICE_CHECK(inserted, "a reservation id was drawn twice");
  Renew(now, it->second);
  return &it->second;
}

PageDemand Reservations::LeasedAtFirst(const PageDemand& demand) const {
  PageDemand at_first = demand;
  if (park_ != nullptr) at_first.max_tokens = std::min<int64_t>(demand.max_tokens, options_.growth_tokens);
  return at_first;
}

int64_t Reservations::Promisable(int64_t own) const {
  if (FirstToReturn() != nullptr) return 0;
  int64_t promised = pool_->pages_total() - pages_available();
  for (const auto& [id, reservation] : by_id_) {
    promised += reservation.pages_to_come + reservation.parked.pages();
    own = std::max(own, reservation.pages_own_max);
  }
  const int64_t without_park = pool_->pages_total() - promised;
  const int pinned = prefixes_.pages() - prefixes_.pages_evictable();
  if (park_ == nullptr || own + pinned > pool_->pages_total()) return std::max<int64_t>(0, without_park);
  // The largest may have to be parked whole when a single page is missing.
  return std::max<int64_t>({0, without_park, without_park + park_->pages_total() - own});
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
  reservation.pages_to_come = 0;
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
    const int pages = static_cast<int>(PagesOfAChoice(LeasedAtFirst(reservation.demand), page_tokens));
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
  reservation.pages_to_come -=
      PagesOfAChoice(reservation.demand, pool_->options().page_tokens) - static_cast<int64_t>(pages.pages().size());
  // What the cache has cannot be parked. So with a park the prompt is not put there while other choices run on it.
  const auto runs = [](const PageLease& each) { return !each.pages().empty(); };
  const bool others_run = std::count_if(reservation.choices.begin(), reservation.choices.end(), runs) > 1;
  if (!reservation.demand.full() || (park_ != nullptr && others_run)) return pages.Release();
  const PrefixTree::Pin kept = prefixes_.Insert(now, kFullPolicy, tokens, pages.pages(), reservation.coarseness);
  pages.Release();
  // The other choices still share the prompt's pages.
  const auto prompt = static_cast<size_t>(reservation.demand.prompt_tokens);
  reservation.pin = prefixes_.Match(now, kFullPolicy, tokens.subspan(0, prompt), kAnyCoarseness).pin;
}

bool Reservations::Grow(ReservationId id, int choice, int64_t slots) {
  Reservation& reservation = by_id_.at(id);
  SLUICE_CHECK(reservation.state == ReservationState::kRunning);
  PageLease& pages = reservation.choices[static_cast<size_t>(choice)];
  const int more = pool_->PagesFor(slots) - static_cast<int>(pages.pages().size());
  if (more <= 0) return true;
  SLUICE_CHECK(more <= reservation.pages_to_come, "a request needs more pages than it was promised");
  prefixes_.Evict(more - pool_->pages_free());
  if (!pages.Extend(more).ok()) return false;
  reservation.pages_to_come -= more;
  return true;
}

std::vector<PageIndex> Reservations::OwnPages(const Reservation& reservation) const {
  std::map<PageIndex, int> uses;
  for (const PageLease& choice : reservation.choices) {
    for (const PageIndex page : choice.pages()) ++uses[page];
  }
  std::vector<PageIndex> own;
  for (const auto& [page, count] : uses) {
    if (pool_->HeldOnlyForUse(page, count)) own.push_back(page);
  }
  return own;
}

std::optional<ReservationId> Reservations::NextToPark() const {
  if (park_ == nullptr) return std::nullopt;
  // Those that wait for their readers first, and of each the youngest.
  std::map<std::pair<bool, uint64_t>, const Reservation*, std::greater<>> running;
  for (const auto& [id, reservation] : by_id_) {
    if (reservation.state == ReservationState::kRunning)
      running.emplace(std::pair(reservation.reader_behind, reservation.age), &reservation);
  }
  if (running.size() < 2) return std::nullopt;
  for (const auto& [order, reservation] : running) {
    if (!OwnPages(*reservation).empty()) return reservation->id;
  }
  return std::nullopt;
}

Status Reservations::Park(absl::Time now, ReservationId id) {
  Reservation& reservation = by_id_.at(id);
  std::vector<PageIndex> own = OwnPages(reservation);
  SLUICE_ASSIGN_OR_RETURN(reservation.parked, park_->Park(*pool_, own));
  for (PageLease& choice : reservation.choices) {
    const std::vector<PageIndex> table(choice.pages().begin(), choice.pages().end());
    std::vector<PageIndex> staying;
    std::copy_if(table.begin(), table.end(), std::back_inserter(staying),
                 [&own](PageIndex page) { return !std::binary_search(own.begin(), own.end(), page); });
    choice = pool_->Share(staying, LeaseFor::kUse);
    reservation.tables_before.push_back(table);
  }
  reservation.pages_before = std::move(own);
  parked_.emplace(reservation.age, id);
  SLUICE_CHECK(Apply(now, id, reservation.tenure, ReservationEvent::kPark));
  return absl::OkStatus();
}

int64_t Reservations::GrowthAhead(const Reservation& reservation) const {
  return std::min<int64_t>(reservation.pages_to_come,
                           int64_t{pool_->PagesFor(options_.growth_tokens)} * reservation.demand.choices);
}

const Reservation* Reservations::FirstToReturn() const {
  for (const auto& [age, id] : parked_) {
    if (const Reservation& reservation = by_id_.at(id); !reservation.reader_behind) return &reservation;
  }
  return nullptr;
}

// Room for growth, so that it is not parked again at once: the copies are paid for by some steps at least.
std::optional<ReservationId> Reservations::NextToReturn() const {
  const Reservation* oldest = FirstToReturn();
  if (oldest == nullptr) return std::nullopt;
  bool alone = true;
  int64_t room = oldest->parked.pages() + GrowthAhead(*oldest);
  for (const auto& [id, reservation] : by_id_) {
    if (reservation.state != ReservationState::kRunning) continue;
    alone = false;
    room += GrowthAhead(reservation);
  }
  if (pages_available() < (alone ? oldest->parked.pages() : room)) return std::nullopt;
  return oldest->id;
}

Status Reservations::Return(absl::Time now, ReservationId id) {
  Reservation& reservation = by_id_.at(id);
  const int pages = reservation.parked.pages();
  prefixes_.Evict(pages - pool_->pages_free());
  SLUICE_ASSIGN_OR_RETURN(const PageLease back, pool_->Lease(pages));
  SLUICE_RETURN_IF_ERROR(park_->Restore(reservation.parked, pool_, back.pages()));
  std::map<PageIndex, PageIndex> moved;
  for (size_t i = 0; i < reservation.pages_before.size(); ++i) moved[reservation.pages_before[i]] = back.pages()[i];
  for (size_t i = 0; i < reservation.choices.size(); ++i) {
    std::vector<PageIndex>& table = reservation.tables_before[i];
    for (PageIndex& page : table) {
      if (const auto it = moved.find(page); it != moved.end()) page = it->second;
    }
    reservation.choices[i] = pool_->Share(table, LeaseFor::kUse);
  }
  reservation.tables_before.clear();
  reservation.pages_before.clear();
  reservation.parked.Release();
  parked_.erase({reservation.age, id});
  SLUICE_CHECK(Apply(now, id, reservation.tenure, ReservationEvent::kReturn));
  return absl::OkStatus();
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
  const bool here = reservation.state == ReservationState::kRunning || reservation.state == ReservationState::kParked ||
                    reservation.state == ReservationState::kPrefilling;
  if (reservation.attached && here) deadline = absl::InfiniteFuture();
  reservation.deadline = std::min(deadline, reservation.request_deadline);
  by_deadline_.emplace(reservation.deadline, reservation.id);
}

void Reservations::End(Reservation& reservation, ReservationEvent event) {
  const auto next = Next(reservation.state, event);
  SLUICE_CHECK(next == ReservationState::kEnded);
  by_deadline_.erase({reservation.deadline, reservation.id});
  parked_.erase({reservation.age, reservation.id});
  by_id_.erase(reservation.id);  // the leases fall here
}

}  // namespace sluice::decode
