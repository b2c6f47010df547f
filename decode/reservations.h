// Decode's promises of memory: which reservation holds which pages, for whom, until when. A reservation leases pages
// for the worst case of its request before prefill begins, so that a request that runs never runs out of them. A pure
// data structure: no clock, no thread, no I/O but the park's; the engine thread owns it and passes the time in.
//
// With a park (KvPark), a reservation leases its prompt's pages and a few more, and grows. Where there is no page left,
// the youngest running request is parked: its pages leave the pool, as they are, and come back when there is room. The
// order is that of Reserve, but for requests that wait for their readers, which have no use for pages:
// - Promised is what the pool and the park hold together: whatever requests do, there is room to park the youngest, and
//   each request alone fits into the pool beside the prefixes in use. What does not fit into that is refused.
// - Who waits for its reader is parked before others, and comes back only once it is read.
// - While anyone else is parked, nobody new is taken, and the oldest of them is the first to come back.
// So of those whose readers read the oldest always runs, and ends, by its max_tokens or its deadline, and each becomes
// the oldest in its turn.
//
// Words: the *tenure* of a reservation is its generation: which holder of a ticket may write. Rearm begins a new one,
// and what the former holder still sends is told by its number and dropped. The *epoch* is this process's incarnation.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/cache_policy.h"
#include "common/ids.h"
#include "common/status.h"
#include "model/kv_park.h"
#include "model/kv_pool.h"
#include "model/prefix_tree.h"

namespace sluice::decode {

enum class ReservationState : uint8_t {
  kArmed,       // pages are leased, a ticket is out, nothing has come
  kReceiving,   // verified frames come
  kPrefilling,  // decode computes the prompt itself: no ticket is out
  kBroken,      // its transfer failed; waits for another prefill or for its release
  kRunning,     // committed: its sequences decode
  kParked,      // its pages had to make room and wait in the park
  kUnread,      // every choice has ended and pages are back; the answer waits for its reader, who is on the way
  kEnded,       // the reservation is forgotten
};
enum class ReservationEvent : uint8_t {
  kFrame,           // a frame of the present tenure was verified
  kCommit,          // the transfer is complete, or decode has computed the prompt
  kPrefillHere,     // decode takes the prompt on
  kTransferFailed,  // the transfer of the present tenure failed
  kRearm,           // the gateway gives it to another prefill
  kPark,            // its pages leave the pool
  kReturn,          // they are back
  kFinish,          // every choice has ended, and somebody listens
  kFinishUnread,    // every choice has ended before anybody listened
  kAttach,          // somebody listens from now on
  kRelease,         // the gateway or the client is no longer interested, or decode gives up on it
  kExpire,          // the deadline passed
};
inline constexpr int kReservationStates = 8;
inline constexpr int kReservationEvents = 12;
std::string_view Name(ReservationState state);

// The lifecycle's table. Nothing where the event does not act on a reservation in that state.
std::optional<ReservationState> Next(ReservationState from, ReservationEvent event);

// What a request may need at most.
struct PageDemand {
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // generated tokens a choice, the first included; already clipped (CachePolicy::Generated)
  int choices = 1;
  CachePolicy policy;

  bool full() const { return policy.kind == CachePolicyKind::kFull; }
  int64_t prompt_slots() const { return policy.Kept(prompt_tokens); }
  // Slots of a choice at most. The last generated token is never fed back, so its KV needs none.
  int64_t slots() const { return policy.Slots(prompt_tokens, max_tokens - 1); }
};
// Pages of a worst case: all of choice 0, and what the other choices cannot share with it: under a cache policy all of
// theirs, since each writes over slots of the prompt.
int64_t PagesNeeded(const PageDemand& demand, int page_tokens);

struct Reservation {
  ReservationId id;
  RequestId request;
  uint64_t age = 0;  // numbered as they were made: the smallest is the oldest
  Tenure tenure{1};
  ReservationState state = ReservationState::kArmed;
  PageDemand demand;
  bool attached = false;        // somebody listens to its tokens
  bool reader_behind = false;   // every choice that goes on waits until tokens are read
  absl::Time deadline;          // of the reservation; moves with every sign of life
  absl::Time request_deadline;  // never moves; `deadline` is never past it
  int64_t cached_tokens = 0;    // of the prompt, whose KV is here: whole pages, shared, written by nobody
  PrefixTree::Pin pin;          // of them
  KvCoarseness coarseness = 0;  // of its KV: of those, and from Arrived on of what came
  // Page tables of the choices. Until ForkChoices there is one, and `spare` keeps room for the others.
  std::vector<PageLease> choices;
  PageLease spare;
  int64_t pages_own_max = 0;  // of its worst case, those that it does not share
  int64_t pages_to_come = 0;  // of them, those that it may yet need
  // While it is parked: the tables as they were, and the pages of them that the park has, in order. What others use as
  // well has stayed, and `choices` hold it.
  std::vector<std::vector<PageIndex>> tables_before;
  std::vector<PageIndex> pages_before;
  ParkedPages parked;
};

struct NoRoom {
  int64_t pages_needed = 0;
  int pages_free = 0;
  int pages_total = 0;
  absl::Duration retry_after;
};

struct ReservationsOptions {
  absl::Duration lease;           // without a sign of life
  absl::Duration queue_wait_max;  // likewise, while attached and before the first frame
  int reservations_max = 0;
  int prefix_cache_pages = 0;        // that finished requests may leave behind; 0: none
  absl::Duration prefix_cache_keep;  // for so long after their last use
  int growth_tokens = 64;            // with a park: generated tokens of a choice that are leased ahead
  uint64_t id_key = 0;               // ids are drawn from it, so that a stray frame does not hit one by counting
};

class Reservations {
 public:
  // `park` is null where every worst case is leased. All outlive this.
  Reservations(KvPool* pool, Epoch epoch, const ReservationsOptions& options, KvPark* park = nullptr);

  // Leases the pages, and shares those whose KV of `prompt` is here already, none coarser than `coarseness_max`; what
  // is cached goes where room is needed. `prompt` may be empty: then nothing is looked for. NoRoom where there are too
  // few, or somebody is parked; OutOfRange, naming both, where it could never have enough; ResourceExhausted where too
  // many reservations are held. The pointer is valid until the reservation ends.
  StatusOr<std::variant<const Reservation*, NoRoom>> Reserve(absl::Time now, RequestId request,
                                                             const PageDemand& demand, absl::Time request_deadline,
                                                             absl::Span<const TokenId> prompt = {},
                                                             KvCoarseness coarseness_max = 0);

  // Begins a new tenure. Aborted where the reservation is not there any more, FailedPrecondition where it runs already.
  StatusOr<const Reservation*> Rearm(absl::Time now, Epoch epoch, ReservationId id);

  // Somebody listens from now on. Aborted as in Rearm; FailedPrecondition where somebody listened before. Ends an
  // unread reservation.
  Status Attach(absl::Time now, Epoch epoch, ReservationId id);

  // Gives everything back. True where there was something; again or unknown is no error.
  bool Release(Epoch epoch, ReservationId id);

  // Events from inside, of a certain tenure: false where it is not the present one or the table has no such edge.
  bool OnFrame(absl::Time now, ReservationId id, Tenure tenure);
  bool OnPrefillHere(absl::Time now, ReservationId id, Tenure tenure);
  bool OnCommit(absl::Time now, ReservationId id, Tenure tenure);
  // How coarse the KV is that came for it. REQUIRES: it is there.
  void Arrived(ReservationId id, KvCoarseness coarseness);
  bool OnTransferFailed(absl::Time now, ReservationId id, Tenure tenure);
  // Gives the pages back.
  bool OnFinish(absl::Time now, ReservationId id);

  // Other pages for the prompt, where what a former tenure sent may still be written into these. ResourceExhausted,
  // with nothing changed, where the pool has too few. Shared pages stay: nobody writes them. REQUIRES: not running yet.
  Status ExchangePromptPages(ReservationId id);

  // Gives choices 1.. page tables of their own out of the spare pages; the prompt's whole pages are shared in place, or
  // under a cache policy copied. REQUIRES: running, not forked before.
  Status ForkChoices(ReservationId id);
  // Gives the pages of one choice back, before the others have ended or after. `tokens`, the prompt's first, are those
  // whose KV is in them: whole pages of them stay in the cache for whoever goes on from there.
  void ReleaseChoice(absl::Time now, ReservationId id, int choice, absl::Span<const TokenId> tokens);

  // Where there is a page for each of the first `slots` slots of the choice now. REQUIRES: running.
  bool Grow(ReservationId id, int choice, int64_t slots);
  // Whether every choice of a running or parked request that goes on waits for its reader.
  void OnReader(ReservationId id, bool behind) { by_id_.at(id).reader_behind = behind; }
  // The youngest running request that has pages to give, or that of those that wait for their readers; none where no
  // other one runs or where there is no park.
  std::optional<ReservationId> NextToPark() const;
  // Moves its pages into the park. An error, with nothing changed, is the park's. REQUIRES: NextToPark.
  Status Park(absl::Time now, ReservationId id);
  // The oldest parked request that does not wait for its reader, where there is room for it and for some growth of all
  // that run.
  std::optional<ReservationId> NextToReturn() const;
  // Brings its pages back. An error, with nothing changed, is the park's. REQUIRES: NextToReturn.
  Status Return(absl::Time now, ReservationId id);

  const Reservation* Find(ReservationId id) const;

  // Ends everything whose deadline is at or before `now`, in order of deadlines.
  struct Expired {
    ReservationId id;
    ReservationState was = ReservationState::kArmed;
    bool request_over = false;  // the request's own deadline passed
  };
  std::vector<Expired> Expire(absl::Time now);
  // Gives back cached pages that have not been used for as long as they are kept.
  void ExpirePrefixes(absl::Time now) { prefixes_.Expire(now - options_.prefix_cache_keep); }
  absl::Time NextDeadline() const;  // of either; InfiniteFuture where there is none

  const PrefixTree& prefixes() const { return prefixes_; }
  int requests_parked() const { return static_cast<int>(parked_.size()); }
  int pages_available() const { return pool_->pages_free() + prefixes_.pages_evictable(); }

  size_t size() const { return by_id_.size(); }
  std::vector<ReservationId> ids() const;
  Epoch epoch() const { return epoch_; }

 private:
  StatusOr<Reservation*> FindForGateway(Epoch epoch, ReservationId id);
  PageDemand LeasedAtFirst(const PageDemand& demand) const;
  // How many pages a new request may be promised in all, of which `own` are the most that it would hold alone.
  int64_t Promisable(int64_t own) const;
  // Null where nobody is parked who could go on.
  const Reservation* FirstToReturn() const;
  // Pages that are left free for the reservation to grow when somebody returns.
  int64_t GrowthAhead(const Reservation& reservation) const;
  // Pages that nothing but this reservation's choices uses, each once.
  std::vector<PageIndex> OwnPages(const Reservation& reservation) const;
  bool Apply(absl::Time now, ReservationId id, Tenure tenure, ReservationEvent event);
  void Renew(absl::Time now, Reservation& reservation);
  void End(Reservation& reservation, ReservationEvent event);

  KvPool* pool_;
  KvPark* park_;
  Epoch epoch_;
  ReservationsOptions options_;
  uint64_t ids_drawn_ = 0;
  PrefixTree prefixes_;  // outlives the pins below
  std::unordered_map<ReservationId, Reservation> by_id_;
  // A heap by deadline whose entries can be moved: a set, so that renewals leave no stale entries behind.
  std::set<std::pair<absl::Time, ReservationId>> by_deadline_;
  std::set<std::pair<uint64_t, ReservationId>> parked_;  // by age
};

}  // namespace sluice::decode
