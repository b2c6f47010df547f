#include "decode/kv_receiver.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"

namespace sluice::decode {

namespace {

std::string_view Text(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A frame's range, counted from the first slot of the first page that it touches.
KvRange RangeInItsPages(const KvFrameHeader& header, int page_tokens) {
  KvRange range = RangeOf(header);
  range.first_token %= page_tokens;
  return range;
}

// What a result or a request to send again says of the transfer that it is about.
KvFrameHeader About(const ExpectedTransfer& transfer) {
  return {
      .request = transfer.handoff.request, .reservation = transfer.key.reservation, .generation = transfer.key.tenure};
}

}  // namespace

KvReceiver::KvReceiver(KvReceiverOptions options, KvPool* pool, Staging* staging, DecodeMetrics* metrics,
                       std::function<void(ReceiverEvent)> post)
    : options_(std::move(options)),
      epoch_{options_.hello.epoch()},
      layout_hash_(LayoutHash(options_.hello.layout())),
      pool_(pool),
      staging_(staging),
      metrics_(metrics),
      post_(std::move(post)) {}

// --- the engine thread ---

void KvReceiver::Start(Transport* transport) {
  absl::MutexLock lock(&mutex_);
  transport_ = transport;
}

void KvReceiver::Open(ExpectedTransfer expected) {
  const ReservationId id = expected.key.reservation;
  Transfer transfer(pool_->options().layout.layers, expected.handoff.kv_from_token, expected.handoff.kv_tokens);
  absl::MutexLock lock(&mutex_);
  const bool inserted =
      open_.try_emplace(id, OpenTransfer{.expected = std::move(expected), .transfer = std::move(transfer)}).second;
  SLUICE_CHECK(inserted, "a transfer of this reservation is open");
}

std::vector<TransferKey> KvReceiver::TakeProgress() {
  absl::MutexLock lock(&mutex_);
  const std::set<TransferKey> progressed = std::exchange(progressed_, {});
  return {progressed.begin(), progressed.end()};
}

void KvReceiver::Conclude(ReservationId reservation, const Status& result) {
  KvFrameHeader about;
  ConnectionId sender;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(reservation);
    if (it == open_.end()) return;
    OpenTransfer& transfer = it->second;
    transfer.transfer.Fail();
    if (std::exchange(transfer.concluded, true) || !transfer.sender) return;
    about = About(transfer.expected);
    sender = *transfer.sender;
  }
  SendResult(sender, about, result);
}

bool KvReceiver::Close(ReservationId reservation, const Status& why) {
  Conclude(reservation, why);
  absl::MutexLock lock(&mutex_);
  const auto node = open_.extract(reservation);
  if (node.empty()) return true;
  const OpenTransfer& transfer = node.mapped();
  progressed_.erase(transfer.expected.key);
  if (transfer.writers == 0) return true;
  closed_[transfer.expected.key] = {.sender = *transfer.sender, .writers = transfer.writers};
  return false;
}

void KvReceiver::Disconnect(TransferKey closed) {
  ConnectionId sender;
  Transport* transport = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = closed_.find(closed);
    if (it == closed_.end()) return;  // PagesQuiet is on its way
    sender = it->second.sender;
    transport = transport_;
  }
  transport->Close(sender);
}

// --- the transport's thread ---

StatusOr<std::string> KvReceiver::OnHello(ConnectionId connection, std::string_view hello) {
  {
    absl::MutexLock lock(&mutex_);
    if (transport_ == nullptr) return absl::UnavailableError("decode is starting");
  }
  const auto theirs = ParseHello(hello);
  Status fits = theirs.ok() ? CompareHello(options_.hello, *theirs) : theirs.status();
  if (fits.ok() && static_cast<int>(connections_.size()) >= options_.connections_max) {
    fits = absl::ResourceExhaustedError(absl::StrCat(
        "decode has ", connections_.size(), " prefill processes connected, at most ", options_.connections_max));
  }
  if (!fits.ok()) {
    metrics_->hellos_refused.Increment();
    spdlog::warn("connection refused: {}", std::string(fits.message()));
    return fits;
  }
  connections_[connection] = {};
  proto::Hello reply = options_.hello;
  reply.set_credit_bytes(options_.credit_bytes);
  return reply.SerializeAsString();
}

// Life of a request, step 7: decode says where each frame lands, which is in its pages where the wire codec is theirs,
// and checks what came before it counts.
StatusOr<Landing> KvReceiver::OnMessage(ConnectionId connection, std::string_view header_bytes, size_t payload_bytes) {
  // An error ends the connection. So nothing of a damaged header is believed, and what it has taken of the credit goes
  // with the connection's account.
  const StatusOr<KvFrameHeader> decoded = DecodeKvFrameHeader(header_bytes);
  if (absl::IsDataLoss(decoded.status())) metrics_->crc_failures.Increment();
  SLUICE_RETURN_IF_ERROR(decoded.status());
  const KvFrameHeader& header = *decoded;
  const bool is_kv = header.kind == FrameKind::kKv;
  if (is_kv) {
    Connection& from = connections_.at(connection);
    SLUICE_ASSIGN_OR_RETURN(const bool is_new, from.frames.Note(header.number));
    if (!is_new) {
      metrics_->dropped_duplicate.Increment();
      return Landing{.drop = true};
    }
    SLUICE_RETURN_IF_ERROR(TakeCredit(from, header.payload_bytes));
  }
  Admission admission = Admit(connection, header, payload_bytes);
  if (admission.drop != nullptr) {
    admission.drop->Increment();
    if (is_kv) GiveCredit(connection, header.payload_bytes);
    if (!admission.lost.ok()) Lose({header.reservation, header.generation}, admission.lost);
    if (admission.damaged) AskAgain(connection, header);
    // Whoever still sends for a transfer that is over learns it from this, even if the end came before its first frame.
    if (admission.stale && (is_kv || header.kind == FrameKind::kCommit))
      SendResult(connection, header, absl::AbortedError("the reservation expired, ended or was given to another"));
    return Landing{.drop = true};
  }
  const uint64_t token = ++landings_begun_;
  PendingLanding& landing = landings_[token];  // stays where it is: `memory` may point into it
  landing.header_bytes = std::string(header_bytes);
  landing.header = header;
  landing.pages = std::move(admission.pages);
  landing.in_pages = is_kv && header.codec == pool_->options().codec;
  ChooseMemory(landing, payload_bytes);
  if (is_kv) ++connections_.at(connection).landing;
  return Landing{.memory = landing.memory, .token = token};
}

void KvReceiver::OnLanded(ConnectionId connection, uint64_t token, const Status& status) {
  const auto node = landings_.extract(token);
  SLUICE_CHECK(!node.empty(), "a landing that was never begun");
  Take(node.mapped(), status);
  if (node.mapped().header.kind != FrameKind::kKv) return;
  --connections_.at(connection).landing;
  GiveCredit(connection, node.mapped().header.payload_bytes);
}

void KvReceiver::Take(const PendingLanding& landing, const Status& status) {
  const Status intact = status.ok() ? VerifyCrc(landing.header_bytes, landing.memory) : status;
  if (landing.in_pages) EndWriting(landing.key());
  if (!status.ok()) return Lose(landing.key(), status);
  const FrameKind kind = landing.header.kind;
  if (!intact.ok()) {
    metrics_->crc_failures.Increment();
    return kind == FrameKind::kKv ? OnDamaged(landing, intact) : Lose(landing.key(), intact);
  }
  if (kind == FrameKind::kKv)
    OnKvLanded(landing);
  else if (kind == FrameKind::kCommit)
    OnCommitLanded(landing);
  else
    OnAbortLanded(landing);
  // Last: a frame that is counted has had its effect, and the engine thread has been told of it.
  metrics_->frames_received.Increment();
}

void KvReceiver::OnClosed(ConnectionId connection, const Status& why) {
  connections_.erase(connection);
  std::vector<TransferKey> lost;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, transfer] : open_) {
      if (transfer.sender == connection) lost.push_back(transfer.expected.key);
    }
  }
  for (const TransferKey key : lost)
    Lose(key, absl::UnavailableError(absl::StrCat("the connection to prefill ended: ", why.message())));
}

// --- credit ---

Status KvReceiver::TakeCredit(Connection& connection, uint64_t bytes) {
  if (bytes > options_.credit_bytes - connection.taken) {
    return absl::InvalidArgumentError(absl::StrCat("a KV frame of ", bytes, " bytes, while ", connection.taken, " of ",
                                                   options_.credit_bytes, " bytes of credit are taken"));
  }
  connection.taken += bytes;
  return absl::OkStatus();
}

// A quarter at a time; what is owed when nothing more is landing could be what the sender waits for.
void KvReceiver::GiveCredit(ConnectionId connection, uint64_t bytes) {
  Connection& to = connections_.at(connection);
  to.owed += bytes;
  if (to.landing > 0 && to.owed < options_.credit_bytes / 4) return;
  to.taken -= to.owed;
  to.given += std::exchange(to.owed, 0);
  SendFrame(FrameKind::kCredit, connection, {}, EncodeCredit(to.given));
}

// --- admission ---

KvReceiver::Admission KvReceiver::Admit(ConnectionId connection, const KvFrameHeader& header, size_t payload_bytes) {
  // Only within an epoch do ids of requests and reservations mean anything.
  if (header.epoch != epoch_) return {.drop = &metrics_->dropped_other_epoch, .stale = true};
  absl::MutexLock lock(&mutex_);
  const auto it = open_.find(header.reservation);
  if (it == open_.end() || it->second.expected.handoff.request != header.request)
    return {.drop = &metrics_->dropped_unknown, .stale = true};
  OpenTransfer& transfer = it->second;
  if (transfer.expected.key.tenure != header.generation)
    return {.drop = &metrics_->dropped_old_generation, .stale = true};
  if (transfer.transfer.state() == TransferState::kComplete) return {.drop = &metrics_->dropped_duplicate};
  if (transfer.transfer.state() == TransferState::kFailed) return {.drop = &metrics_->dropped_failed_transfer};
  if (transfer.sender && *transfer.sender != connection)
    return {.drop = &metrics_->dropped_other_connection, .stale = true};
  transfer.sender = connection;
  if (Status fits = Check(header, transfer.expected); !fits.ok())
    return {.drop = &metrics_->dropped_wrong, .lost = std::move(fits)};
  if (header.kind == FrameKind::kKv) return AdmitKv(transfer, header, payload_bytes);
  if (header.payload_bytes != payload_bytes)
    return {.drop = &metrics_->dropped_damaged,
            .lost = absl::DataLossError(absl::StrCat("a frame of kind ", static_cast<int>(header.kind), " came with ",
                                                     payload_bytes, " bytes, its header says ", header.payload_bytes))};
  if (header.kind == FrameKind::kCommit && !transfer.transfer.AdmitCommit())
    return {.drop = &metrics_->dropped_duplicate};
  return {};
}

KvReceiver::Admission KvReceiver::AdmitKv(OpenTransfer& transfer, const KvFrameHeader& header, size_t payload_bytes) {
  const bool whole = header.payload_bytes == payload_bytes;
  const StatusOr<bool> wanted =
      whole ? transfer.transfer.Admit(RangeOf(header)) : transfer.transfer.OnUnusable(RangeOf(header));
  if (!wanted.ok()) return {.drop = &metrics_->dropped_wrong, .lost = wanted.status()};
  if (!*wanted) return {.drop = &metrics_->dropped_duplicate};
  if (!whole) return {.drop = &metrics_->dropped_damaged, .damaged = true};
  if (header.codec == pool_->options().codec) ++transfer.writers;
  const int64_t page_tokens = pool_->options().page_tokens;
  const std::vector<PageIndex>& pages = transfer.expected.pages;
  const int64_t last_token = int64_t{header.first_token} + header.tokens - 1;
  return {.pages = {pages.begin() + header.first_token / page_tokens, pages.begin() + last_token / page_tokens + 1}};
}

Status KvReceiver::Check(const KvFrameHeader& header, const ExpectedTransfer& expected) const {
  if (header.layout_hash != layout_hash_) {
    return absl::FailedPreconditionError(
        absl::StrCat("frame: layout hash ", absl::Hex(header.layout_hash), ", expected ", absl::Hex(layout_hash_)));
  }
  size_t payload_bytes_max = 0;
  switch (header.kind) {
    case FrameKind::kKv: {
      const auto& taken = options_.hello.wire_codecs();
      if (std::find(taken.begin(), taken.end(), Name(header.codec)) == taken.end()) {
        return absl::InvalidArgumentError(absl::StrCat("KV frame: wire codec ", std::string(Name(header.codec)),
                                                       ", taken here: ", absl::StrJoin(taken, ", ")));
      }
      return CheckKvHeader(header, pool_->options().layout, layout_hash_, expected.handoff.kv_from_token,
                           expected.handoff.kv_tokens);
    }
    case FrameKind::kCommit:
      payload_bytes_max = HandoffRecordBytesMax(expected.handoff);
      break;
    case FrameKind::kAbort:
      payload_bytes_max = kTransferResultBytesMax;
      break;
    case FrameKind::kResult:
    case FrameKind::kResend:
    case FrameKind::kCredit:
      return absl::InvalidArgumentError(
          absl::StrCat("a frame of kind ", static_cast<int>(header.kind), ", which only decode sends"));
  }
  if (header.payload_bytes <= payload_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a frame of kind ", static_cast<int>(header.kind), " with ",
                                                 header.payload_bytes, " bytes, at most ", payload_bytes_max));
}

void KvReceiver::ChooseMemory(PendingLanding& landing, size_t payload_bytes) {
  if (landing.header.kind != FrameKind::kKv) {
    landing.control.resize(payload_bytes);
    landing.memory = {absl::MakeSpan(landing.control)};
  } else if (landing.in_pages) {
    const KvRange range = RangeInItsPages(landing.header, pool_->options().page_tokens);
    auto pieces = BodyPieces(*pool_, landing.pages, range, payload_bytes, absl::MakeSpan(landing.gap));
    SLUICE_CHECK(pieces.ok(), "the frame was admitted: ", pieces.status().ToString());
    landing.memory = *std::move(pieces);
  } else {
    landing.staging = staging_->Take(payload_bytes);
    landing.memory = {landing.staging.bytes()};
  }
}

// --- what has landed ---

void KvReceiver::OnKvLanded(const PendingLanding& landing) {
  metrics_->kv_bytes_received.Increment(static_cast<double>(landing.header.payload_bytes));
  if (!landing.in_pages) {
    if (!BeginWriting(landing.key())) return;
    const Status recoded = Recode(landing);
    EndWriting(landing.key());
    if (!recoded.ok()) return Lose(landing.key(), recoded);
  }
  OnPlaced(landing);
}

Status KvReceiver::Recode(const PendingLanding& landing) {
  const KvFrameHeader& header = landing.header;
  const KvPoolOptions& pool = pool_->options();
  SLUICE_ASSIGN_OR_RETURN(const KvCodecCounts counts,
                          DecodeBody(*pool_, landing.pages, RangeInItsPages(header, pool.page_tokens), header.codec,
                                     landing.staging.bytes()));
  metrics_->kv_bytes_recoded.Increment(static_cast<double>(header.payload_bytes));
  metrics_->kv_values_saturated.Increment(static_cast<double>(counts.saturated));
  metrics_->kv_rows_nonfinite.Increment(static_cast<double>(counts.nonfinite_rows));
  if (counts.nonfinite_rows == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("layer ", header.layer, ": ", counts.nonfinite_rows,
                                          " KV rows are no numbers", " in ", std::string(Name(pool.codec)),
                                          ", they came in ", std::string(Name(header.codec))));
}

void KvReceiver::OnCommitLanded(const PendingLanding& landing) {
  HandoffExpectation expected;
  {
    absl::MutexLock lock(&mutex_);
    const OpenTransfer* transfer = Find(landing.key());
    if (transfer == nullptr) return;
    expected = transfer->expected.handoff;
  }
  StatusOr<proto::HandoffRecord> record = ParseHandoffRecord(Text(landing.control), expected);
  if (!record.ok()) return Lose(landing.key(), record.status());
  Status fits;
  std::optional<ReceiverEvent> event;
  {
    absl::MutexLock lock(&mutex_);
    OpenTransfer* transfer = Find(landing.key());
    if (transfer == nullptr) return;
    fits = transfer->transfer.OnCommit(record->kv_tokens());
    if (fits.ok()) {
      transfer->record = *std::move(record);
      event = Advanced(*transfer);
    }
  }
  if (!fits.ok()) return Lose(landing.key(), fits);
  if (event) post_(*std::move(event));
}

void KvReceiver::OnAbortLanded(const PendingLanding& landing) {
  const auto result = ParseTransferResult(Text(landing.control));
  Status why = result.ok() ? ToStatus(*result) : absl::OkStatus();
  if (why.ok()) why = absl::CancelledError("without a reason");
  Lose(landing.key(), WithContext(why, "prefill gave up"));
}

bool KvReceiver::BeginWriting(TransferKey key) {
  absl::MutexLock lock(&mutex_);
  OpenTransfer* transfer = Find(key);
  if (transfer != nullptr) ++transfer->writers;
  return transfer != nullptr;
}

void KvReceiver::EndWriting(TransferKey key) {
  {
    absl::MutexLock lock(&mutex_);
    const auto closed = closed_.find(key);
    if (closed == closed_.end()) {
      --open_.at(key.reservation).writers;
      return;
    }
    if (--closed->second.writers > 0) return;
    closed_.erase(closed);
  }
  post_(PagesQuiet{key});
}

void KvReceiver::OnPlaced(const PendingLanding& landing) {
  std::optional<ReceiverEvent> event;
  {
    absl::MutexLock lock(&mutex_);
    OpenTransfer* transfer = Find(landing.key());
    if (transfer == nullptr) return;
    transfer->transfer.OnPlaced(RangeOf(landing.header));
    event = Advanced(*transfer);
  }
  if (event) post_(*std::move(event));
}

void KvReceiver::OnDamaged(const PendingLanding& landing, const Status& how) {
  Status again;
  ConnectionId sender;
  {
    absl::MutexLock lock(&mutex_);
    OpenTransfer* transfer = Find(landing.key());
    if (transfer == nullptr) return;
    again = transfer->transfer.OnDamaged(RangeOf(landing.header));
    sender = *transfer->sender;
  }
  if (!again.ok()) return Lose(landing.key(), WithContext(again, std::string(how.message())));
  AskAgain(sender, landing.header);
}

void KvReceiver::AskAgain(ConnectionId sender, const KvFrameHeader& frame) {
  metrics_->resends_asked.Increment();
  SendFrame(FrameKind::kResend, sender, frame, "");
}

// --- ends ---

KvReceiver::OpenTransfer* KvReceiver::Find(TransferKey key) {
  const auto it = open_.find(key.reservation);
  if (it == open_.end() || it->second.expected.key != key || !it->second.transfer.open()) return nullptr;
  return &it->second;
}

std::optional<ReceiverEvent> KvReceiver::Advanced(OpenTransfer& transfer) {
  if (transfer.transfer.state() == TransferState::kComplete)
    return TransferComplete{transfer.expected.key, *std::exchange(transfer.record, std::nullopt)};
  const bool told = !progressed_.empty();  // and has yet to ask
  progressed_.insert(transfer.expected.key);
  if (told) return std::nullopt;
  return TransferProgress{};
}

void KvReceiver::Lose(TransferKey key, const Status& why) {
  std::optional<ConnectionId> sender;
  KvFrameHeader about;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(key.reservation);
    if (it == open_.end() || it->second.expected.key != key) return;
    OpenTransfer& transfer = it->second;
    if (transfer.concluded || transfer.transfer.state() == TransferState::kComplete) return;
    transfer.transfer.Fail();
    transfer.concluded = true;
    sender = transfer.sender;
    about = About(transfer.expected);
  }
  if (sender) SendResult(*sender, about, why);
  post_(TransferLost{key, why});
}

void KvReceiver::SendResult(ConnectionId connection, const KvFrameHeader& about, const Status& result) {
  SendFrame(FrameKind::kResult, connection, about,
            MakeTransferResult(about.request, about.reservation, about.generation, result).SerializeAsString());
}

void KvReceiver::SendFrame(FrameKind kind, ConnectionId connection, const KvFrameHeader& about, std::string text) {
  Transport* transport = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    transport = transport_;
  }
  // The completion is the second owner: the bytes stay in place until the transport is quiet.
  const auto payload = std::make_shared<const std::string>(std::move(text));
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload->data()), payload->size());
  KvFrameHeader header = about;
  header.kind = kind;
  header.payload_bytes = bytes.size();
  header.number = 0;
  header.epoch = epoch_;
  header.layout_hash = layout_hash_;
  if (kind != FrameKind::kResend) header.layer = header.layers = 0, header.first_token = header.tokens = 0;
  // What cannot be sent has no one left to read it: the connection is gone, and with it the transfer.
  transport->Send(connection, Encode(header, bytes), bytes, [payload](const Status&) {});
}

}  // namespace sluice::decode
