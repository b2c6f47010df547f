#include "prefill/peers.h"

#include <algorithm>
#include <utility>

#include "model/handoff.h"
#include "model/kv_body.h"

namespace sluice::prefill {

Peers::Peers(Options options, Connected connected)
    : options_(std::move(options)),
      connected_(std::move(connected)),
      probation_(static_cast<size_t>(options_.connections_max) * 4) {}

StatusOr<Peer*> Peers::Reach(const PeerKey& key, absl::Time now) {
  if (Peer* known = Find(key)) return known;
  SLUICE_RETURN_IF_ERROR(probation_.MayTry(key, now));
  SLUICE_RETURN_IF_ERROR(MakeRoom());
  Peer& peer = peers_[key];
  peer.key = key;
  peer.attempt = ++last_attempt_;
  peer.last_used = now;
  peer.connection = transport_->Connect(
      key.first, options_.hello.SerializeAsString(), options_.connect_timeout,
      [this, key, attempt = peer.attempt](const StatusOr<std::string>& reply) { connected_(key, attempt, reply); });
  by_connection_[peer.connection.value] = &peer;
  return &peer;
}

Status Peers::MakeRoom() {
  if (peers_.size() < static_cast<size_t>(options_.connections_max)) return absl::OkStatus();
  Peer* oldest = nullptr;
  for (auto& [key, peer] : peers_) {
    if (peer.transfers.empty() && (oldest == nullptr || peer.last_used < oldest->last_used)) oldest = &peer;
  }
  if (oldest == nullptr)
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.connections_max, " connections to decode processes are in use"));
  Drop(*oldest);
  return absl::OkStatus();
}

Peer* Peers::Find(const PeerKey& key) {
  const auto it = peers_.find(key);
  return it == peers_.end() ? nullptr : &it->second;
}

Peer* Peers::Find(ConnectionId connection) {
  const auto it = by_connection_.find(connection.value);
  return it == by_connection_.end() ? nullptr : it->second;
}

Peer* Peers::Find(const PeerKey& key, uint64_t attempt) {
  Peer* peer = Find(key);
  return peer != nullptr && peer->attempt == attempt ? peer : nullptr;
}

Status Peers::Open(Peer& peer, const std::string& reply) {
  SLUICE_ASSIGN_OR_RETURN(const proto::Hello theirs, ParseHello(reply));
  SLUICE_RETURN_IF_ERROR(CheckReply(peer, theirs));
  const StatusOr<KvCodec> store = ParseKvCodec(theirs.store_codec());
  if (!store.ok())
    return absl::FailedPreconditionError(absl::StrCat("handshake refused: decode's store: ", store.status().message()));
  peer.store = *store;
  peer.shared = SharedWireCodecs(options_.hello, theirs);
  peer.credit = CreditWindow(theirs.credit_bytes());
  peer.open = true;
  probation_.OnReached(peer.key);
  return absl::OkStatus();
}

Status Peers::CheckReply(const Peer& peer, const proto::Hello& theirs) const {
  SLUICE_RETURN_IF_ERROR(CompareHello(options_.hello, theirs));
  if (theirs.epoch() != peer.key.second)
    return absl::AbortedError(absl::StrCat("another process listens there: the ticket's epoch is ", peer.key.second,
                                           ", its own is ", theirs.epoch()));
  size_t token_bytes = 0;
  for (const KvCodec codec : SharedWireCodecs(options_.hello, theirs))
    token_bytes = std::max(token_bytes, BodyBytes(options_.layout, codec, 1, 1));
  if (theirs.credit_bytes() < token_bytes)
    return absl::FailedPreconditionError(absl::StrCat("handshake refused: decode grants ", theirs.credit_bytes(),
                                                      " bytes of credit, a token's KV of one layer has ", token_bytes));
  return absl::OkStatus();
}

void Peers::Drop(Peer& peer) {
  SLUICE_CHECK(peer.transfers.empty());
  transport_->Close(peer.connection);
  by_connection_.erase(peer.connection.value);
  peers_.erase(PeerKey(peer.key));
}

}  // namespace sluice::prefill
