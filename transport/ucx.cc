#include "transport/ucx.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "transport/interface.h"
#include "transport/ucx_connection.h"

namespace sluice {

namespace {

struct ConnectCommand {
  ConnectionId id;
  std::string address;
  std::string hello;
  SteadyTime deadline;
  UcxConnection::ConnectDone done;
};

struct SendCommand {
  ConnectionId id;
  std::string header;
  absl::Span<const std::byte> payload;
  std::function<void(Status)> done;
  bool room = true;  // within sends_pending_max
};

struct CloseCommand {
  ConnectionId id;
};

struct StopCommand {};

using Command = std::variant<ConnectCommand, SendCommand, CloseCommand, StopCommand>;

// What epoll tells: two numbers for each connection, and two that no connection has.
constexpr uint64_t kListenerEvent = 0;
constexpr uint64_t kCommandEvent = 1;
uint64_t ControlEvent(uint64_t id) { return id * 2; }
uint64_t EndpointEvent(uint64_t id) { return id * 2 + 1; }

// Of a Connect; keeps an infinite one from overflowing.
constexpr absl::Duration kConnectPatienceMax = absl::Hours(1);

// While there is progress, sockets are looked at once in so many rounds only.
constexpr unsigned kRoundsPerPoll = 16;

class UcxTransport;

// The transport whose thread this is.
thread_local const UcxTransport* running_here = nullptr;

class UcxTransport final : public Transport {
 public:
  UcxTransport(const TransportOptions& options, Receiver* receiver) {
    shared_.options = options;
    shared_.receiver = receiver;
    shared_.fail_queued_sends = [this](ConnectionId id) { FailQueuedSends(id); };
  }

  ~UcxTransport() override {
    if (!thread_.joinable()) return;
    Push(StopCommand{});
    thread_.join();
  }

  Status Start();

  std::string address() const override { return address_; }

  ConnectionId Connect(const std::string& address, std::string hello, absl::Duration timeout,
                       std::function<void(StatusOr<std::string>)> done) override {
    const ConnectionId id{++last_id_};
    const SteadyTime deadline =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(timeout, kConnectPatienceMax));
    Push(ConnectCommand{id, address, std::move(hello), deadline, std::move(done)});
    return id;
  }

  void Send(ConnectionId connection, std::string header, absl::Span<const std::byte> payload,
            std::function<void(Status)> done) override {
    const bool room = sends_pending_.fetch_add(1) < shared_.options.sends_pending_max;
    Push(SendCommand{connection, std::move(header), payload, std::move(done), room});
  }

  void Close(ConnectionId connection) override { Push(CloseCommand{connection}); }

  TransportCounters counters() const override {
    return {.wakeups = wakeups_,
            .connections_open = shared_.connections_open,
            .connections_refused = shared_.connections_refused,
            .messages_sent = shared_.messages_sent,
            .messages_received = shared_.messages_received,
            .payload_bytes_sent = shared_.payload_bytes_sent,
            .payload_bytes_landed = shared_.payload_bytes_landed};
  }

 private:
  // A connection and what the loop knows of it.
  struct Slot {
    std::unique_ptr<UcxConnection> connection;
    UcxConnection::State seen = UcxConnection::State::kClosed;
    int control_fd = -1;  // as registered with epoll; closing a descriptor takes it out
    bool control_writes = false;
    int endpoint_fd = -1;
    bool active = false;  // in active_
  };

  void Push(Command command);
  void Loop();
  bool RunCommands();
  void FailQueuedSends(ConnectionId id);
  void Run(ConnectCommand& command);
  StatusOr<UniqueFd> Reach(const SocketAddress& address) const;
  void Run(SendCommand& command);
  void Run(CloseCommand& command);
  void Run(StopCommand& command);
  bool ProgressActive();
  void WaitForEvents(bool busy);
  int TimeoutMs() const;
  void HandleEvent(uint64_t event);
  void RunTimers();
  void Accept();
  void Add(std::unique_ptr<UcxConnection> connection);
  void Settle(uint64_t id, Slot& slot);
  void Watch(int fd, uint32_t events, uint64_t event, bool known);
  void EraseClosed();

  UcxShared shared_;
  std::string address_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd reserve_;  // given up to accept and drop a connection when descriptors run out
  std::thread thread_;
  std::atomic<uint64_t> last_id_{0};
  std::atomic<size_t> sends_pending_{0};
  std::atomic<uint64_t> wakeups_{0};

  absl::Mutex mutex_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);

  // Of the transport's thread.
  std::vector<Command> running_;  // taken from commands_
  bool told_itself_ = false;      // a callback has pushed a command, and nobody has rung for it
  std::unordered_map<uint64_t, Slot> slots_;
  std::vector<uint64_t> active_;  // connections whose endpoint may have something to do
  std::vector<uint64_t> closed_;  // to be erased
  std::set<uint64_t> strangers_;  // accepted, and not through the handshake
  SteadyTime next_timer_ = SteadyTime::max();
  unsigned round_ = 0;
  bool stopping_ = false;
};

Status UcxTransport::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll_.ok() || !wake_.ok())
    return absl::UnavailableError(absl::StrCat("no descriptors for a transport: ", std::strerror(errno)));
  Watch(wake_.get(), EPOLLIN, kCommandEvent, false);
  const std::string& interface = shared_.options.interface;
  if (!interface.empty()) SLUICE_RETURN_IF_ERROR(CheckInterface(interface));
  if (!shared_.options.listen_address.empty()) {
    SLUICE_ASSIGN_OR_RETURN(SocketAddress wanted,
                            SocketAddress::Parse(shared_.options.listen_address, /*resolve=*/true));
    if (!interface.empty()) {
      SLUICE_ASSIGN_OR_RETURN(wanted, BindTo(interface, wanted));
    }
    SLUICE_ASSIGN_OR_RETURN(listener_, Listen(wanted));
    SLUICE_ASSIGN_OR_RETURN(const SocketAddress listening, SocketAddress::Local(listener_.get()));
    SLUICE_ASSIGN_OR_RETURN(address_, AdvertisedAddress(listening, shared_.options.advertise_host));
    SLUICE_RETURN_IF_ERROR(shared_.ContextFor(listener_.get()).status());
    Watch(listener_.get(), EPOLLIN, kListenerEvent, false);
  }
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void UcxTransport::Push(Command command) {
  {
    absl::MutexLock lock(&mutex_);
    commands_.push_back(std::move(command));
    if (commands_.size() > 1) return;  // whoever pushed the first one has rung
  }
  if (running_here == this) {
    told_itself_ = true;
    return;
  }
  const uint64_t one = 1;
  SLUICE_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one), "an eventfd takes a one");
}

void UcxTransport::Loop() {
  running_here = this;
  for (;;) {
    RunCommands();
    const bool busy = ProgressActive();
    EraseClosed();
    if (stopping_ && slots_.empty()) break;
    WaitForEvents(busy || told_itself_);
    RunTimers();
  }
  while (RunCommands()) {
  }
}

// False: there were none.
bool UcxTransport::RunCommands() {
  running_.clear();
  told_itself_ = false;
  {
    absl::MutexLock lock(&mutex_);
    running_.swap(commands_);
  }
  for (Command& command : running_) std::visit([this](auto& c) { Run(c); }, command);
  return !running_.empty();
}

// What was sent before the end is reported before the end, also where the end came first to this thread.
void UcxTransport::FailQueuedSends(ConnectionId id) {
  std::vector<SendCommand> sends;
  const auto take_from = [&](std::vector<Command>& commands) {
    for (Command& command : commands) {
      SendCommand* send = std::get_if<SendCommand>(&command);
      if (send != nullptr && send->id == id && send->done != nullptr)
        sends.push_back(std::exchange(*send, SendCommand{}));
    }
  };
  take_from(running_);
  {
    absl::MutexLock lock(&mutex_);
    take_from(commands_);
  }
  for (SendCommand& send : sends) {
    --sends_pending_;
    send.done(absl::UnavailableError("the connection is not open"));
  }
}

void UcxTransport::Run(ConnectCommand& command) {
  if (stopping_) return command.done(absl::CancelledError("the transport is closing"));
  const TransportOptions& options = shared_.options;
  if (command.hello.size() > options.hello_bytes_max)
    return command.done(absl::InvalidArgumentError(
        absl::StrCat("hello has ", command.hello.size(), " bytes, at most ", options.hello_bytes_max)));
  if (shared_.connections_open >= options.connections_max)
    return command.done(
        absl::ResourceExhaustedError(absl::StrCat("all ", options.connections_max, " connections in use")));
  const StatusOr<SocketAddress> address = SocketAddress::Parse(command.address, /*resolve=*/false);
  if (!address.ok()) return command.done(address.status());
  StatusOr<UniqueFd> fd = Reach(*address);
  if (!fd.ok()) return command.done(fd.status());
  Add(std::make_unique<UcxConnection>(&shared_, command.id, *std::move(fd), std::move(command.hello), command.deadline,
                                      std::move(command.done), std::chrono::steady_clock::now()));
}

StatusOr<UniqueFd> UcxTransport::Reach(const SocketAddress& address) const {
  std::optional<SocketAddress> source;
  if (!shared_.options.interface.empty()) {
    SLUICE_ASSIGN_OR_RETURN(source, InterfaceAddress(shared_.options.interface, address.storage.ss_family));
  }
  return StartConnect(address, source);
}

void UcxTransport::Run(SendCommand& command) {
  if (command.done == nullptr) return;  // failed when its connection ended
  auto done = [this, done = std::exchange(command.done, nullptr)](Status status) {
    --sends_pending_;
    done(std::move(status));
  };
  auto it = slots_.find(command.id.value);
  if (it == slots_.end()) return done(absl::UnavailableError("the connection is not open"));
  if (!command.room)
    return done(
        absl::ResourceExhaustedError(absl::StrCat("all ", shared_.options.sends_pending_max, " pending sends in use")));
  it->second.connection->Send(command.header, command.payload, std::move(done));
  Settle(it->first, it->second);
}

void UcxTransport::Run(CloseCommand& command) {
  auto it = slots_.find(command.id.value);
  if (it == slots_.end()) return;
  it->second.connection->Close(absl::CancelledError("closed by this side"), /*tell_peer=*/true);
  Settle(it->first, it->second);
}

void UcxTransport::Run(StopCommand&) {
  stopping_ = true;
  listener_.Reset();
  for (auto& [id, slot] : slots_) {
    slot.connection->Close(absl::CancelledError("the transport is closing"), /*tell_peer=*/true);
    Settle(id, slot);
  }
}

// Gives every active endpoint one round; those with nothing left to do sleep until their descriptor tells.
bool UcxTransport::ProgressActive() {
  std::vector<uint64_t> active;
  active.swap(active_);
  for (uint64_t id : active) {
    auto it = slots_.find(id);
    if (it == slots_.end()) continue;
    Slot& slot = it->second;
    slot.active = slot.connection->Progress();
    if (slot.active) active_.push_back(id);
    if (slot.connection->state() != slot.seen) Settle(id, slot);
  }
  return !active_.empty();
}

void UcxTransport::WaitForEvents(bool busy) {
  if (busy && ++round_ % kRoundsPerPoll != 0) return;
  // Room for everything that can be ready, so that no peer's keepalive is left unread before silence is judged.
  std::vector<epoll_event> events(slots_.size() * 2 + 2);
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), busy ? 0 : TimeoutMs());
  if (!busy) ++wakeups_;
  for (int i = 0; i < count; ++i) HandleEvent(events[i].data.u64);
}

int UcxTransport::TimeoutMs() const {
  if (next_timer_ == SteadyTime::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_timer_ - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

void UcxTransport::HandleEvent(uint64_t event) {
  if (event == kListenerEvent) return Accept();
  if (event == kCommandEvent) {
    uint64_t rings = 0;
    (void)!read(wake_.get(), &rings, sizeof(rings));
    return;
  }
  auto it = slots_.find(event / 2);
  if (it == slots_.end()) return;
  if (event == ControlEvent(it->first)) it->second.connection->OnControlReady(std::chrono::steady_clock::now());
  Settle(it->first, it->second);
}

void UcxTransport::RunTimers() {
  const SteadyTime now = std::chrono::steady_clock::now();
  if (now < next_timer_) return;
  next_timer_ = SteadyTime::max();
  SteadyTime next = SteadyTime::max();
  for (auto& [id, slot] : slots_) {
    next = std::min(next, slot.connection->OnTimer(now));
    Settle(id, slot);
  }
  next_timer_ = std::min(next_timer_, next);
}

void UcxTransport::Accept() {
  for (;;) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.ok() && (errno == EMFILE || errno == ENFILE)) {
      // Else the listener would stay readable and the loop would spin.
      reserve_.Reset();
      fd = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      fd.Reset();
      reserve_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
      ++shared_.connections_refused;
      return;
    }
    if (!fd.ok()) return;
    if (strangers_.size() >= shared_.options.handshakes_max) {
      const uint64_t oldest = *strangers_.begin();
      ++shared_.connections_refused;
      slots_[oldest].connection->Close(absl::ResourceExhaustedError("too many handshakes at once"), false);
      Settle(oldest, slots_[oldest]);
    }
    const ConnectionId id{++last_id_};
    strangers_.insert(id.value);
    Add(std::make_unique<UcxConnection>(&shared_, id, std::move(fd), std::chrono::steady_clock::now()));
  }
}

void UcxTransport::Add(std::unique_ptr<UcxConnection> connection) {
  const uint64_t id = connection->id().value;
  Slot& slot = slots_[id];
  slot.connection = std::move(connection);
  Settle(id, slot);
}

// After anything was done with a connection: epoll, timers, activity and lists follow its state.
void UcxTransport::Settle(uint64_t id, Slot& slot) {
  UcxConnection& c = *slot.connection;
  if (c.state() != slot.seen) {
    slot.seen = c.state();
    next_timer_ = SteadyTime{};
    if (!c.is_stranger()) strangers_.erase(id);
    if (c.state() == UcxConnection::State::kClosed) closed_.push_back(id);
  }
  if (c.control_fd() >= 0 && (c.control_fd() != slot.control_fd || c.control_wants_write() != slot.control_writes)) {
    const uint32_t events = c.control_wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN;
    Watch(c.control_fd(), events, ControlEvent(id), /*known=*/c.control_fd() == slot.control_fd);
  }
  slot.control_fd = c.control_fd();
  slot.control_writes = c.control_wants_write();
  if (c.has_messages() && c.endpoint_fd() >= 0 && slot.endpoint_fd < 0) {
    slot.endpoint_fd = c.endpoint_fd();
    Watch(slot.endpoint_fd, EPOLLIN, EndpointEvent(id), false);
  }
  if (c.has_messages() && !slot.active) {
    slot.active = true;
    active_.push_back(id);
  }
}

void UcxTransport::Watch(int fd, uint32_t events, uint64_t event, bool known) {
  epoll_event wanted = {};
  wanted.events = events;
  wanted.data.u64 = event;
  SLUICE_CHECK(epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &wanted) == 0,
               "epoll takes a descriptor: ", std::strerror(errno));
}

void UcxTransport::EraseClosed() {
  for (uint64_t id : closed_) slots_.erase(id);
  closed_.clear();
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportOptions& options, Receiver* receiver) {
  auto transport = std::make_unique<UcxTransport>(options, receiver);
  SLUICE_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace sluice
