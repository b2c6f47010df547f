// From final KV to frames with the transport, on the sender's thread.
#include <algorithm>
#include <utility>

#include "prefill/kv_sender.h"
#include "spdlog/spdlog.h"

namespace sluice::prefill {

namespace {

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

void KvSender::PumpAll() {
  // One frame a turn, so that a peer with many frames leaves send buffers to the others; and where a frame finds none,
  // nobody overtakes it.
  std::map<PeerKey, Peer>& peers = peers_.all();
  auto it = peers.upper_bound(pump_after_);
  for (size_t idle = 0; idle < peers.size(); ++it) {
    if (it == peers.end()) it = peers.begin();
    const Turn turn = PumpOne(it->second);
    if (turn == Turn::kNoMemory) break;
    idle = turn == Turn::kSent ? 0 : idle + 1;
    if (turn == Turn::kSent) pump_after_ = it->first;
  }
  for (auto& [key, peer] : peers) {
    if (!peer.blocked) peer.link.OnNothingWaits();
  }
}

KvSender::Turn KvSender::PumpOne(Peer& peer) {
  peer.blocked = false;
  while (peer.open && !peer.ready.empty()) {
    Transfer& transfer = *transfers_.Find(*peer.ready.begin());  // the oldest first
    const std::optional<KvRange> frame = NextFrame(peer, transfer);
    if (!frame) {
      peer.ready.erase(transfer.id);
      if (!transfer.record) continue;
      SendCommit(peer, transfer);
      return Turn::kSent;
    }
    const size_t bytes = BodyBytes(pool_->options().layout, transfer.wire->codec, frame->layers, frame->tokens);
    peer.blocked = !HasRoom(peer, bytes);
    if (peer.blocked) return Turn::kNothing;
    std::optional<SendBuffers::Lease> buffer = buffers_->Take(bytes);
    if (!buffer) return Turn::kNoMemory;
    transfer.frames.Pop(*frame);
    SendFrame(peer, transfer, *frame, *std::move(buffer));
    return Turn::kSent;
  }
  return Turn::kNothing;
}

std::optional<KvRange> KvSender::NextFrame(Peer& peer, Transfer& transfer) {
  if (transfer.frames.empty()) return std::nullopt;
  if (!transfer.wire) transfer.wire = Choose(peer);
  return transfer.frames.Next(LimitsOf(peer, transfer));
}

FrameLimits KvSender::LimitsOf(const Peer& peer, const Transfer& transfer) const {
  const KvLayout& layout = pool_->options().layout;
  // Two frames within the credit, so that one is on its way while the other is placed.
  const uint64_t share = std::max<uint64_t>(peer.credit.bytes() / 2, BodyBytes(layout, transfer.wire->codec, 1, 1));
  const size_t bytes_max =
      static_cast<size_t>(std::min<uint64_t>({options_.frame_bytes_max, options_.send_memory_bytes, share}));
  return {.layout = layout,
          .codec = transfer.wire->codec,
          .bytes_min = std::min(options_.frame_bytes_min, bytes_max),
          .bytes_max = bytes_max};
}

WireChoice KvSender::Choose(Peer& peer) {
  const WireChoice choice =
      ChooseWire({.layout = pool_->options().layout,
                  .shared = peer.shared,
                  .our_store = pool_->options().codec,
                  .their_store = peer.store,
                  .link_bytes_per_s = peer.link.bytes_per_s(),
                  .link_may_be_faster = !options_.wire_adapts || peer.link.MayBeFaster(clock_->Now()),
                  .tokens_per_s = tokens_per_s_,
                  .current = peer.wire,
                  .f16_saturates = f16_saturates_});
  peer.wire = choice.codec;
  metrics_->wire_codecs(choice.codec).Increment();
  metrics_->link_ratio(choice.codec).Set(choice.link_ratio);
  metrics_->link_bytes_per_second.Set(peer.link.bytes_per_s());
  return choice;
}

bool KvSender::HasRoom(const Peer& peer, size_t bytes) const {
  return peer.credit.Holds(bytes) &&
         (peer.bytes_in_flight == 0 || peer.bytes_in_flight + bytes <= options_.connection_bytes_in_flight_max);
}

KvFrameHeader KvSender::HeaderOf(const Transfer& transfer, FrameKind kind) const {
  return {.kind = kind,
          .codec = transfer.wire ? transfer.wire->codec : pool_->options().codec,
          .request = {transfer.ticket.request_id()},
          .reservation = {transfer.ticket.reservation_id()},
          .epoch = {transfer.ticket.decode_epoch()},
          .generation = {transfer.ticket.generation()},
          .layout_hash = layout_hash_};
}

// Life of a request, step 5: KV of some layers of a computed chunk is encoded from its pages in the wire codec and
// framed with everything that decode needs to check it, while the engine thread computes the next layers.
void KvSender::SendFrame(Peer& peer, Transfer& transfer, const KvRange& range, SendBuffers::Lease buffer) {
  const absl::Span<std::byte> body = buffer.bytes();
  if (const Status encoded = EncodeFrame(transfer, range, body); !encoded.ok()) {
    spdlog::error("request {}: {}", transfer.ticket.request_id(), encoded.ToString());
    return Fault(transfer.id, encoded, TellPeer::kYes);
  }
  KvFrameHeader header = HeaderOf(transfer, FrameKind::kKv);
  header.layer = static_cast<uint16_t>(range.layer);
  header.layers = static_cast<uint16_t>(range.layers);
  header.first_token = static_cast<uint32_t>(range.first_token);
  header.tokens = static_cast<uint32_t>(range.tokens);
  header.payload_bytes = body.size();
  header.number = ++peer.kv_frames;
  transfer.kv_bytes += body.size();
  metrics_->kv_frames_sent.Increment();
  metrics_->kv_bytes_sent(header.codec).Increment(static_cast<double>(body.size()));
  std::string encoded = Encode(header, body);
  peer.credit.Take(body.size());
  peer.link.OnSent(clock_->Now(), body.size());
  if (peer.credit_due == absl::InfiniteFuture()) RenewCreditDeadline(peer);
  Hand(peer, std::move(encoded),
       {.connection = peer.connection, .transfer = transfer.id, .kv = std::move(buffer), .bytes = {}});
}

Status KvSender::EncodeFrame(const Transfer& transfer, const KvRange& range, absl::Span<std::byte> body) {
  const KvCodec wire = transfer.wire->codec;
  const absl::Time began = clock_->Now();
  SLUICE_ASSIGN_OR_RETURN(const KvCodecCounts counts, EncodeBody(*pool_, transfer.pages, range, wire, body));
  metrics_->encode_seconds.Increment(absl::ToDoubleSeconds(clock_->Now() - began));
  metrics_->saturated_values.Increment(static_cast<double>(counts.saturated));
  metrics_->nonfinite_rows.Increment(static_cast<double>(counts.nonfinite_rows));
  f16_saturates_ |= wire == KvCodec::kF16 && counts.saturated > 0;
  if (counts.nonfinite_rows == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("layers ", range.layer, " to ", range.layer + range.layers - 1, ": ",
                                          counts.nonfinite_rows, " KV rows hold a NaN or an infinity"));
}

void KvSender::SendCommit(Peer& peer, Transfer& transfer) {
  proto::HandoffRecord record = *std::move(transfer.record);
  transfer.record.reset();
  if (transfer.wire) {
    record.set_wire_codec(std::string(Name(transfer.wire->codec)));
    record.set_link_ratio(transfer.wire->link_ratio);
  }
  // Which tokens they are of is part of what they cost.
  transfer.kv_bytes += record.kept().ByteSizeLong();
  record.set_kv_wire_bytes(transfer.kv_bytes);
  SendControl(peer, transfer, FrameKind::kCommit, record.SerializeAsString());
  transfer.Apply(TransferEvent::kCommitSent);
  transfer.credit_before_result = peer.credit.given() + peer.credit.taken();
  transfers_.SetDeadline(transfer, clock_->Now() + options_.result_timeout);
}

void KvSender::SendControl(Peer& peer, const Transfer& transfer, FrameKind kind, std::string payload) {
  KvFrameHeader header = HeaderOf(transfer, kind);
  header.payload_bytes = payload.size();
  std::string encoded = Encode(header, Bytes(payload));
  Hand(peer, std::move(encoded),
       {.connection = peer.connection, .transfer = transfer.id, .kv = {}, .bytes = std::move(payload)});
}

void KvSender::Hand(Peer& peer, std::string header, Inflight inflight) {
  const uint64_t send = ++last_send_;
  const Inflight& kept = inflight_.emplace(send, std::move(inflight)).first->second;
  const absl::Span<const std::byte> kv = kept.kv.bytes();
  peer.bytes_in_flight += kv.size();
  peer.last_used = clock_->Now();
  transport_->Send(peer.connection, std::move(header), kv.empty() ? Bytes(kept.bytes) : kv,
                   [this, send](const Status& status) { Post([=, this] { OnSent(send, status); }); });
}

void KvSender::OnSent(uint64_t send, const Status& status) {
  const auto node = inflight_.extract(send);
  const Inflight& inflight = node.mapped();
  const size_t kv_bytes = inflight.kv.bytes().size();
  if (Peer* peer = peers_.Find(inflight.connection)) {
    peer->bytes_in_flight -= kv_bytes;
    if (kv_bytes > 0 && !status.ok()) {  // it never left, so no credit comes for it
      peer->credit.TakeBack(kv_bytes);
      peer->link.Forget();
    }
    if (kv_bytes > 0) RenewCreditDeadline(*peer);
  }
  if (status.ok()) return;
  Fault(inflight.transfer, AtPeer(absl::UnavailableError(absl::StrCat("sending to decode: ", status.message()))),
        TellPeer::kYes);
}

}  // namespace sluice::prefill
