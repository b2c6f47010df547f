// Decode's end of the KV wire: says which frames may land and where, checks what landed, and passes it to the engine
// thread. Joins transport and model; knows nothing of sequences. Frames land in staging memory and never in pages, so
// pages may be freed at any time, and remote bytes are in nobody's cache before they are checked.
//
// Threads: the transport's thread makes the Receiver calls, the engine thread opens and closes transfers. What both
// touch is the table of open transfers, under a mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/ids.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "decode/metrics.h"
#include "decode/staging.h"
#include "model/kv_frame.h"
#include "model/kv_layout.h"
#include "transport/transport.h"

namespace sluice::decode {

// A verified frame, KV or commit, of a transfer that was open when it came.
struct Arrival {
  KvFrameHeader header;
  Staging::Lease body;
};
// A transfer that cannot become whole any more.
struct TransferLost {
  ReservationId reservation;
  Tenure tenure;
  Status why;
};
using ReceiverEvent = std::variant<Arrival, TransferLost>;

// What the engine thread expects of one tenure of a reservation.
struct ExpectedTransfer {
  RequestId request;
  ReservationId reservation;
  Tenure tenure;
  int64_t prompt_tokens = 0;
  size_t record_bytes_max = 0;
};

struct KvReceiverOptions {
  proto::Hello hello;  // ours
  KvLayout layout;
};

class KvReceiver final : public Receiver {
 public:
  // `post` is called on the transport's thread and does not block. All arguments outlive this.
  KvReceiver(KvReceiverOptions options, Staging* staging, DecodeMetrics* metrics,
             std::function<void(ReceiverEvent)> post);

  // --- the engine thread ---

  // Answers go through `transport`; connections are refused before this.
  void Start(Transport* transport);
  // Frames of this tenure may come; a former tenure of the reservation is over.
  void Open(const ExpectedTransfer& transfer);
  // The transfer has failed: tells the sender why, if one has shown itself, and drops what still comes of this tenure.
  void Fail(ReservationId reservation, const Status& why);
  // Nothing of this reservation may come any more; tells the sender `result`, unless he was told of a failure before.
  // Idempotent.
  void Finish(ReservationId reservation, const Status& result);

  // --- the transport's thread ---
  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) override;
  StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) override;
  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override;
  void OnClosed(ConnectionId connection, const Status& why) override;

 private:
  struct OpenTransfer {
    ExpectedTransfer expected;
    std::optional<ConnectionId> sender;  // whoever sent its first frame
    bool lost = false;                   // the engine thread has been told, or told us
    bool told = false;                   // the sender has been told
  };
  struct PendingLanding {
    std::string header_bytes;
    KvFrameHeader header;
    Staging::Lease body;
  };

  // Which counter a frame that must be dropped adds to; null where it may land. Sets the sender at the first frame.
  prometheus::Counter* Admit(ConnectionId connection, const KvFrameHeader& header, ExpectedTransfer* expected);
  Status Check(const KvFrameHeader& header, const ExpectedTransfer& expected) const;
  StatusOr<Landing> Drop(prometheus::Counter& reason);
  void Lose(ReservationId reservation, Tenure tenure, Status why);
  void Tell(const OpenTransfer& transfer, const Status& result);
  void SendResult(ConnectionId connection, const KvFrameHeader& about, const Status& result);

  const KvReceiverOptions options_;
  const Epoch epoch_;
  const uint64_t layout_hash_;
  Staging* const staging_;
  DecodeMetrics* const metrics_;
  const std::function<void(ReceiverEvent)> post_;

  absl::Mutex mutex_;
  Transport* transport_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unordered_map<ReservationId, OpenTransfer> open_ ABSL_GUARDED_BY(mutex_);

  // Of the transport's thread alone.
  uint64_t landings_begun_ = 0;
  std::unordered_map<uint64_t, PendingLanding> landings_;
};

}  // namespace sluice::decode
