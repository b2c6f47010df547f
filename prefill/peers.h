// The decode processes that are connected to, or being connected to: one connection for each, with its handshake, its
// credit and what is known of its link. A table of the sender's thread: what is sent, and what becomes of transfers, is
// decided by the sender.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/kv_layout.h"
#include "prefill/credit_window.h"
#include "prefill/link_rate.h"
#include "prefill/probation.h"
#include "prefill/transfers.h"
#include "transport/transport.h"

namespace sluice::prefill {

struct Peer {
  PeerKey key;
  ConnectionId connection;
  uint64_t attempt = 0;  // tells its Connect's answer from one of a peer that was dropped
  absl::Time last_used;

  bool open = false;  // what follows is known from then on
  KvCodec store = KvCodec::kBf16;
  std::vector<KvCodec> shared;  // wire codecs
  CreditWindow credit;
  uint64_t kv_frames = 0;                          // sent over the connection
  absl::Time credit_due = absl::InfiniteFuture();  // some is out, and the peer should have shown life by then
  LinkRate link;
  std::optional<KvCodec> wire;  // chosen last

  std::set<TransferId> transfers;  // to it
  std::set<TransferId> ready;      // those of them that may have something to send
  size_t bytes_in_flight = 0;      // the transport may still read them
  bool blocked = false;            // the next frame waits for bytes in flight or for credit
};

class Peers {
 public:
  struct Options {
    proto::Hello hello;  // ours
    KvLayout layout;
    int connections_max = 0;
    absl::Duration connect_timeout;
  };
  // Hears of each Connect's answer, on the transport's thread.
  using Connected = std::function<void(const PeerKey&, uint64_t attempt, const StatusOr<std::string>& reply)>;

  Peers(Options options, Connected connected);
  // Before anything else.
  void Attach(Transport* transport) { transport_ = transport; }

  // The peer, which is being connected to from now on where it was not. Its last failure while it is on probation;
  // ResourceExhausted where every connection has transfers.
  StatusOr<Peer*> Reach(const PeerKey& key, absl::Time now);
  // Null where there is none (any more).
  Peer* Find(const PeerKey& key);
  Peer* Find(ConnectionId connection);
  // The peer that answers this attempt; null where it was dropped.
  Peer* Find(const PeerKey& key, uint64_t attempt);

  // The peer's own hello came: it is open from now on. FailedPrecondition, naming both values, where it does not fit
  // ours; Aborted where it is another incarnation than the ticket's.
  Status Open(Peer& peer, const std::string& reply);
  // It could not be reached or did not fit.
  void OnFailed(const Peer& peer, absl::Time now, const Status& why) { probation_.OnFailed(peer.key, now, why); }
  // Closes the connection. REQUIRES: no transfers.
  void Drop(Peer& peer);

  std::map<PeerKey, Peer>& all() { return peers_; }

 private:
  Status MakeRoom();
  Status CheckReply(const Peer& peer, const proto::Hello& theirs) const;

  const Options options_;
  const Connected connected_;
  Transport* transport_ = nullptr;
  Probation probation_;
  std::map<PeerKey, Peer> peers_;
  std::unordered_map<uint64_t, Peer*> by_connection_;
  uint64_t last_attempt_ = 0;
};

}  // namespace sluice::prefill
