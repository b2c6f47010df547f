// Brings prompts' KV to the decode processes that reserved room for it: frames of what was computed, in the codec that
// the link can carry, the commit, frames that are wanted again, and decode's answer. Does not compute and does not own
// pages. The tables it acts on are those of `peers` and `transfers`; when a transfer's KV becomes which frames is
// `frame_queue`'s business, which codec it takes is `wire_choice`'s.
//
// Threads: one thread drives it (Serve, or Poll in a test) and owns every transfer, connection and send buffer. Begin,
// Send, Commit, Cancel and Stop may be called from any thread; they and the transport's callbacks only leave messages.
// The KV that Send names is read later, by the driving thread: rows are final by then, and their pages stay leased
// until `ended` was called for the transfer. KV is encoded from pages into send buffers, so memory that the transport
// still reads is never a page, and a transfer may end at any moment.
//
// Rejected: driving it from the engine thread, which is away for a whole chunk's computation and would leave the link
// idle meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/mailbox.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/kv_body.h"
#include "model/kv_frame.h"
#include "model/kv_pool.h"
#include "prefill/answer_receiver.h"
#include "prefill/metrics.h"
#include "prefill/peers.h"
#include "prefill/send_buffers.h"
#include "prefill/transfers.h"
#include "transport/transport.h"

namespace sluice::prefill {

struct KvSenderOptions {
  proto::Hello hello;       // ours; its wire codecs are those that a transfer may take
  bool wire_adapts = true;  // to the link; else decode's store codec is taken whatever the link
  size_t send_memory_bytes = 0;
  size_t connection_bytes_in_flight_max = 0;
  size_t frame_bytes_min = 0;  // layers of the same tokens share a frame until it has so many
  size_t frame_bytes_max = 0;
  int connections_max = 0;
  absl::Duration connect_timeout;
  absl::Duration result_timeout;  // of decode without a sign of progress
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
  // KV that is final, once each; of one token range layer by layer.
  void Send(TransferId id, const KvRange& range);
  // After the last Send. KV at or behind position record.kv_tokens is not needed: it stays here, unless some of its
  // layers have left. Decode gets the record with the position up to which KV was sent, exactly.
  void Commit(TransferId id, proto::HandoffRecord record);
  void Cancel(TransferId id, Status why);  // does nothing where it has ended
  void Stop();                             // ends what runs with Unavailable; Serve returns
  // How fast this process produces KV while at work: what a link must keep up with. 0: not known.
  void SetTokensPerSecond(double rate) { tokens_per_s_ = rate; }

  // --- the driving thread ---

  void Serve();
  // Handles what came and what is due. Returns when to call it again at the latest.
  absl::Time Poll(absl::Time now);

 private:
  using Message = std::function<void()>;
  enum class Turn : uint8_t { kSent, kNothing, kNoMemory };
  enum class TellPeer : uint8_t { kNo, kYes };

  // What the transport may still read.
  struct Inflight {
    ConnectionId connection;
    TransferId transfer;
    SendBuffers::Lease kv;
    std::string bytes;  // where it is no KV
  };

  KvSender(const KvSenderOptions& options, KvPool* pool, const Clock* clock, PrefillMetrics* metrics,
           std::unique_ptr<SendBuffers> buffers);

  void Post(Message message) { mailbox_.Post(std::move(message)); }

  void DoBegin(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline);
  void DoSend(TransferId id, const KvRange& range);
  void DoCommit(TransferId id, proto::HandoffRecord record);
  void DoStop();

  void OnConnected(const PeerKey& key, uint64_t attempt, const StatusOr<std::string>& reply);
  void OnSent(uint64_t send, const Status& status);
  void OnAnswer(ConnectionId connection, const StatusOr<Answer>& answer);
  void On(Peer& peer, const proto::TransferResult& result);
  void On(Peer& peer, const Credit& credit);
  void On(Peer& peer, const WantedAgain& wanted);
  void OnLost(ConnectionId connection, const Status& why);
  void OnOutcome(Transfer& transfer, const Status& outcome);

  void EndWhatIsDue(absl::Time now);
  void DropStalledPeers(absl::Time now);
  void PumpAll();
  Turn PumpOne(Peer& peer);
  std::optional<KvRange> NextFrame(Peer& peer, Transfer& transfer);
  FrameLimits LimitsOf(const Peer& peer, const Transfer& transfer) const;
  WireChoice Choose(Peer& peer);
  bool HasRoom(const Peer& peer, size_t bytes) const;
  void SendFrame(Peer& peer, Transfer& transfer, const KvRange& range, SendBuffers::Lease buffer);
  Status EncodeFrame(const Transfer& transfer, const KvRange& range, absl::Span<std::byte> body);
  void SendCommit(Peer& peer, Transfer& transfer);
  void SendControl(Peer& peer, const Transfer& transfer, FrameKind kind, std::string payload);
  void Hand(Peer& peer, std::string header, Inflight inflight);
  KvFrameHeader HeaderOf(const Transfer& transfer, FrameKind kind) const;

  // The transfer to `peer` that a message of it is about; null where it has ended.
  Transfer* TransferOf(const Peer& peer, RequestId request, ReservationId reservation, Tenure generation);
  void RenewCreditDeadline(Peer& peer);
  void DropPeer(Peer& peer, const Status& why);
  void Fault(TransferId id, const Status& why, TellPeer tell);
  void End(TransferId id, Status status);

  const KvSenderOptions options_;
  KvPool* const pool_;
  const Clock* const clock_;
  PrefillMetrics* const metrics_;
  const uint64_t layout_hash_;
  Transport* transport_ = nullptr;
  Ended ended_;
  Mailbox<Message> mailbox_;
  std::atomic<double> tokens_per_s_ = 0;

  // Of the driving thread.
  std::unique_ptr<SendBuffers> buffers_;
  Peers peers_;
  Transfers transfers_;
  std::unordered_map<uint64_t, Inflight> inflight_;
  uint64_t last_send_ = 0;
  PeerKey pump_after_;  // whose turn ended last
  bool f16_saturates_ = false;
  bool stopped_ = false;

  AnswerReceiver receiver_;  // of the transport's thread; leaves messages
};

}  // namespace sluice::prefill
