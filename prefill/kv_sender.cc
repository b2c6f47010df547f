// What is asked of the sender and what comes of it; frames are in kv_sender_frames.cc.
#include "prefill/kv_sender.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "model/handoff.h"
#include "spdlog/spdlog.h"

namespace sluice::prefill {

namespace {

// Messages are closures of a few ten bytes whose number the transfers and the sends in flight bound.
constexpr size_t kMailboxMessagesMax = size_t{1} << 20;

// A link that damages more frames of one transfer is not one to go on with.
constexpr int kFramesSentAgainMax = 8;

// Of the codes that reaching a peer may end with, this one is about whether it is there.
Status Unreached(const Status& why) { return absl::IsUnavailable(why) ? AtPeer(why) : why; }

std::string PeerName(const Peer& peer) { return absl::StrCat("decode at ", peer.key.first); }

}  // namespace

StatusOr<std::unique_ptr<KvSender>> KvSender::Create(const KvSenderOptions& options, KvPool* pool, const Clock* clock,
                                                     PrefillMetrics* metrics) {
  const KvLayout& layout = pool->options().layout;
  for (const std::string& name : options.hello.wire_codecs()) {
    SLUICE_ASSIGN_OR_RETURN(const KvCodec codec, ParseKvCodec(name));
    SLUICE_RETURN_IF_ERROR(CheckCodec(layout, codec));
    const size_t token_bytes = BodyBytes(layout, codec, 1, 1);
    if (token_bytes > options.frame_bytes_max || token_bytes > options.send_memory_bytes)
      return absl::InvalidArgumentError(absl::StrCat("a token's KV of one layer has ", token_bytes, " bytes in ", name,
                                                     "; a frame may have ", options.frame_bytes_max,
                                                     ", the send buffers ", options.send_memory_bytes));
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SendBuffers> buffers, SendBuffers::Create(options.send_memory_bytes));
  return std::unique_ptr<KvSender>(new KvSender(options, pool, clock, metrics, std::move(buffers)));
}

KvSender::KvSender(const KvSenderOptions& options, KvPool* pool, const Clock* clock, PrefillMetrics* metrics,
                   std::unique_ptr<SendBuffers> buffers)
    : options_(options),
      pool_(pool),
      clock_(clock),
      metrics_(metrics),
      layout_hash_(LayoutHash(options.hello.layout())),
      mailbox_(kMailboxMessagesMax),
      buffers_(std::move(buffers)),
      peers_({.hello = options.hello,
              .layout = pool->options().layout,
              .connections_max = options.connections_max,
              .connect_timeout = options.connect_timeout},
             [this](const PeerKey& key, uint64_t attempt, const StatusOr<std::string>& reply) {
               Post([this, key, attempt, reply] { OnConnected(key, attempt, reply); });
             }),
      receiver_([this](ConnectionId connection,
                       const StatusOr<Answer>& answer) { Post([=, this] { OnAnswer(connection, answer); }); },
                [this](ConnectionId connection, const Status& why) { Post([=, this] { OnLost(connection, why); }); }) {}

void KvSender::Attach(Transport* transport, Ended ended) {
  transport_ = transport;
  peers_.Attach(transport);
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
  Post([this, id, record = std::move(record)]() mutable { DoCommit(id, std::move(record)); });
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
  EndWhatIsDue(now);
  DropStalledPeers(now);
  PumpAll();
  metrics_->connections.Set(static_cast<double>(peers_.all().size()));
  absl::Time wake_at = transfers_.next_deadline();
  uint64_t kv_bytes_out = 0;
  for (const auto& [key, peer] : peers_.all()) {
    wake_at = std::min(wake_at, peer.credit_due);
    kv_bytes_out += peer.credit.taken();
  }
  metrics_->kv_bytes_out.Set(static_cast<double>(kv_bytes_out));
  return wake_at;
}

// --- what the worker asks for ---

void KvSender::DoBegin(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline) {
  Transfer& transfer = transfers_.Add(id, std::move(ticket), std::move(pages), deadline);
  if (stopped_) return Fault(id, absl::UnavailableError("prefill is stopping"), TellPeer::kNo);
  const absl::Time now = clock_->Now();
  const StatusOr<Peer*> reached = peers_.Reach(transfer.peer(), now);
  if (!reached.ok())
    return Fault(id, WithContext(Unreached(reached.status()), absl::StrCat("decode at ", transfer.peer().first)),
                 TellPeer::kNo);
  Peer& peer = **reached;
  if (TransferOf(peer, {transfer.ticket.request_id()}, {transfer.ticket.reservation_id()},
                 {transfer.ticket.generation()}) != nullptr)
    return Fault(id, absl::InvalidArgumentError("this ticket is in use already"), TellPeer::kNo);
  peer.transfers.insert(id);
  peer.last_used = now;
  if (peer.open) transfer.Apply(TransferEvent::kConnected);
}

void KvSender::DoSend(TransferId id, const KvRange& range) {
  Transfer* transfer = transfers_.Find(id);
  if (transfer == nullptr) return;
  transfer->frames.Add(range);
  peers_.Find(transfer->peer())->ready.insert(id);
}

void KvSender::DoCommit(TransferId id, proto::HandoffRecord record) {
  Transfer* transfer = transfers_.Find(id);
  if (transfer == nullptr) return;
  record.set_kv_tokens(static_cast<uint32_t>(transfer->frames.Close(record.kv_tokens())));
  transfer->record = std::move(record);
  transfer->commit_time = clock_->Now();
  peers_.Find(transfer->peer())->ready.insert(id);
}

void KvSender::DoStop() {
  while (Transfer* transfer = transfers_.Any())
    Fault(transfer->id, absl::UnavailableError("prefill is stopping"), TellPeer::kYes);
  stopped_ = true;
}

// --- connections ---

void KvSender::OnConnected(const PeerKey& key, uint64_t attempt, const StatusOr<std::string>& reply) {
  Peer* peer = peers_.Find(key, attempt);
  if (peer == nullptr) return;
  Status opened = reply.ok() ? peers_.Open(*peer, *reply) : reply.status();
  if (!opened.ok()) {
    spdlog::warn("connecting to {}: {}", PeerName(*peer), opened.ToString());
    // Only these codes of a handshake say something about who may try again; the others are about this attempt.
    const bool keeps_code =
        absl::IsFailedPrecondition(opened) || absl::IsResourceExhausted(opened) || absl::IsAborted(opened);
    if (!keeps_code) opened = absl::UnavailableError(opened.message());
    metrics_->connects_failed.Increment();
    peers_.OnFailed(*peer, clock_->Now(), opened);
    return DropPeer(*peer, Unreached(opened));
  }
  for (const TransferId id : peer->transfers) transfers_.Find(id)->Apply(TransferEvent::kConnected);
}

void KvSender::OnLost(ConnectionId connection, const Status& why) {
  if (Peer* peer = peers_.Find(connection))
    DropPeer(*peer, AtPeer(absl::UnavailableError(absl::StrCat("connection lost: ", why.message()))));
}

void KvSender::DropPeer(Peer& peer, const Status& why) {
  const std::set<TransferId> transfers = peer.transfers;
  for (const TransferId id : transfers) Fault(id, WithContext(why, PeerName(peer)), TellPeer::kNo);
  peers_.Drop(peer);
}

void KvSender::RenewCreditDeadline(Peer& peer) {
  peer.credit_due = peer.credit.taken() > 0 ? clock_->Now() + options_.result_timeout : absl::InfiniteFuture();
}

void KvSender::DropStalledPeers(absl::Time now) {
  std::vector<Peer*> stalled;
  for (auto& [key, peer] : peers_.all()) {
    if (peer.credit_due <= now) stalled.push_back(&peer);
  }
  for (Peer* peer : stalled)
    DropPeer(*peer, AtPeer(absl::UnavailableError(absl::StrCat("no credit for ", peer->credit.taken(), " bytes within ",
                                                               absl::FormatDuration(options_.result_timeout)))));
}

// --- decode's answers ---

void KvSender::OnAnswer(ConnectionId connection, const StatusOr<Answer>& answer) {
  Peer* peer = peers_.Find(connection);
  if (peer == nullptr) return;
  if (!answer.ok()) {
    spdlog::error("an answer from {}: {}", PeerName(*peer), answer.status().ToString());
    return DropPeer(*peer,
                    AtPeer(absl::UnavailableError(absl::StrCat("an answer was damaged: ", answer.status().message()))));
  }
  std::visit([this, peer](const auto& what) { On(*peer, what); }, *answer);
}

void KvSender::On(Peer& peer, const proto::TransferResult& result) {
  Transfer* transfer = TransferOf(peer, {result.request_id()}, {result.reservation_id()}, {result.generation()});
  if (transfer == nullptr) return metrics_->stray_results.Increment();
  OnOutcome(*transfer, WithContext(ToStatus(result), PeerName(peer)));
}

void KvSender::On(Peer& peer, const Credit& credit) {
  const absl::Time now = clock_->Now();
  const uint64_t given_before = peer.credit.given();
  const StatusOr<uint64_t> news = peer.credit.Give(credit.given);
  if (!news.ok()) {
    spdlog::error("{}: {}", PeerName(peer), news.status().ToString());
    return DropPeer(peer, AtPeer(absl::UnavailableError(news.status().message())));
  }
  if (*news == 0) return;  // it came before
  peer.link.OnAcknowledged(now, *news);
  RenewCreditDeadline(peer);
  // While KV that left before a commit still arrives, its answer is not late.
  for (const TransferId id : peer.transfers) {
    const Transfer& transfer = *transfers_.Find(id);
    if (transfer.state == TransferState::kAwaitingResult && given_before < transfer.credit_before_result)
      transfers_.SetDeadline(transfer, now + options_.result_timeout);
  }
}

void KvSender::On(Peer& peer, const WantedAgain& wanted) {
  const KvFrameHeader& frame = wanted.frame;
  Transfer* transfer = TransferOf(peer, frame.request, frame.reservation, frame.generation);
  if (transfer == nullptr) return metrics_->stray_resends.Increment();
  if (!transfer->wire || frame.codec != transfer->wire->codec || !transfer->frames.WasAdded(RangeOf(frame)))
    return Fault(
        transfer->id,
        absl::InternalError(absl::StrCat(PeerName(peer), " asks for a frame that was never sent: ", frame.layers,
                                         " layers from ", frame.layer, ", ", frame.tokens, " tokens from ",
                                         frame.first_token, " in ", std::string(Name(frame.codec)))),
        TellPeer::kYes);
  if (++transfer->frames_sent_again > kFramesSentAgainMax)
    return Fault(transfer->id,
                 absl::DataLossError(absl::StrCat(PeerName(peer), ": more than ", kFramesSentAgainMax,
                                                  " frames of one transfer came damaged")),
                 TellPeer::kYes);
  metrics_->frames_sent_again.Increment();
  transfer->frames.AddAgain(RangeOf(frame));
  peer.ready.insert(transfer->id);
}

void KvSender::OnOutcome(Transfer& transfer, const Status& outcome) {
  if (outcome.ok()) {
    if (transfer.Apply(TransferEvent::kAcknowledged)) return End(transfer.id, outcome);
    return Fault(transfer.id,
                 absl::InternalError(absl::StrCat("decode at ", transfer.peer().first, ": acknowledged while ",
                                                  std::string(Name(transfer.state)))),
                 TellPeer::kYes);
  }
  // An intact frame that decode cannot place is a bug of one of us, not the request's fault.
  const bool bug = absl::IsInvalidArgument(outcome) || absl::IsOutOfRange(outcome);
  Fault(transfer.id, bug ? absl::InternalError(outcome.message()) : outcome, TellPeer::kNo);
}

Transfer* KvSender::TransferOf(const Peer& peer, RequestId request, ReservationId reservation, Tenure generation) {
  for (const TransferId id : peer.transfers) {
    Transfer* transfer = transfers_.Find(id);
    const proto::Ticket& ticket = transfer->ticket;
    if (ticket.request_id() == request.value && ticket.reservation_id() == reservation.value &&
        ticket.generation() == generation.value)
      return transfer;
  }
  return nullptr;
}

// --- ends ---

void KvSender::EndWhatIsDue(absl::Time now) {
  while (const Transfer* transfer = transfers_.Due(now)) {
    const std::string where =
        absl::StrCat("decode at ", transfer->peer().first, ", ", std::string(Name(transfer->state)));
    // Past the request's deadline nobody waits any more; but a decode that leaves a commit unanswered can be replaced.
    Fault(transfer->id,
          transfer->request_deadline <= now
              ? absl::DeadlineExceededError(absl::StrCat("the request's time is over: ", where))
              : AtPeer(absl::UnavailableError(absl::StrCat(
                    "no answer to the commit within ", absl::FormatDuration(options_.result_timeout), ": ", where))),
          TellPeer::kYes);
  }
}

void KvSender::Fault(TransferId id, const Status& why, TellPeer tell) {
  Transfer* transfer = transfers_.Find(id);
  if (transfer == nullptr) return;
  transfer->Apply(TransferEvent::kFault);
  Peer* peer = peers_.Find(transfer->peer());
  if (tell == TellPeer::kYes && peer != nullptr && peer->open) {
    const proto::TransferResult result = MakeTransferResult(
        {transfer->ticket.request_id()}, {transfer->ticket.reservation_id()}, {transfer->ticket.generation()}, why);
    SendControl(*peer, *transfer, FrameKind::kAbort, result.SerializeAsString());
  }
  metrics_->transfers_failed(why).Increment();
  End(id, why);
}

void KvSender::End(TransferId id, Status status) {
  const Transfer transfer = transfers_.Remove(id);
  if (Peer* peer = peers_.Find(transfer.peer())) {
    peer->transfers.erase(id);
    peer->ready.erase(id);
  }
  TransferReport report = {.status = std::move(status), .kv_bytes = transfer.kv_bytes};
  if (transfer.commit_time) report.handoff = clock_->Now() - *transfer.commit_time;
  ended_(id, report);
}

}  // namespace sluice::prefill
