// Decode's end of the KV wire: says which frames may land and where, checks what landed, and brings it into the pages.
// Joins transport and model; knows nothing of sequences. The engine thread hears of a transfer's progress, completion
// or loss, and does not touch KV that arrives.
//
// A frame whose wire codec is the pool's own lands in its pages, and nobody moves it again; its CRC is checked there,
// and only what was right counts as there. Any other lands in staging memory and is recoded into its pages by the
// transport's thread, once its CRC was right. Either way pages may be written after their transfer is over: then Close
// says so, and PagesQuiet follows when it has ended. Until then nobody else may have them.
//
// Rejected: recoding on the engine thread, which would make every step wait for it.
//
// Threads: the transport's thread makes the Receiver calls, the engine thread opens and closes transfers. What both
// touch is the table of transfers, under a mutex, which nobody holds while bytes are checked, moved or sent.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/ids.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "decode/frame_numbers.h"
#include "decode/metrics.h"
#include "decode/staging.h"
#include "decode/transfer.h"
#include "model/handoff.h"
#include "model/kv_body.h"
#include "model/kv_frame.h"
#include "model/kv_pool.h"
#include "transport/transport.h"

namespace sluice::decode {

// Something verified has come since TakeProgress was called last.
struct TransferProgress {};
// Every frame and the commit are there.
struct TransferComplete {
  TransferKey key;
  proto::HandoffRecord record;
};
// It cannot become whole any more; the sender has been told.
struct TransferLost {
  TransferKey key;
  Status why;
};
// Nothing writes any more into the pages of a transfer that was closed before.
struct PagesQuiet {
  TransferKey key;
};
using ReceiverEvent = std::variant<TransferProgress, TransferComplete, TransferLost, PagesQuiet>;

// What the engine thread expects of one tenure of a reservation.
struct ExpectedTransfer {
  TransferKey key;
  HandoffExpectation handoff;
  std::vector<PageIndex> pages;  // of the prompt, from its first token on
};

struct KvReceiverOptions {
  proto::Hello hello;  // ours
  int connections_max = 0;
  uint64_t credit_bytes = 0;  // KV payload of one connection that may be on its way at once
};

class KvReceiver final : public Receiver {
 public:
  // `post` is called on the transport's thread and does not block. All arguments outlive this.
  KvReceiver(KvReceiverOptions options, KvPool* pool, Staging* staging, DecodeMetrics* metrics,
             std::function<void(ReceiverEvent)> post);

  // --- the engine thread ---

  // Answers go through `transport`; connections are refused before this.
  void Start(Transport* transport);
  // Frames of this tenure may come. REQUIRES: no transfer of the reservation is open.
  void Open(ExpectedTransfer transfer);
  // Which transfers something has come for.
  std::vector<TransferKey> TakeProgress();
  // OK: decode goes on from the complete transfer. Else it has failed, and what still comes of it is dropped. Tells the
  // sender, if one has shown itself and has not been told of a failure before.
  void Conclude(ReservationId reservation, const Status& result);
  // Nothing of this reservation may come any more; Conclude with `why`, unless that was called before. True where
  // nothing writes into its pages; else PagesQuiet follows. Idempotent.
  bool Close(ReservationId reservation, const Status& why);
  // Ends the connection that still writes into the pages of a closed transfer, so that PagesQuiet comes.
  void Disconnect(TransferKey closed);

  // --- the transport's thread ---
  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) override;
  StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) override;
  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override;
  void OnClosed(ConnectionId connection, const Status& why) override;

 private:
  // What a connection's sender has on its way, as far as this side knows. Every byte of a KV payload is taken when its
  // frame is offered, and given back once; the frame's number tells whether the transport has offered it before.
  struct Connection {
    FrameNumbers frames;
    uint64_t taken = 0;
    uint64_t owed = 0;   // of those, dealt with and not yet given back: a frame tells of many
    uint64_t given = 0;  // since the start
    int landing = 0;     // frames
  };
  struct OpenTransfer {
    ExpectedTransfer expected;
    Transfer transfer;
    std::optional<ConnectionId> sender;  // whoever sent its first frame
    std::optional<proto::HandoffRecord> record;
    bool concluded = false;  // a sender that there is has been told how it ended
    int writers = 0;         // frames that are on their way into its pages
  };
  struct ClosedTransfer {
    ConnectionId sender;
    int writers = 0;
  };
  // What is to be done with a frame that is offered.
  struct Admission {
    prometheus::Counter* drop = nullptr;  // counts it, and it is forgotten; null where it may land
    bool stale = false;                   // its sender does not know that the transfer is over
    bool damaged = false;                 // it is to be asked for again
    Status lost;                          // not OK: so is the transfer
    std::vector<PageIndex> pages;         // where a KV frame belongs: those that its tokens touch
  };
  struct PendingLanding {
    ConnectionId connection;
    std::string header_bytes;
    KvFrameHeader header;
    std::vector<PageIndex> pages;  // of a KV frame
    std::vector<absl::Span<std::byte>> memory;
    bool in_pages = false;           // `memory` is in `pages`
    Staging::Lease staging;          // else, of a KV frame
    std::vector<std::byte> control;  // of another frame
    std::array<std::byte, kBodyAlignment> gap = {};
    TransferKey key() const { return {header.reservation, header.generation}; }
  };

  Admission Admit(ConnectionId connection, const KvFrameHeader& header, size_t payload_bytes);
  Admission AdmitKv(OpenTransfer& transfer, const KvFrameHeader& header, size_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Check(const KvFrameHeader& header, const ExpectedTransfer& expected) const;
  // Chooses where it lands.
  void ChooseMemory(PendingLanding& landing, size_t payload_bytes);
  // InvalidArgument where the sender had not that much left.
  Status TakeCredit(Connection& connection, uint64_t bytes);
  // A frame of that many bytes was placed, dropped or lost.
  void GiveCredit(ConnectionId connection, uint64_t bytes);

  void Take(const PendingLanding& landing, const Status& status);
  void OnKvLanded(const PendingLanding& landing);
  void OnCommitLanded(const PendingLanding& landing);
  void OnAbortLanded(const PendingLanding& landing);
  // From a wire codec that is not the pool's.
  Status Recode(const PendingLanding& landing);
  // Bytes begin and cease to be written into pages. False where the transfer is over: they are not to be written.
  bool BeginWriting(TransferKey key);
  void EndWriting(TransferKey key);
  void OnPlaced(const PendingLanding& landing);
  void OnDamaged(const PendingLanding& landing, const Status& how);
  void AskAgain(ConnectionId sender, const KvFrameHeader& frame);

  // Where it can still become whole; else null.
  OpenTransfer* Find(TransferKey key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a step of an open transfer: what the engine thread is to hear, if anything.
  std::optional<ReceiverEvent> Advanced(OpenTransfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(TransferKey key, const Status& why);
  // `about` names the transfer, and for kResend the range.
  void SendFrame(FrameKind kind, ConnectionId connection, const KvFrameHeader& about, std::string payload);
  void SendResult(ConnectionId connection, const KvFrameHeader& about, const Status& result);

  const KvReceiverOptions options_;
  const Epoch epoch_;
  const uint64_t layout_hash_;
  KvPool* const pool_;
  Staging* const staging_;
  DecodeMetrics* const metrics_;
  const std::function<void(ReceiverEvent)> post_;

  absl::Mutex mutex_;
  Transport* transport_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unordered_map<ReservationId, OpenTransfer> open_ ABSL_GUARDED_BY(mutex_);
  std::map<TransferKey, ClosedTransfer> closed_ ABSL_GUARDED_BY(mutex_);  // and still written into
  std::set<TransferKey> progressed_ ABSL_GUARDED_BY(mutex_);

  // Of the transport's thread alone.
  uint64_t landings_begun_ = 0;
  std::unordered_map<uint64_t, PendingLanding> landings_;
  std::map<ConnectionId, Connection> connections_;
};

}  // namespace sluice::decode
