// The handoffs that run, each of one prompt, and their deadlines in one order. A table of the sender's thread: what
// happens to a transfer is decided by the sender.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/proto/handoff.pb.h"
#include "model/kv_pool.h"
#include "prefill/frame_queue.h"
#include "prefill/lifecycle.h"
#include "prefill/probation.h"
#include "prefill/wire_choice.h"

namespace sluice::prefill {

using TransferId = Id<struct TransferIdTag>;  // one prompt's handoff; drawn by the worker, so they grow

struct Transfer {
  TransferId id;
  proto::Ticket ticket;
  std::vector<PageIndex> pages;
  absl::Time request_deadline;

  TransferState state = TransferState::kConnecting;
  FrameQueue frames;
  std::optional<WireChoice> wire;              // from the first frame on
  std::optional<proto::HandoffRecord> record;  // from Commit until it is sent
  std::optional<absl::Time> commit_time;
  uint64_t kv_bytes = 0;  // sent, those sent again included
  int frames_sent_again = 0;
  uint64_t credit_before_result =
      0;  // of the connection since its start, once all that left before the commit is placed

  PeerKey peer() const { return {ticket.kv_address(), ticket.decode_epoch()}; }
  // False where the event has no effect in this state.
  bool Apply(TransferEvent event);
};

class Transfers {
 public:
  Transfer& Add(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline);
  Transfer* Find(TransferId id);  // null where it has ended
  Transfer Remove(TransferId id);
  Transfer* Any() { return by_id_.empty() ? nullptr : &by_id_.begin()->second; }

  // The request's deadline holds in any case.
  void SetDeadline(const Transfer& transfer, absl::Time deadline);
  Transfer* Due(absl::Time now);  // null where nothing is
  absl::Time next_deadline() const {
    return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
  }

 private:
  std::unordered_map<TransferId, Transfer> by_id_;
  std::unordered_map<TransferId, absl::Time> deadlines_;
  std::set<std::pair<absl::Time, TransferId>> by_deadline_;
};

}  // namespace sluice::prefill
