#include "decode/kv_receiver.h"

#include <memory>
#include <utility>
#include <vector>

#include "model/handoff.h"
#include "model/kv_body.h"
#include "spdlog/spdlog.h"

namespace sluice::decode {

KvReceiver::KvReceiver(KvReceiverOptions options, Staging* staging, DecodeMetrics* metrics,
                       std::function<void(ReceiverEvent)> post)
    : options_(std::move(options)),
      epoch_{options_.hello.epoch()},
      layout_hash_(LayoutHash(options_.hello.layout())),
      staging_(staging),
      metrics_(metrics),
      post_(std::move(post)) {}

void KvReceiver::Start(Transport* transport) {
  absl::MutexLock lock(&mutex_);
  transport_ = transport;
}

void KvReceiver::Open(const ExpectedTransfer& transfer) {
  absl::MutexLock lock(&mutex_);
  open_[transfer.reservation] = OpenTransfer{.expected = transfer};
}

void KvReceiver::Fail(ReservationId reservation, const Status& why) {
  OpenTransfer transfer;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(reservation);
    if (it == open_.end() || it->second.told) return;
    it->second.lost = true;
    it->second.told = it->second.sender.has_value();
    transfer = it->second;
  }
  Tell(transfer, why);
}

void KvReceiver::Finish(ReservationId reservation, const Status& result) {
  OpenTransfer transfer;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(reservation);
    if (it == open_.end()) return;
    transfer = std::move(it->second);
    open_.erase(it);
  }
  if (!transfer.told) Tell(transfer, result);
}

void KvReceiver::Tell(const OpenTransfer& transfer, const Status& result) {
  if (!transfer.sender) return;
  KvFrameHeader about;
  about.request = transfer.expected.request;
  about.reservation = transfer.expected.reservation;
  about.generation = transfer.expected.tenure;
  SendResult(*transfer.sender, about, result);
}

StatusOr<std::string> KvReceiver::OnHello(ConnectionId, std::string_view hello) {
  {
    absl::MutexLock lock(&mutex_);
    if (transport_ == nullptr) return absl::UnavailableError("decode is starting");
  }
  const auto theirs = ParseHello(hello);
  const Status fits = theirs.ok() ? CompareHello(options_.hello, *theirs) : theirs.status();
  if (!fits.ok()) {
    metrics_->hellos_refused.Increment();
    spdlog::warn("connection refused: {}", std::string(fits.message()));
    return fits;
  }
  return options_.hello.SerializeAsString();
}

// Life of a request, step 7: decode says where each frame lands, checks it, and passes it on to be placed.
StatusOr<Landing> KvReceiver::OnMessage(ConnectionId connection, std::string_view header_bytes, size_t payload_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const KvFrameHeader header, DecodeKvFrameHeader(header_bytes));
  if (header.payload_bytes != payload_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame: the header names a payload of ", header.payload_bytes,
                                                   " bytes, ", payload_bytes, " came"));
  }
  ExpectedTransfer expected;
  if (prometheus::Counter* reason = Admit(connection, header, &expected)) {
    // Whoever still sends for a transfer that is over learns it from this, even if the end came before its first frame.
    // (Of a failed one it has been told.)
    const bool awaits_result = header.kind == FrameKind::kKv || header.kind == FrameKind::kCommit;
    if (awaits_result && reason != &metrics_->dropped_failed_transfer) {
      SendResult(connection, header, absl::AbortedError("the reservation expired, ended or was given to another"));
    }
    return Drop(*reason);
  }
  if (Status fits = Check(header, expected); !fits.ok()) {
    Lose(header.reservation, header.generation, std::move(fits));
    return Drop(metrics_->dropped_wrong);
  }
  std::optional<Staging::Lease> body = staging_->Take(payload_bytes);
  if (!body) {
    Lose(header.reservation, header.generation,
         absl::ResourceExhaustedError(absl::StrCat("no staging memory for ", payload_bytes, " bytes: ",
                                                   staging_->bytes_free(), " of ", staging_->bytes_total(), " free")));
    return Drop(metrics_->dropped_no_staging);
  }
  Landing landing{.memory = {body->bytes()}, .token = ++landings_begun_};
  landings_.emplace(landing.token, PendingLanding{std::string(header_bytes), header, *std::move(body)});
  return landing;
}

void KvReceiver::OnLanded(ConnectionId, uint64_t token, const Status& status) {
  auto node = landings_.extract(token);
  SLUICE_CHECK(!node.empty(), "a landing that was never begun");
  PendingLanding& landing = node.mapped();
  const KvFrameHeader& header = landing.header;
  if (!status.ok()) return Lose(header.reservation, header.generation, status);
  if (Status crc = VerifyCrc(landing.header_bytes, landing.body.bytes()); !crc.ok()) {
    metrics_->crc_failures.Increment();
    return Lose(header.reservation, header.generation, std::move(crc));
  }
  metrics_->frames_received.Increment();
  if (header.kind == FrameKind::kAbort) {
    const auto bytes = landing.body.bytes();
    const auto result = ParseTransferResult({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    Status why = result.ok() ? ToStatus(*result) : absl::OkStatus();
    if (why.ok()) why = absl::CancelledError("without a reason");
    return Lose(header.reservation, header.generation, WithContext(why, "prefill gave up"));
  }
  if (header.kind == FrameKind::kKv) metrics_->kv_bytes_received.Increment(static_cast<double>(header.payload_bytes));
  post_(Arrival{header, std::move(landing.body)});
}

void KvReceiver::OnClosed(ConnectionId connection, const Status& why) {
  std::vector<std::pair<ReservationId, Tenure>> lost;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, transfer] : open_) {
      if (transfer.sender == connection) lost.emplace_back(id, transfer.expected.tenure);
    }
  }
  for (const auto& [id, tenure] : lost) {
    Lose(id, tenure, absl::UnavailableError(absl::StrCat("the connection to prefill ended: ", why.message())));
  }
}

prometheus::Counter* KvReceiver::Admit(ConnectionId connection, const KvFrameHeader& header,
                                       ExpectedTransfer* expected) {
  if (header.epoch != epoch_) return &metrics_->dropped_other_epoch;
  absl::MutexLock lock(&mutex_);
  const auto it = open_.find(header.reservation);
  if (it == open_.end() || it->second.expected.request != header.request) return &metrics_->dropped_unknown;
  OpenTransfer& transfer = it->second;
  if (transfer.expected.tenure != header.generation) return &metrics_->dropped_old_generation;
  if (transfer.lost) return &metrics_->dropped_failed_transfer;
  if (transfer.sender && *transfer.sender != connection) return &metrics_->dropped_other_connection;
  transfer.sender = connection;
  *expected = transfer.expected;
  return nullptr;
}

Status KvReceiver::Check(const KvFrameHeader& header, const ExpectedTransfer& expected) const {
  switch (header.kind) {
    case FrameKind::kKv:
      return CheckKvHeader(header, options_.layout, layout_hash_, /*first_token=*/0, expected.prompt_tokens);
    case FrameKind::kCommit:
      if (header.layout_hash != layout_hash_) {
        return absl::FailedPreconditionError(absl::StrCat("commit: layout hash ", absl::Hex(header.layout_hash),
                                                          ", expected ", absl::Hex(layout_hash_)));
      }
      if (header.payload_bytes <= expected.record_bytes_max) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("commit: a record of ", header.payload_bytes, " bytes, at most ", expected.record_bytes_max));
    case FrameKind::kAbort:
      if (header.payload_bytes <= kTransferResultBytesMax) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("abort: a reason of ", header.payload_bytes, " bytes, at most ", kTransferResultBytesMax));
    case FrameKind::kResult:
    case FrameKind::kResend:
    case FrameKind::kCredit:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a frame of kind ", static_cast<int>(header.kind), ", which only decode sends"));
}

StatusOr<Landing> KvReceiver::Drop(prometheus::Counter& reason) {
  reason.Increment();
  return Landing{.drop = true};
}

void KvReceiver::Lose(ReservationId reservation, Tenure tenure, Status why) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(reservation);
    if (it == open_.end() || it->second.expected.tenure != tenure || it->second.lost) return;
    it->second.lost = true;
  }
  post_(TransferLost{reservation, tenure, std::move(why)});
}

void KvReceiver::SendResult(ConnectionId connection, const KvFrameHeader& about, const Status& result) {
  Transport* transport = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    transport = transport_;
  }
  // The completion is the second owner: the bytes stay in place until the transport is quiet.
  const auto payload = std::make_shared<const std::string>(
      MakeTransferResult(about.request, about.reservation, about.generation, result).SerializeAsString());
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload->data()), payload->size());
  KvFrameHeader header;
  header.kind = FrameKind::kResult;
  header.codec = about.codec;
  header.payload_bytes = bytes.size();
  header.request = about.request;
  header.reservation = about.reservation;
  header.epoch = epoch_;
  header.generation = about.generation;
  header.layout_hash = layout_hash_;
  // A result that cannot be sent has no one left to read it: the connection is gone, and with it the transfer.
  transport->Send(connection, Encode(header, bytes), bytes, [payload](const Status&) {});
}

}  // namespace sluice::decode
