// One prefill's delivery of one prompt's KV, as the receiver sees it: which (layer, token range) is on its way into
// memory or there, what has to come again, and whether the commit may be acted on. Pure bookkeeping without bytes, time
// or threads; each tenure of a reservation has a new one. Frames and the commit may come in any order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "model/kv_body.h"

namespace sluice::decode {

// Which holder of which reservation.
struct TransferKey {
  ReservationId reservation;
  Tenure tenure;
  auto operator<=>(const TransferKey&) const = default;
};

// Token ranges of each layer, each token once.
class Coverage {
 public:
  // Of tokens [first_token, end_token) in each layer.
  Coverage(int layers, int64_t first_token, int64_t end_token)
      : first_token_(first_token), end_token_(end_token), ranges_(static_cast<size_t>(layers)) {}

  // How much of a range has been added.
  enum class Share { kNone, kAll, kSome };
  // InvalidArgument where the range lies outside.
  StatusOr<Share> Look(const KvRange& range) const;
  void Add(const KvRange& range);     // REQUIRES: Look(range) is kNone
  void Remove(const KvRange& range);  // REQUIRES: Look(range) is kAll

  bool CoversExactly(int64_t end) const;  // every layer holds [first_token, end) and nothing else
  int64_t end() const;                    // one past the last token of any layer; first_token where there is none

 private:
  using Ranges = std::map<int64_t, int64_t>;  // first -> end, disjoint, neighbours merged
  static void Add(Ranges& ranges, int64_t first, int64_t end);
  static void Remove(Ranges& ranges, int64_t first, int64_t end);

  int64_t first_token_;
  int64_t end_token_;
  std::vector<Ranges> ranges_;  // by layer
};

enum class TransferState : uint8_t {
  kReceiving,   // frames come, no commit yet
  kCommitHeld,  // the commit overtook frames, which are still awaited
  kComplete,    // commit and every frame: decode may start
  kFailed,      // contradicted itself or was given up; nothing of it counts any more
};
enum class TransferEvent : uint8_t {
  kFrame,           // a frame was verified and placed, and some are missing
  kLastFrame,       // likewise, and now none is missing that the held commit names
  kDamaged,         // a frame's bytes were not those that were sent; its range is open again
  kCommitEarly,     // a verified commit that names frames that are missing
  kCommitAfterAll,  // a verified commit, all of whose frames are there
  kFault,           // contradictions, damage again and again, an abort, a peer that vanished
};
inline constexpr int kTransferStates = 4;
inline constexpr int kTransferEvents = 6;
std::string_view Name(TransferState state);

// The lifecycle's table. Nothing where the event cannot be acted on in that state.
std::optional<TransferState> Next(TransferState from, TransferEvent event);

class Transfer {
 public:
  Transfer(int layers, int64_t first_token, int64_t end_token)
      : claimed_(layers, first_token, end_token), asked_(layers, first_token, end_token) {}

  bool open() const { return state_ == TransferState::kReceiving || state_ == TransferState::kCommitHeld; }
  TransferState state() const { return state_; }

  // REQUIRES for all of these: open().

  // A frame is offered. True where it is to land, which one of the next two reports; false where its whole range is
  // landing or has landed. InvalidArgument, and failed, where it contradicts what was reserved, came before, or was
  // committed.
  StatusOr<bool> Admit(const KvRange& range);
  void OnPlaced(const KvRange& range);
  // The range is open again. OK where it is to be asked for; DataLoss, and failed, where that was tried or tried too
  // often.
  Status OnDamaged(const KvRange& range);
  // Likewise for a range that was never admitted, as it came cut short. False where nobody misses it.
  StatusOr<bool> OnUnusable(const KvRange& range);

  // A commit is offered. False where one came before.
  bool AdmitCommit();
  // It is verified, and names KV up to position `kv_tokens`. InvalidArgument, and failed, where frames reach further.
  Status OnCommit(int64_t kv_tokens);

  void Fail();  // also where it is not open: then it stays as it is

 private:
  static constexpr int kDamagedMax = 16;

  void Apply(TransferEvent event);
  Status FailWith(Status why);
  Status AskAgain(const KvRange& range);
  bool HasAll() const { return landing_ == 0 && claimed_.CoversExactly(kv_tokens_); }

  Coverage claimed_;  // landing or placed
  Coverage asked_;    // asked for again
  int landing_ = 0;   // frames
  int damaged_ = 0;
  bool commit_came_ = false;
  int64_t kv_tokens_ = -1;  // once the commit is verified
  TransferState state_ = TransferState::kReceiving;
};

}  // namespace sluice::decode
