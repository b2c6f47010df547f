// One connection of the UCX transport: a control stream (handshake, keepalives, goodbye) beside an endpoint for
// messages. Of the transport's thread.
//
//   from              -> to                when
//   kConnecting       -> kAwaitChallenge   the TCP connect succeeded                              (connecting side)
//   kAwaitChallenge   -> kAwaitWelcome     a challenge came; sends its hello
//   kAwaitWelcome     -> kAwaitProbe       a welcome with the right MAC came; probes the message path
//   kAwaitHello       -> kAwaitProbe       a hello with the right MAC came and OnHello accepted    (accepting side)
//   kAwaitProbe       -> kOpen             the peer's probe came; the connecting side calls connect_done(reply), the
//                                          accepting side probes back and sends what has waited
//   any               -> kClosed           refusal, deadline, error, silence, goodbye, Close; the endpoint goes, then
//                                          what was open is completed, then connect_done(why) or OnClosed(why)
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>

#include "transport/control_channel.h"
#include "transport/ucx_endpoint.h"

namespace sluice {

using SteadyTime = std::chrono::steady_clock::time_point;

// What all connections of a transport share.
struct UcxShared {
  TransportOptions options;
  Receiver* receiver = nullptr;
  // Completes the sends of a connection that has ended that its thread has not come to yet.
  std::function<void(ConnectionId)> fail_queued_sends;
  struct Context {
    std::shared_ptr<UcxContext> context;  // endpoints are the other owners: one that is replaced goes with its last
    std::string interfaces;               // that were running when it was made
  };
  std::map<std::string, Context> contexts;  // by network device; made when first needed
  std::atomic<uint64_t> connections_open{0}, connections_refused{0}, messages_sent{0}, messages_received{0},
      payload_bytes_sent{0}, payload_bytes_landed{0};

  // A context knows the interfaces that ran when it was made, so it is made anew when they have changed: a link that
  // was down then would else be down for ever.
  StatusOr<std::shared_ptr<UcxContext>> ContextFor(int control_fd);
  size_t control_body_bytes_max() const {
    return kIntroductionFixedBytes + kWorkerAddressBytesMax + options.hello_bytes_max;
  }
};

class UcxConnection final : public UcxEndpoint::Handler {
 public:
  using ConnectDone = std::function<void(StatusOr<std::string>)>;
  enum class State { kConnecting, kAwaitChallenge, kAwaitWelcome, kAwaitHello, kAwaitProbe, kOpen, kClosed };

  // Accepting side; sends the challenge.
  UcxConnection(UcxShared* shared, ConnectionId id, UniqueFd fd, SteadyTime now);
  // Connecting side; `fd` is connecting.
  UcxConnection(UcxShared* shared, ConnectionId id, UniqueFd fd, std::string hello, SteadyTime deadline,
                ConnectDone done, SteadyTime now);

  ConnectionId id() const { return id_; }
  State state() const { return state_; }
  // Not proven to know the key.
  bool is_stranger() const { return state_ == State::kAwaitHello; }
  // Progress may be called.
  bool has_messages() const { return state_ >= State::kAwaitProbe && state_ != State::kClosed; }

  // What to wait for: -1 where there is no such descriptor.
  int control_fd() const { return channel_ ? channel_->fd() : -1; }
  bool control_wants_write() const;
  int endpoint_fd() const { return endpoint_ ? endpoint_->event_fd() : -1; }

  void OnControlReady(SteadyTime now);
  // Drives the endpoint. False: it has nothing to do until its descriptor tells.
  bool Progress();
  // Deadlines and keepalives. The next time that it wants to be called.
  SteadyTime OnTimer(SteadyTime now);
  void Send(std::string_view header, absl::Span<const std::byte> payload, std::function<void(Status)> done);
  // `tell_peer`: with a goodbye.
  void Close(const Status& why, bool tell_peer);

  void OnProbe() override;
  StatusOr<Landing> OnMessage(std::string_view header, size_t payload_bytes) override;
  void OnLanded(uint64_t token, size_t payload_bytes, const Status& status) override;
  void OnFailure(const Status& why) override;

 private:
  Status HandleControl(SteadyTime now);
  Status HandleFrame(const ControlFrame& frame);
  Status HandleChallenge(const ControlFrame& frame);
  Status HandleHello(const ControlFrame& frame);
  Status HandleWelcome(const ControlFrame& frame);
  Status CreateEndpoint();
  Status OpenAccepted();
  SteadyTime KeepAlive(SteadyTime now);
  Introduction Introduce(std::string words) const;
  void Refuse(const Status& why);
  void Admit();

  UcxShared* const shared_;
  const ConnectionId id_;
  State state_;
  bool admitted_ = false;  // counts as a connection, no longer as a stranger
  std::optional<ControlChannel> channel_;
  std::unique_ptr<UcxEndpoint> endpoint_;

  // Handshake.
  SteadyTime deadline_;
  std::string hello_;
  ConnectDone connect_done_;
  Nonce challenge_ = {};
  Mac hello_mac_ = {};  // connecting side: what the welcome has to answer
  uint64_t secret_ = 0;
  std::string words_;         // the peer's reply
  std::string peer_address_;  // of its worker
  uint64_t peer_secret_ = 0;
  bool probed_ = false;  // seen inside Progress, acted upon after it
  bool answering_ =
      false;  // accepting side: UCX has begun to answer and our probe has not left; the endpoint may not be destroyed
  bool known_ = false;  // to the receiver, who is owed an OnClosed

  struct EarlySend {
    std::string header;
    absl::Span<const std::byte> payload;
    std::function<void(Status)> done;
  };
  std::vector<EarlySend> early_sends_;  // of an accepting side that did not wait; within sends_pending_max

  SteadyTime last_heard_;
  SteadyTime last_told_;
  SteadyTime last_moved_;  // of the endpoint
  Status failure_;         // seen inside Progress, acted upon after it
};

}  // namespace sluice
