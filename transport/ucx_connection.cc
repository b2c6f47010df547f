#include "transport/ucx_connection.h"

#include <poll.h>

#include "transport/interface.h"

namespace sluice {

namespace {

std::chrono::nanoseconds Nanoseconds(absl::Duration d) { return absl::ToChronoNanoseconds(d); }

// How long an endpoint is driven on after something moved. Falling asleep and being woken for each fragment costs more
// than looking again; beyond this it costs a core.
constexpr std::chrono::microseconds kPatience(50);

}  // namespace

StatusOr<std::shared_ptr<UcxContext>> UcxShared::ContextFor(int control_fd) {
  SLUICE_ASSIGN_OR_RETURN(const SocketAddress local, SocketAddress::Local(control_fd));
  const std::string device = !options.interface.empty() ? options.interface : local.is_loopback() ? "lo" : "";
  const std::string running = RunningInterfaces(device);
  Context& known = contexts[device];
  if (known.context == nullptr || known.interfaces != running) {
    SLUICE_ASSIGN_OR_RETURN(known.context, UcxContext::Create(device));
    known.interfaces = running;
  }
  return known.context;
}

UcxConnection::UcxConnection(UcxShared* shared, ConnectionId id, UniqueFd fd, SteadyTime now)
    : shared_(shared),
      id_(id),
      state_(State::kAwaitHello),
      channel_(std::in_place, std::move(fd), shared->control_body_bytes_max()),
      deadline_(now + Nanoseconds(shared->options.peer_silence_max)),
      challenge_(RandomNonce()),
      last_heard_(now),
      last_told_(now) {
  const Status sent = channel_->Send(ControlKind::kChallenge, {challenge_.data(), challenge_.size()});
  if (!sent.ok()) Close(sent, false);
}

UcxConnection::UcxConnection(UcxShared* shared, ConnectionId id, UniqueFd fd, std::string hello, SteadyTime deadline,
                             ConnectDone done, SteadyTime now)
    : shared_(shared),
      id_(id),
      state_(State::kConnecting),
      channel_(std::in_place, std::move(fd), shared->control_body_bytes_max()),
      deadline_(deadline),
      hello_(std::move(hello)),
      connect_done_(std::move(done)),
      last_heard_(now),
      last_told_(now) {
  Admit();
}

void UcxConnection::Admit() {
  admitted_ = true;
  ++shared_->connections_open;
}

bool UcxConnection::control_wants_write() const {
  return channel_ && (state_ == State::kConnecting || channel_->wants_write());
}

void UcxConnection::OnControlReady(SteadyTime now) {
  if (!channel_) return;
  const Status status = HandleControl(now);
  if (!status.ok()) Close(status, /*tell_peer=*/absl::IsInvalidArgument(status));
}

Status UcxConnection::HandleControl(SteadyTime now) {
  if (state_ == State::kConnecting) {
    pollfd writable{.fd = channel_->fd(), .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, 0) <= 0) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(WithContext(SocketError(channel_->fd()), "cannot connect"));
    state_ = State::kAwaitChallenge;
  }
  SLUICE_RETURN_IF_ERROR(channel_->Flush());
  const Status received = channel_->Receive();
  // What came before the end of the stream, a goodbye for one, says more than the end.
  while (channel_) {
    SLUICE_ASSIGN_OR_RETURN(const std::optional<ControlFrame> frame, channel_->Next());
    if (!frame.has_value()) break;
    last_heard_ = now;
    SLUICE_RETURN_IF_ERROR(HandleFrame(*frame));
  }
  return channel_ ? received : absl::OkStatus();
}

Status UcxConnection::HandleFrame(const ControlFrame& frame) {
  switch (frame.kind) {
    case ControlKind::kChallenge:
      if (state_ == State::kAwaitChallenge) return HandleChallenge(frame);
      break;
    case ControlKind::kHello:
      if (state_ == State::kAwaitHello) return HandleHello(frame);
      break;
    case ControlKind::kWelcome:
      if (state_ == State::kAwaitWelcome) return HandleWelcome(frame);
      break;
    case ControlKind::kRefusal:
      if (state_ != State::kAwaitChallenge && state_ != State::kAwaitWelcome) break;
      Close(DecodeStatus(frame.body), false);
      return absl::OkStatus();
    case ControlKind::kGoodbye:
      if (state_ < State::kAwaitProbe) break;
      Close(absl::UnavailableError(
                absl::StrCat("the peer has closed the connection: ", DecodeStatus(frame.body).ToString())),
            false);
      return absl::OkStatus();
    case ControlKind::kKeepalive:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("control frame of kind ", static_cast<int>(frame.kind), " out of place"));
}

Status UcxConnection::HandleChallenge(const ControlFrame& frame) {
  if (frame.body.size() != challenge_.size())
    return absl::InvalidArgumentError(
        absl::StrCat("challenge of ", frame.body.size(), " bytes, must be ", challenge_.size()));
  std::copy(frame.body.begin(), frame.body.end(), challenge_.begin());
  SLUICE_RETURN_IF_ERROR(CreateEndpoint());
  Introduction hello = Introduce(std::move(hello_));
  hello.mac = hello_mac_ = HelloMac(shared_->options.auth_key, challenge_, hello);
  SLUICE_RETURN_IF_ERROR(channel_->Send(ControlKind::kHello, Encode(hello)));
  state_ = State::kAwaitWelcome;
  return absl::OkStatus();
}

Status UcxConnection::HandleHello(const ControlFrame& frame) {
  SLUICE_ASSIGN_OR_RETURN(const Introduction peer, DecodeIntroduction(frame.body));
  const TransportOptions& options = shared_->options;
  if (!MacsEqual(peer.mac, HelloMac(options.auth_key, challenge_, peer))) {
    Refuse(absl::UnauthenticatedError("the peers do not have the same key"));
    return absl::OkStatus();
  }
  if (peer.words.size() > options.hello_bytes_max) {
    Refuse(absl::InvalidArgumentError(
        absl::StrCat("hello has ", peer.words.size(), " bytes, the peer takes ", options.hello_bytes_max)));
    return absl::OkStatus();
  }
  if (shared_->connections_open >= options.connections_max) {
    Refuse(absl::ResourceExhaustedError(
        absl::StrCat("the peer has all of its ", options.connections_max, " connections in use")));
    return absl::OkStatus();
  }
  StatusOr<std::string> reply = shared_->receiver->OnHello(id_, peer.words);
  if (!reply.ok()) {
    Refuse(reply.status());
    return absl::OkStatus();
  }
  known_ = true;
  state_ = State::kAwaitProbe;
  Admit();
  peer_address_ = peer.worker_address;
  peer_secret_ = peer.secret;
  const Status ready = CreateEndpoint();
  if (!ready.ok()) {
    (void)channel_->Send(ControlKind::kRefusal, EncodeStatus(ready));
    return ready;
  }
  Introduction welcome = Introduce(*std::move(reply));
  welcome.mac = WelcomeMac(options.auth_key, peer.mac, welcome);
  return channel_->Send(ControlKind::kWelcome, Encode(welcome));
}

Status UcxConnection::HandleWelcome(const ControlFrame& frame) {
  SLUICE_ASSIGN_OR_RETURN(Introduction peer, DecodeIntroduction(frame.body));
  if (!MacsEqual(peer.mac, WelcomeMac(shared_->options.auth_key, hello_mac_, peer)))
    return absl::UnauthenticatedError("the peers do not have the same key");
  words_ = std::move(peer.words);
  state_ = State::kAwaitProbe;
  SLUICE_RETURN_IF_ERROR(endpoint_->Connect(peer.worker_address, peer.secret));
  endpoint_->SendProbe([] {});
  return absl::OkStatus();
}

// The connecting side opens here and not after Progress: messages may come in the same round.
void UcxConnection::OnProbe() {
  if (state_ != State::kAwaitProbe) return;
  if (connect_done_ == nullptr) {
    probed_ = true;
    return;
  }
  state_ = State::kOpen;
  known_ = true;
  std::exchange(connect_done_, nullptr)(std::move(words_));
}

Status UcxConnection::OpenAccepted() {
  state_ = State::kOpen;
  SLUICE_RETURN_IF_ERROR(endpoint_->Connect(peer_address_, peer_secret_));
  endpoint_->SendProbe([this] { answering_ = false; });
  for (EarlySend& send : std::exchange(early_sends_, {})) Send(send.header, send.payload, std::move(send.done));
  return absl::OkStatus();
}

Status UcxConnection::CreateEndpoint() {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<UcxContext> context, shared_->ContextFor(channel_->fd()));
  secret_ = RandomSecret();
  SLUICE_ASSIGN_OR_RETURN(endpoint_,
                          UcxEndpoint::Create(std::move(context), secret_, shared_->options.header_bytes_max, this));
  return absl::OkStatus();
}

Introduction UcxConnection::Introduce(std::string words) const {
  return {.nonce = RandomNonce(),
          .secret = secret_,
          .worker_address = endpoint_->worker_address(),
          .words = std::move(words)};
}

void UcxConnection::Refuse(const Status& why) {
  ++shared_->connections_refused;
  (void)channel_->Send(ControlKind::kRefusal, EncodeStatus(why));
  Close(why, false);
}

bool UcxConnection::Progress() {
  if (!has_messages() || !endpoint_) return false;
  // A peer that has gone is to be seen here before UCX sees it.
  const bool unanswered = state_ == State::kAwaitProbe && connect_done_ == nullptr;
  if (unanswered || answering_) OnControlReady(std::chrono::steady_clock::now());
  if (!endpoint_) return false;
  const bool moved = endpoint_->Progress() > 0;
  if (moved && unanswered) answering_ = true;
  if (probed_ && state_ == State::kAwaitProbe) {
    const Status opened = OpenAccepted();
    if (!opened.ok()) Close(opened, true);
  }
  if (!failure_.ok()) Close(std::exchange(failure_, absl::OkStatus()), /*tell_peer=*/true);
  if (endpoint_ == nullptr) return false;
  const SteadyTime now = std::chrono::steady_clock::now();
  if (moved) last_moved_ = now;
  return now < last_moved_ + kPatience || !endpoint_->Arm();
}

SteadyTime UcxConnection::OnTimer(SteadyTime now) {
  if (state_ < State::kOpen && now >= deadline_)
    Close(absl::DeadlineExceededError("the peer did not finish the handshake in time"), false);
  if (state_ == State::kClosed) return SteadyTime::max();
  return state_ == State::kOpen ? KeepAlive(now) : deadline_;
}

SteadyTime UcxConnection::KeepAlive(SteadyTime now) {
  const auto silence = Nanoseconds(shared_->options.peer_silence_max);
  if (now >= last_heard_ + silence) {
    Close(absl::UnavailableError(
              absl::StrCat("the peer was silent for ", absl::FormatDuration(shared_->options.peer_silence_max))),
          true);
    return SteadyTime::max();
  }
  if (now >= last_told_ + silence / 4) {
    last_told_ = now;
    const Status sent = channel_->wants_write() ? absl::OkStatus() : channel_->Send(ControlKind::kKeepalive, {});
    if (!sent.ok()) {
      Close(sent, false);
      return SteadyTime::max();
    }
  }
  return std::min(last_told_ + silence / 4, last_heard_ + silence);
}

void UcxConnection::Send(std::string_view header, absl::Span<const std::byte> payload,
                         std::function<void(Status)> done) {
  const TransportOptions& options = shared_->options;
  if (state_ == State::kAwaitProbe && known_) {
    early_sends_.push_back({std::string(header), payload, std::move(done)});
    return;
  }
  if (state_ != State::kOpen) return done(absl::UnavailableError("the connection is not open"));
  if (header.size() > options.header_bytes_max || payload.size() > options.payload_bytes_max)
    return done(absl::InvalidArgumentError(absl::StrCat("header of ", header.size(), " and payload of ", payload.size(),
                                                        " bytes; at most ", options.header_bytes_max, " and ",
                                                        options.payload_bytes_max)));
  endpoint_->Send(header, payload, [shared = shared_, bytes = payload.size(), done = std::move(done)](Status status) {
    if (status.ok()) {
      ++shared->messages_sent;
      shared->payload_bytes_sent += bytes;
    }
    done(std::move(status));
  });
}

void UcxConnection::Close(const Status& why, bool tell_peer) {
  if (state_ == State::kClosed) return;
  if (tell_peer && state_ >= State::kAwaitProbe) (void)channel_->Send(ControlKind::kGoodbye, EncodeStatus(why));
  state_ = State::kClosed;
  channel_.reset();
  if (endpoint_ && answering_) endpoint_->Abandon();
  endpoint_.reset();
  if (std::exchange(admitted_, false)) --shared_->connections_open;
  for (EarlySend& send : std::exchange(early_sends_, {})) send.done(why);
  if (connect_done_) std::exchange(connect_done_, nullptr)(why);
  if (!known_) return;
  shared_->fail_queued_sends(id_);
  shared_->receiver->OnClosed(id_, why);
}

StatusOr<Landing> UcxConnection::OnMessage(std::string_view header, size_t payload_bytes) {
  const TransportOptions& options = shared_->options;
  if (state_ != State::kOpen) return absl::InvalidArgumentError("a message before the handshake was over");
  if (header.size() > options.header_bytes_max || payload_bytes > options.payload_bytes_max)
    return absl::InvalidArgumentError(absl::StrCat("header of ", header.size(), " and payload of ", payload_bytes,
                                                   " bytes; at most ", options.header_bytes_max, " and ",
                                                   options.payload_bytes_max));
  ++shared_->messages_received;
  return shared_->receiver->OnMessage(id_, header, payload_bytes);
}

void UcxConnection::OnLanded(uint64_t token, size_t payload_bytes, const Status& status) {
  if (status.ok()) shared_->payload_bytes_landed += payload_bytes;
  shared_->receiver->OnLanded(id_, token, status);
}

void UcxConnection::OnFailure(const Status& why) { failure_ = why; }

}  // namespace sluice
