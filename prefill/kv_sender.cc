#include "prefill/kv_sender.h"

#include <algorithm>

#include "model/handoff.h"
#include "model/kv_body.h"
#include "model/kv_frame.h"
#include "spdlog/spdlog.h"

namespace sluice::prefill {

namespace {

// Messages are closures of a few ten bytes whose number the transfers and the sends in flight bound.
constexpr size_t kMailboxMessagesMax = size_t{1} << 20;

std::string PeerName(const std::string& address) { return absl::StrCat("decode at ", address); }

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

StatusOr<std::unique_ptr<KvSender>> KvSender::Create(const KvSenderOptions& options, KvPool* pool, const Clock* clock,
                                                     PrefillMetrics* metrics) {
  const KvPoolOptions& kv = pool->options();
  int64_t frame_tokens = options.chunk_tokens_max;
  while (frame_tokens > 1 && BodyBytes(kv.layout, kv.codec, 1, frame_tokens) > options.frame_bytes_max) --frame_tokens;
  const size_t frame_bytes = BodyBytes(kv.layout, kv.codec, 1, frame_tokens);
  if (frame_bytes > options.frame_bytes_max || frame_bytes > options.send_memory_bytes)
    return absl::InvalidArgumentError(absl::StrCat("a token's KV of one layer has ", frame_bytes,
                                                   " bytes; a frame may have ", options.frame_bytes_max,
                                                   ", the send buffers ", options.send_memory_bytes));
  SLUICE_ASSIGN_OR_RETURN(Buffer memory, Buffer::Create(options.send_memory_bytes, /*touch=*/true));
  return std::unique_ptr<KvSender>(new KvSender(options, pool, clock, metrics, std::move(memory), frame_tokens));
}

KvSender::KvSender(const KvSenderOptions& options, KvPool* pool, const Clock* clock, PrefillMetrics* metrics,
                   Buffer memory, int64_t frame_tokens)
    : options_(options),
      pool_(pool),
      clock_(clock),
      metrics_(metrics),
      layout_hash_(LayoutHash(options.hello.layout())),
      mailbox_(kMailboxMessagesMax),
      memory_(std::move(memory)),
      frame_tokens_(frame_tokens),
      receiver_(
          [this](ConnectionId connection, const StatusOr<proto::TransferResult>& result) {
            Post([this, connection, result] { OnResult(connection, result); });
          },
          [this](ConnectionId connection, const Status& why) {
            Post([this, connection, why] { OnLost(connection, why); });
          }) {
  const KvPoolOptions& kv = pool->options();
  slot_bytes_ = (BodyBytes(kv.layout, kv.codec, 1, frame_tokens) + 63) / 64 * 64;
  slot_bytes_ = std::min(slot_bytes_, memory_.size());
  for (size_t slot = 0; slot < memory_.size() / slot_bytes_; ++slot) free_slots_.push_back(slot);
}

void KvSender::Attach(Transport* transport, Ended ended) {
  transport_ = transport;
  ended_ = std::move(ended);
}

void KvSender::Begin(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline) {
  Post([this, id, ticket = std::move(ticket), pages = std::move(pages), deadline]() mutable {
    DoBegin(id, std::move(ticket), std::move(pages), deadline);
  });
}

void KvSender::Send(TransferId id, const KvRange& range) {
  Post([=, this] { DoSend(id, range); });
}

void KvSender::Commit(TransferId id, proto::HandoffRecord record) {
  Post([this, id, record = std::move(record)] { DoCommit(id, record); });
}

void KvSender::Cancel(TransferId id, Status why) {
  Post([this, id, why = std::move(why)] { Fault(id, why, TellPeer::kYes); });
}

void KvSender::Stop() {
  Post([this] { DoStop(); });
}

void KvSender::Serve() {
  absl::Time wake_at = clock_->Now();
  while (!stopped_) {
    std::vector<Message> messages = mailbox_.TakeAll(wake_at);
    for (Message& message : messages) message();
    wake_at = Poll(clock_->Now());
  }
}

absl::Time KvSender::Poll(absl::Time now) {
  for (Message& message : mailbox_.TakeAll(absl::InfinitePast())) message();
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    const TransferId id = by_deadline_.begin()->second;
    const Transfer& transfer = transfers_.at(id);
    const std::string where = absl::StrCat(PeerName(transfer.peer.first), ", ", std::string(Name(transfer.state)));
    // Past the request's deadline nobody waits any more; but a decode that leaves a commit unanswered can be replaced.
    Fault(id,
          transfer.request_deadline <= now
              ? absl::DeadlineExceededError(absl::StrCat("the request's time is over: ", where))
              : absl::UnavailableError(absl::StrCat("no answer to the commit within ",
                                                    absl::FormatDuration(options_.result_timeout), ": ", where)),
          TellPeer::kYes);
  }
  PumpAll();
  metrics_->connections.Set(static_cast<double>(peers_.size()));
  return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
}

// --- what the worker asks for ---

void KvSender::DoBegin(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline) {
  const PeerKey key = {ticket.kv_address(), ticket.decode_epoch()};
  Transfer& transfer = transfers_[id];
  transfer.ticket = std::move(ticket);
  transfer.peer = key;
  transfer.pages = std::move(pages);
  transfer.request_deadline = deadline;
  SetDeadline(id, transfer, deadline);
  if (stopped_) return Fault(id, absl::UnavailableError("prefill is stopping"), TellPeer::kNo);

  if (!peers_.contains(key)) {
    if (Status connecting = Connect(key); !connecting.ok()) return Fault(id, connecting, TellPeer::kNo);
  }
  Peer& peer = peers_.at(key);
  for (const TransferId other : peer.transfers) {
    const proto::Ticket& theirs = transfers_.at(other).ticket;
    if (theirs.reservation_id() == transfer.ticket.reservation_id() &&
        theirs.generation() == transfer.ticket.generation())
      return Fault(id, absl::InvalidArgumentError("this ticket is in use already"), TellPeer::kNo);
  }
  peer.transfers.insert(id);
  peer.last_used = clock_->Now();
  if (peer.open) Apply(transfer, TransferEvent::kConnected);
}

void KvSender::DoSend(TransferId id, const KvRange& range) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  Peer& peer = peers_.at(it->second.peer);
  const int64_t end = range.first_token + range.tokens;
  for (int layer = range.layer; layer < range.layer + range.layers; ++layer) {
    for (int64_t first = range.first_token; first < end; first += frame_tokens_) {
      peer.frames.push_back(
          {.transfer = id, .layer = layer, .first_token = first, .tokens = std::min(frame_tokens_, end - first)});
    }
  }
}

void KvSender::DoCommit(TransferId id, const proto::HandoffRecord& record) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  it->second.record = record.SerializeAsString();
  it->second.commit_time = clock_->Now();
  peers_.at(it->second.peer).frames.push_back({.transfer = id, .commit = true});
}

void KvSender::DoStop() {
  while (!transfers_.empty())
    Fault(transfers_.begin()->first, absl::UnavailableError("prefill is stopping"), TellPeer::kYes);
  stopped_ = true;
}

// --- connections ---

Status KvSender::Connect(const PeerKey& key) {
  SLUICE_RETURN_IF_ERROR(MakeRoomForPeer());
  Peer& peer = peers_[key];
  peer.attempt = ++last_attempt_;
  peer.connection =
      transport_->Connect(key.first, options_.hello.SerializeAsString(), options_.connect_timeout,
                          [this, key, attempt = peer.attempt](StatusOr<std::string> reply) {
                            Post([this, key, attempt, reply = std::move(reply)] { OnConnected(key, attempt, reply); });
                          });
  peer_of_connection_[peer.connection.value] = key;
  return absl::OkStatus();
}

Status KvSender::MakeRoomForPeer() {
  if (peers_.size() < static_cast<size_t>(options_.connections_max)) return absl::OkStatus();
  auto oldest = peers_.end();
  for (auto it = peers_.begin(); it != peers_.end(); ++it) {
    if (it->second.transfers.empty() && (oldest == peers_.end() || it->second.last_used < oldest->second.last_used))
      oldest = it;
  }
  if (oldest == peers_.end())
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.connections_max, " connections to decode processes are in use"));
  DropPeer(PeerKey(oldest->first), absl::OkStatus());
  return absl::OkStatus();
}

void KvSender::OnConnected(const PeerKey& key, uint64_t attempt, const StatusOr<std::string>& reply) {
  const auto it = peers_.find(key);
  if (it == peers_.end() || it->second.attempt != attempt) return;
  const Status status = reply.ok() ? CheckReply(key, *reply) : reply.status();
  if (!status.ok()) {
    spdlog::warn("connecting to {}: {}", PeerName(key.first), status.ToString());
    // Only these codes of a handshake say something about who may try again; the others are about this attempt.
    const bool keeps_code =
        absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status) || absl::IsAborted(status);
    return DropPeer(key, keeps_code ? status : absl::UnavailableError(status.message()));
  }
  it->second.open = true;
  for (const TransferId id : it->second.transfers) Apply(transfers_.at(id), TransferEvent::kConnected);
}

Status KvSender::CheckReply(const PeerKey& key, const std::string& reply) const {
  SLUICE_ASSIGN_OR_RETURN(const proto::Hello theirs, ParseHello(reply));
  SLUICE_RETURN_IF_ERROR(CompareHello(options_.hello, theirs));
  if (theirs.epoch() == key.second) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("another process listens there: the ticket's epoch is ", key.second,
                                         ", its own is ", theirs.epoch()));
}

void KvSender::DropPeer(const PeerKey& key, const Status& why) {
  const auto it = peers_.find(key);
  if (it == peers_.end()) return;
  const std::set<TransferId> transfers = it->second.transfers;
  for (const TransferId id : transfers) Fault(id, WithContext(why, PeerName(key.first)), TellPeer::kNo);
  transport_->Close(it->second.connection);
  peer_of_connection_.erase(it->second.connection.value);
  peers_.erase(it);
}

// --- frames ---

void KvSender::PumpAll() {
  // One frame a turn, so that a peer with many frames leaves send buffers to the others.
  auto it = peers_.upper_bound(pump_after_);
  for (size_t idle = 0; idle < peers_.size(); ++it) {
    if (it == peers_.end()) it = peers_.begin();
    const bool sent = PumpOne(it->first, it->second);
    idle = sent ? 0 : idle + 1;
    if (sent) pump_after_ = it->first;
  }
}

bool KvSender::PumpOne(const PeerKey& key, Peer& peer) {
  while (peer.open && !peer.frames.empty()) {
    const Frame frame = peer.frames.front();
    const auto it = transfers_.find(frame.transfer);
    if (it == transfers_.end()) {  // it has ended
      peer.frames.pop_front();
      continue;
    }
    if (!frame.commit &&
        (free_slots_.empty() ||
         (peer.bytes_in_flight > 0 && peer.bytes_in_flight + slot_bytes_ > options_.connection_bytes_in_flight_max)))
      return false;
    peer.frames.pop_front();
    if (frame.commit) {
      Transfer& transfer = it->second;
      SendControl(key, peer, frame.transfer, transfer, FrameKind::kCommit, std::move(transfer.record));
      Apply(transfer, TransferEvent::kCommitSent);
      SetDeadline(frame.transfer, transfer,
                  std::min(transfer.request_deadline, clock_->Now() + options_.result_timeout));
    } else {
      SendFrame(key, peer, frame, it->second);
    }
    return true;
  }
  return false;
}

KvFrameHeader KvSender::HeaderOf(const Transfer& transfer, FrameKind kind) const {
  return {.kind = kind,
          .codec = pool_->options().codec,
          .request = {transfer.ticket.request_id()},
          .reservation = {transfer.ticket.reservation_id()},
          .epoch = {transfer.ticket.decode_epoch()},
          .generation = {transfer.ticket.generation()},
          .layout_hash = layout_hash_};
}

// Life of a request, step 5: the KV of one layer of a computed chunk is encoded out of its pages in the wire codec and
// framed with everything that decode needs to check it.
void KvSender::SendFrame(const PeerKey& key, Peer& peer, const Frame& frame, Transfer& transfer) {
  const KvPoolOptions& kv = pool_->options();
  const size_t slot = free_slots_.back();
  const absl::Span<std::byte> body =
      memory_.span().subspan(slot * slot_bytes_, BodyBytes(kv.layout, kv.codec, 1, frame.tokens));
  const KvRange range = {.layer = frame.layer, .first_token = frame.first_token, .tokens = frame.tokens};
  const StatusOr<KvCodecCounts> counts = EncodeBody(*pool_, transfer.pages, range, kv.codec, body);
  Status encoded = counts.status();
  if (encoded.ok() && counts->nonfinite_rows > 0)
    encoded = absl::InternalError(
        absl::StrCat("layer ", frame.layer, ": ", counts->nonfinite_rows, " KV rows hold a NaN or an infinity"));
  if (!encoded.ok()) {
    spdlog::error("request {}: {}", transfer.ticket.request_id(), encoded.ToString());
    return Fault(frame.transfer, encoded, TellPeer::kYes);
  }
  free_slots_.pop_back();
  KvFrameHeader header = HeaderOf(transfer, FrameKind::kKv);
  header.layer = static_cast<uint16_t>(frame.layer);
  header.layers = 1;
  header.first_token = static_cast<uint32_t>(frame.first_token);
  header.tokens = static_cast<uint32_t>(frame.tokens);
  header.payload_bytes = body.size();
  transfer.kv_bytes += body.size();
  metrics_->kv_frames_sent.Increment();
  metrics_->kv_bytes_sent.Increment(static_cast<double>(body.size()));
  Hand(peer, Encode(header, body),
       {.peer = key, .connection = peer.connection, .transfer = frame.transfer, .slot = slot, .size = body.size()});
}

void KvSender::SendControl(const PeerKey& key, Peer& peer, TransferId id, const Transfer& transfer, FrameKind kind,
                           std::string payload) {
  KvFrameHeader header = HeaderOf(transfer, kind);
  header.payload_bytes = payload.size();
  std::string encoded = Encode(header, Bytes(payload));
  Hand(peer, std::move(encoded),
       {.peer = key, .connection = peer.connection, .transfer = id, .bytes = std::move(payload)});
}

void KvSender::Hand(Peer& peer, std::string header, Inflight inflight) {
  const uint64_t send = ++last_send_;
  peer.bytes_in_flight += inflight.size;
  peer.last_used = clock_->Now();
  const Inflight& kept = inflight_.emplace(send, std::move(inflight)).first->second;
  const absl::Span<const std::byte> payload =
      kept.slot ? absl::Span<const std::byte>(memory_.data() + *kept.slot * slot_bytes_, kept.size) : Bytes(kept.bytes);
  transport_->Send(peer.connection, std::move(header), payload, [this, send](Status status) {
    Post([this, send, status = std::move(status)] { OnSent(send, status); });
  });
}

void KvSender::OnSent(uint64_t send, const Status& status) {
  const auto node = inflight_.extract(send);
  const Inflight& inflight = node.mapped();
  if (inflight.slot) free_slots_.push_back(*inflight.slot);
  const auto it = peers_.find(inflight.peer);
  if (it != peers_.end() && it->second.connection == inflight.connection) it->second.bytes_in_flight -= inflight.size;
  if (!status.ok())
    Fault(inflight.transfer,
          absl::UnavailableError(absl::StrCat(PeerName(inflight.peer.first), ": ", status.message())), TellPeer::kNo);
}

// --- outcomes ---

void KvSender::OnResult(ConnectionId connection, const StatusOr<proto::TransferResult>& result) {
  const auto key = peer_of_connection_.find(connection.value);
  if (key == peer_of_connection_.end()) return;
  if (!result.ok()) {
    spdlog::error("a result from {}: {}", PeerName(key->second.first), result.status().ToString());
    return DropPeer(PeerKey(key->second),
                    absl::UnavailableError(absl::StrCat("a result was damaged: ", result.status().message())));
  }
  for (const TransferId id : peers_.at(key->second).transfers) {
    Transfer& transfer = transfers_.at(id);
    if (transfer.ticket.reservation_id() == result->reservation_id() &&
        transfer.ticket.generation() == result->generation() && transfer.ticket.request_id() == result->request_id())
      return OnOutcome(id, transfer, WithContext(ToStatus(*result), PeerName(key->second.first)));
  }
  metrics_->stray_results.Increment();
}

void KvSender::OnOutcome(TransferId id, Transfer& transfer, const Status& outcome) {
  if (outcome.ok()) {
    if (Apply(transfer, TransferEvent::kAcknowledged)) return End(id, outcome);
    return Fault(id,
                 absl::InternalError(absl::StrCat(PeerName(transfer.peer.first), ": acknowledged while ",
                                                  std::string(Name(transfer.state)))),
                 TellPeer::kYes);
  }
  // What decode finds wrong with frames is no fault of the request that they belong to.
  const bool ours = absl::IsInvalidArgument(outcome) || absl::IsOutOfRange(outcome);
  Fault(id, ours ? absl::InternalError(outcome.message()) : outcome, TellPeer::kNo);
}

void KvSender::OnLost(ConnectionId connection, const Status& why) {
  if (const auto it = peer_of_connection_.find(connection.value); it != peer_of_connection_.end())
    DropPeer(PeerKey(it->second), absl::UnavailableError(absl::StrCat("connection lost: ", why.message())));
}

bool KvSender::Apply(Transfer& transfer, TransferEvent event) {
  const std::optional<TransferState> next = Next(transfer.state, event);
  if (next) transfer.state = *next;
  return next.has_value();
}

void KvSender::SetDeadline(TransferId id, Transfer& transfer, absl::Time deadline) {
  by_deadline_.erase({transfer.deadline, id});
  transfer.deadline = deadline;
  by_deadline_.emplace(deadline, id);
}

void KvSender::Fault(TransferId id, const Status& why, TellPeer tell) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  Transfer& transfer = it->second;
  Apply(transfer, TransferEvent::kFault);
  const auto peer = peers_.find(transfer.peer);
  if (tell == TellPeer::kYes && peer != peers_.end() && peer->second.open) {
    const proto::TransferResult result = MakeTransferResult(
        {transfer.ticket.request_id()}, {transfer.ticket.reservation_id()}, {transfer.ticket.generation()}, why);
    SendControl(transfer.peer, peer->second, id, transfer, FrameKind::kAbort, result.SerializeAsString());
  }
  metrics_->transfers_failed(why).Increment();
  End(id, why);
}

void KvSender::End(TransferId id, Status status) {
  const auto node = transfers_.extract(id);
  const Transfer& transfer = node.mapped();
  by_deadline_.erase({transfer.deadline, id});
  if (const auto peer = peers_.find(transfer.peer); peer != peers_.end()) peer->second.transfers.erase(id);
  TransferReport report = {.status = std::move(status), .kv_bytes = transfer.kv_bytes};
  if (transfer.commit_time) report.handoff = clock_->Now() - *transfer.commit_time;
  ended_(id, report);
}

}  // namespace sluice::prefill
