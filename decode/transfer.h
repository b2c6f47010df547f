// One prefill's delivery of one prompt's KV, as the receiver sees it: which (layer, token range) has been placed, and
// whether the commit may be acted on. Pure bookkeeping without bytes, time or threads; each tenure of a reservation has
// a new one. Frames and the commit may come in any order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace sluice::decode {

// Token ranges placed in each layer, each token once.
class Coverage {
 public:
  Coverage(int layers, int64_t tokens_max) : tokens_max_(tokens_max), ranges_(static_cast<size_t>(layers)) {}

  // Claims [first, first + tokens) of `layer`. InvalidArgument, with nothing changed, where the range lies outside of
  // what was reserved or overlaps a range that was claimed before.
  Status Add(int layer, int64_t first, int64_t tokens);

  bool CoversExactly(int64_t tokens) const;  // every layer holds [0, tokens) and nothing else
  int64_t end() const { return end_; }       // one past the last token of any layer

 private:
  int64_t tokens_max_;
  int64_t end_ = 0;
  std::vector<std::map<int64_t, int64_t>> ranges_;  // per layer: first -> end, disjoint, neighbours merged
};

enum class TransferState : uint8_t {
  kReceiving,   // frames come, no commit yet
  kCommitHeld,  // the commit overtook frames, which are still awaited
  kComplete,    // commit and every frame: decode may start
  kFailed,      // contradicted itself or was given up; nothing of it counts any more
};
enum class TransferEvent : uint8_t {
  kFrame,           // a verified frame was placed and some are missing
  kLastFrame,       // likewise, and now none is missing that the held commit names
  kCommitEarly,     // a verified commit that names frames that are missing
  kCommitAfterAll,  // a verified commit, all of whose frames are there
  kFault,           // a CRC that differs, a range twice, an abort, a peer that vanished
};
inline constexpr int kTransferStates = 4;
inline constexpr int kTransferEvents = 5;
std::string_view Name(TransferState state);

// The lifecycle's table. Nothing where the event cannot be acted on in that state.
std::optional<TransferState> Next(TransferState from, TransferEvent event);

class Transfer {
 public:
  Transfer(int layers, int64_t tokens_max) : coverage_(layers, tokens_max) {}

  // A verified frame. Only after OK may its bytes be placed; otherwise the transfer has failed (InvalidArgument) or had
  // failed or ended before (FailedPrecondition).
  Status OnFrame(int layer, int64_t first, int64_t tokens);
  // A verified commit that names KV of positions [0, kv_tokens).
  Status OnCommit(int64_t kv_tokens);
  void Fail();

  TransferState state() const { return state_; }

 private:
  Status Apply(TransferEvent event);
  Status FailWith(Status why);

  Coverage coverage_;
  TransferState state_ = TransferState::kReceiving;
  int64_t kv_tokens_ = -1;  // once the commit is here
};

}  // namespace sluice::decode
