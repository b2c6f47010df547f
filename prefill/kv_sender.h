// Brings prompts' KV to the decode processes that reserved room for it: connections with their handshake, frames of
// each layer of each computed chunk, the commit, and decode's answer to it. Does not compute and does not own pages.
//
// Threads: one thread drives it (Serve, or Poll in a test) and owns every transfer, connection and send buffer. Begin,
// Send, Commit, Cancel and Stop may be called from any thread; they and the transport's callbacks only leave messages.
// The KV that Send names is read later, by the driving thread: rows are final by then, and their pages stay leased
// until `ended` was called for the transfer. KV is copied from pages into send buffers, so memory that the transport
// still reads is never a page, and a transfer may end at any moment.
//
// Rejected: driving it from the engine thread, which is away for a whole chunk's computation and would leave the link
// idle meanwhile.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mailbox.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/kv_body.h"
#include "model/kv_frame.h"
#include "model/kv_pool.h"
#include "prefill/lifecycle.h"
#include "prefill/metrics.h"
#include "prefill/result_receiver.h"
#include "transport/transport.h"

namespace sluice::prefill {

using TransferId = Id<struct TransferIdTag>;  // one prompt's handoff; drawn by the worker

struct KvSenderOptions {
  proto::Hello hello;  // ours
  size_t send_memory_bytes = 0;
  size_t connection_bytes_in_flight_max = 0;
  size_t frame_bytes_max = 0;
  int chunk_tokens_max = 0;  // tokens of one Send; a frame is never larger than such a chunk's
  int connections_max = 0;
  absl::Duration connect_timeout;
  absl::Duration result_timeout;
};

struct TransferReport {
  Status status;  // OK: decode has everything and has checked it
  uint64_t kv_bytes = 0;
  absl::Duration handoff;  // from Commit on
};

class KvSender {
 public:
  using Ended = std::function<void(TransferId, const TransferReport&)>;

  // ResourceExhausted where the send buffers cannot be had; InvalidArgument where a token's KV of one layer is larger
  // than a frame may be.
  static StatusOr<std::unique_ptr<KvSender>> Create(const KvSenderOptions& options, KvPool* pool, const Clock* clock,
                                                    PrefillMetrics* metrics);
  // What Create takes.
  static size_t MemoryBytes(const KvSenderOptions& options) { return options.send_memory_bytes; }

  // The receiver of the transport that is given to Attach.
  Receiver* receiver() { return &receiver_; }
  // Before anything else. `transport` is destroyed before this, and after Serve has returned.
  // `ended` is called once for each Begin, on the driving thread; it may not block.
  void Attach(Transport* transport, Ended ended);

  // --- any thread ---

  void Begin(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline);
  void Send(TransferId id, const KvRange& range);
  void Commit(TransferId id, proto::HandoffRecord record);  // after the last Send
  void Cancel(TransferId id, Status why);                   // does nothing where it has ended
  void Stop();                                              // ends what runs with Unavailable; Serve returns

  // --- the driving thread ---

  void Serve();
  // Handles what came and what is due. Returns when to call it again at the latest.
  absl::Time Poll(absl::Time now);

 private:
  using Message = std::function<void()>;
  // A decode process: where it is and which incarnation of it.
  using PeerKey = std::pair<std::string, uint64_t>;

  struct Frame {
    TransferId transfer;
    bool commit = false;
    int layer = 0;
    int64_t first_token = 0;
    int64_t tokens = 0;
  };
  struct Peer {
    ConnectionId connection;
    uint64_t attempt = 0;  // tells its Connect's answer from one of a peer that was dropped
    bool open = false;
    std::deque<Frame> frames;  // not yet given to the transport
    size_t bytes_in_flight = 0;
    std::set<TransferId> transfers;
    absl::Time last_used;
  };
  struct Transfer {
    proto::Ticket ticket;
    PeerKey peer;
    std::vector<PageIndex> pages;
    TransferState state = TransferState::kConnecting;
    absl::Time request_deadline;
    absl::Time deadline;  // the request's, or the result's once that is earlier
    std::string record;   // serialised, from Commit until it is sent
    uint64_t kv_bytes = 0;
    std::optional<absl::Time> commit_time;
  };
  // What the transport may still read.
  struct Inflight {
    PeerKey peer;
    ConnectionId connection;
    TransferId transfer;
    std::optional<size_t> slot;  // a send buffer; else `bytes`
    std::string bytes;
    size_t size = 0;
  };

  KvSender(const KvSenderOptions& options, KvPool* pool, const Clock* clock, PrefillMetrics* metrics, Buffer memory,
           int64_t frame_tokens);

  void Post(Message message) { mailbox_.Post(std::move(message)); }

  void DoBegin(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline);
  void DoSend(TransferId id, const KvRange& range);
  void DoCommit(TransferId id, const proto::HandoffRecord& record);
  void DoStop();

  Status Connect(const PeerKey& key);
  Status MakeRoomForPeer();
  void OnConnected(const PeerKey& key, uint64_t attempt, const StatusOr<std::string>& reply);
  Status CheckReply(const PeerKey& key, const std::string& reply) const;
  void DropPeer(const PeerKey& key, const Status& why);

  void PumpAll();
  bool PumpOne(const PeerKey& key, Peer& peer);
  void SendFrame(const PeerKey& key, Peer& peer, const Frame& frame, Transfer& transfer);
  void SendControl(const PeerKey& key, Peer& peer, TransferId id, const Transfer& transfer, FrameKind kind,
                   std::string payload);
  void Hand(Peer& peer, std::string header, Inflight inflight);
  void OnSent(uint64_t send, const Status& status);
  void OnResult(ConnectionId connection, const StatusOr<proto::TransferResult>& result);
  void OnOutcome(TransferId id, Transfer& transfer, const Status& outcome);
  void OnLost(ConnectionId connection, const Status& why);

  bool Apply(Transfer& transfer, TransferEvent event);
  KvFrameHeader HeaderOf(const Transfer& transfer, FrameKind kind) const;
  void SetDeadline(TransferId id, Transfer& transfer, absl::Time deadline);
  enum class TellPeer { kNo, kYes };
  void Fault(TransferId id, const Status& why, TellPeer tell);
  void End(TransferId id, Status status);
  absl::Span<std::byte> Slot(size_t slot) { return memory_.span().subspan(slot * slot_bytes_, slot_bytes_); }

  const KvSenderOptions options_;
  KvPool* const pool_;
  const Clock* const clock_;
  PrefillMetrics* const metrics_;
  const uint64_t layout_hash_;
  Transport* transport_ = nullptr;
  Ended ended_;
  Mailbox<Message> mailbox_;

  // Of the driving thread.
  Buffer memory_;
  const int64_t frame_tokens_;  // of the largest frame
  size_t slot_bytes_ = 0;
  std::vector<size_t> free_slots_;
  std::map<PeerKey, Peer> peers_;
  std::unordered_map<uint64_t, PeerKey> peer_of_connection_;
  std::unordered_map<TransferId, Transfer> transfers_;
  std::set<std::pair<absl::Time, TransferId>> by_deadline_;
  std::unordered_map<uint64_t, Inflight> inflight_;
  uint64_t last_send_ = 0;
  uint64_t last_attempt_ = 0;
  PeerKey pump_after_;  // whose turn ended last
  bool stopped_ = false;

  ResultReceiver receiver_;  // of the transport's thread; leaves messages
};

}  // namespace sluice::prefill
