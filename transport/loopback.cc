#include "transport/loopback.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace sluice {

namespace {

class LoopbackTransport;

// The queue of a transport's thread. Shared by the transport and by its peers, whichever lives longer.
class Mailbox {
 public:
  using Job = std::function<void(LoopbackTransport&)>;

  // False once the transport is gone; the job is then not run.
  bool Post(Job job) {
    absl::MutexLock lock(&mutex_);
    if (shut_) return false;
    jobs_.push_back(std::move(job));
    return true;
  }

  std::deque<Job> Take(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    auto has_jobs = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !jobs_.empty(); };
    mutex_.AwaitWithDeadline(absl::Condition(&has_jobs), deadline);
    return std::exchange(jobs_, {});
  }

  bool ShutIfEmpty() {
    absl::MutexLock lock(&mutex_);
    shut_ = jobs_.empty();
    return shut_;
  }

 private:
  absl::Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
};

// Who listens where in this process.
class Directory {
 public:
  static Directory& Get() {
    static auto* directory = new Directory;
    return *directory;
  }

  StatusOr<std::string> Add(const std::string& listen_address, std::shared_ptr<Mailbox> mailbox) {
    absl::MutexLock lock(&mutex_);
    std::string address = listen_address;
    const size_t colon = address.rfind(':');
    if (address.substr(colon + 1) == "0") {
      do {
        address = absl::StrCat(listen_address.substr(0, colon), ":", ++last_port_);
      } while (listeners_.contains(address));
    }
    if (!listeners_.emplace(address, std::move(mailbox)).second)
      return absl::AlreadyExistsError(absl::StrCat("a transport listens on ", address, " already"));
    return address;
  }

  void Remove(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    listeners_.erase(address);
  }

  std::shared_ptr<Mailbox> Find(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    auto it = listeners_.find(address);
    return it == listeners_.end() ? nullptr : it->second;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Mailbox>> listeners_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_port_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct Connection {
  enum class State { kConnecting, kOpen, kClosing };
  State state = State::kConnecting;
  std::shared_ptr<Mailbox> peer;
  ConnectionId peer_id;
  absl::Time deadline = absl::InfiniteFuture();  // of the handshake
  std::function<void(StatusOr<std::string>)> connect_done;
  size_t sends_pending = 0;
  Status why;  // of the closing
};

struct PendingSend {
  ConnectionId connection;
  size_t payload_bytes = 0;
  std::function<void(Status)> done;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(const TransportOptions& options, Receiver* receiver) : options_(options), receiver_(receiver) {}

  ~LoopbackTransport() override {
    if (!address_.empty()) Directory::Get().Remove(address_);
    if (!thread_.joinable()) return;
    mailbox_->Post([](LoopbackTransport& self) { self.Stop(); });
    thread_.join();
  }

  Status Start() {
    if (!options_.listen_address.empty()) {
      SLUICE_ASSIGN_OR_RETURN(address_, Directory::Get().Add(options_.listen_address, mailbox_));
    }
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  ConnectionId Connect(const std::string& address, std::string hello, absl::Duration timeout,
                       std::function<void(StatusOr<std::string>)> done) override {
    const ConnectionId id{++last_id_};
    mailbox_->Post([=, deadline = absl::Now() + timeout](LoopbackTransport& self) {
      self.StartConnect(id, address, hello, deadline, done);
    });
    return id;
  }

  void Send(ConnectionId connection, std::string header, absl::Span<const std::byte> payload,
            std::function<void(Status)> done) override {
    const bool room = sends_pending_.fetch_add(1) < options_.sends_pending_max;
    mailbox_->Post([=, header = std::move(header), done = std::move(done)](LoopbackTransport& self) {
      self.StartSend(connection, header, payload, done, room);
    });
  }

  void Close(ConnectionId connection) override {
    mailbox_->Post([=](LoopbackTransport& self) {
      self.CloseConnection(connection, absl::CancelledError("closed by this side"), /*tell_peer=*/true);
    });
  }

  TransportCounters counters() const override {
    return {.wakeups = wakeups_,
            .connections_open = connections_open_,
            .connections_refused = connections_refused_,
            .messages_sent = messages_sent_,
            .messages_received = messages_received_,
            .payload_bytes_sent = payload_bytes_sent_,
            .payload_bytes_landed = payload_bytes_landed_};
  }

 private:
  void Loop() {
    for (;;) {
      std::deque<Mailbox::Job> jobs = mailbox_->Take(NextDeadline());
      ++wakeups_;
      for (Mailbox::Job& job : jobs) job(*this);
      ExpireHandshakes();
      if (stopping_ && sends_.empty() && mailbox_->ShutIfEmpty()) return;
    }
  }

  absl::Time NextDeadline() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [id, c] : connections_) next = std::min(next, c.deadline);
    return next;
  }

  void ExpireHandshakes() {
    const absl::Time now = absl::Now();
    std::vector<uint64_t> late;
    for (const auto& [id, c] : connections_) {
      if (c.deadline <= now) late.push_back(id);
    }
    for (uint64_t id : late)
      CloseConnection({id}, absl::DeadlineExceededError("the peer did not answer the hello in time"), false);
  }

  void Stop() {
    stopping_ = true;
    std::vector<uint64_t> ids;
    for (const auto& [id, c] : connections_) ids.push_back(id);
    for (uint64_t id : ids) CloseConnection({id}, absl::CancelledError("the transport is closing"), true);
  }

  // Handshake, connecting side.

  void StartConnect(ConnectionId id, const std::string& address, const std::string& hello, absl::Time deadline,
                    const std::function<void(StatusOr<std::string>)>& done) {
    if (stopping_) return done(absl::CancelledError("the transport is closing"));
    if (hello.size() > options_.hello_bytes_max)
      return done(absl::InvalidArgumentError(
          absl::StrCat("hello has ", hello.size(), " bytes, at most ", options_.hello_bytes_max)));
    if (connections_.size() >= options_.connections_max)
      return done(absl::ResourceExhaustedError(absl::StrCat("all ", options_.connections_max, " connections in use")));
    std::shared_ptr<Mailbox> peer = Directory::Get().Find(address);
    auto offer = [id, hello, from = mailbox_](LoopbackTransport& self) { self.HandleHello(from, id, hello); };
    if (peer == nullptr || !peer->Post(offer))
      return done(absl::UnavailableError(absl::StrCat("nobody listens on ", address)));
    Add(id, {.peer = std::move(peer), .deadline = deadline, .connect_done = done});
  }

  void HandleHelloReply(const std::shared_ptr<Mailbox>& from, ConnectionId id, ConnectionId peer_id,
                        const StatusOr<std::string>& reply) {
    auto it = connections_.find(id.value);
    if (it == connections_.end() || it->second.state != Connection::State::kConnecting) {
      from->Post([=](LoopbackTransport& peer) { peer.PeerClosed(peer_id); });
      return;
    }
    if (!reply.ok()) return CloseConnection(id, reply.status(), false);
    it->second.state = Connection::State::kOpen;
    it->second.peer_id = peer_id;
    it->second.deadline = absl::InfiniteFuture();
    std::exchange(it->second.connect_done, nullptr)(reply);
  }

  // Handshake, accepting side.

  void HandleHello(const std::shared_ptr<Mailbox>& from, ConnectionId peer_id, const std::string& hello) {
    const ConnectionId id{++last_id_};
    StatusOr<std::string> reply = AnswerHello(id, hello);
    if (reply.ok()) Add(id, {.state = Connection::State::kOpen, .peer = from, .peer_id = peer_id});
    if (!reply.ok()) ++connections_refused_;
    const bool sent =
        from->Post([=, self = mailbox_](LoopbackTransport& peer) { peer.HandleHelloReply(self, peer_id, id, reply); });
    if (!sent && reply.ok()) CloseConnection(id, absl::UnavailableError("the peer is gone"), false);
  }

  StatusOr<std::string> AnswerHello(ConnectionId id, const std::string& hello) {
    if (stopping_) return absl::UnavailableError("the peer is closing");
    if (connections_.size() >= options_.connections_max)
      return absl::ResourceExhaustedError(
          absl::StrCat("the peer has all of its ", options_.connections_max, " connections in use"));
    if (hello.size() > options_.hello_bytes_max)
      return absl::InvalidArgumentError(
          absl::StrCat("hello has ", hello.size(), " bytes, the peer takes ", options_.hello_bytes_max));
    return receiver_->OnHello(id, hello);
  }

  // Messages.

  void StartSend(ConnectionId id, const std::string& header, absl::Span<const std::byte> payload,
                 const std::function<void(Status)>& done, bool room) {
    const uint64_t send = ++last_send_;
    sends_[send] = {.connection = id, .payload_bytes = payload.size(), .done = done};
    auto it = connections_.find(id.value);
    if (it == connections_.end() || it->second.state != Connection::State::kOpen)
      return FinishSend(send, absl::UnavailableError("the connection is not open"));
    ++it->second.sends_pending;
    if (!room)
      return FinishSend(send, absl::ResourceExhaustedError(
                                  absl::StrCat("all ", options_.sends_pending_max, " pending sends in use")));
    if (header.size() > options_.header_bytes_max || payload.size() > options_.payload_bytes_max)
      return FinishSend(send, absl::InvalidArgumentError(absl::StrCat(
                                  "header of ", header.size(), " and payload of ", payload.size(), " bytes; at most ",
                                  options_.header_bytes_max, " and ", options_.payload_bytes_max)));
    auto deliver = [=, from = mailbox_, peer_id = it->second.peer_id](LoopbackTransport& peer) {
      const Status status = peer.HandleMessage(peer_id, header, payload);
      from->Post([=](LoopbackTransport& self) { self.FinishSend(send, status); });
    };
    if (it->second.peer->Post(deliver)) return;
    FinishSend(send, absl::UnavailableError("the peer is gone"));
    CloseConnection(id, absl::UnavailableError("the peer is gone"), false);
  }

  void FinishSend(uint64_t send, const Status& status) {
    auto node = sends_.extract(send);
    --sends_pending_;
    auto it = connections_.find(node.mapped().connection.value);
    if (status.ok()) {
      ++messages_sent_;
      payload_bytes_sent_ += node.mapped().payload_bytes;
    }
    node.mapped().done(status);
    if (it == connections_.end() || it->second.sends_pending == 0) return;
    if (--it->second.sends_pending == 0 && it->second.state == Connection::State::kClosing) FinishClose(it->first);
  }

  // Runs in the receiving transport while the sender keeps `payload` in place; the answer completes the send.
  Status HandleMessage(ConnectionId id, const std::string& header, absl::Span<const std::byte> payload) {
    auto it = connections_.find(id.value);
    if (it == connections_.end() || it->second.state != Connection::State::kOpen)
      return absl::UnavailableError("the peer has closed the connection");
    if (header.size() > options_.header_bytes_max || payload.size() > options_.payload_bytes_max)
      return Reject(id, absl::InvalidArgumentError(absl::StrCat("header of ", header.size(), " and payload of ",
                                                                payload.size(), " bytes are beyond the limits")));
    ++messages_received_;
    StatusOr<Landing> landing = receiver_->OnMessage(id, header, payload.size());
    if (!landing.ok()) return Reject(id, landing.status());
    if (landing->drop) return absl::OkStatus();
    if (Status fits = landing->Check(payload.size()); !fits.ok()) {
      receiver_->OnLanded(id, landing->token, fits);
      return Reject(id, fits);
    }
    landing->Copy(payload);
    payload_bytes_landed_ += payload.size();
    receiver_->OnLanded(id, landing->token, absl::OkStatus());
    return absl::OkStatus();
  }

  Status Reject(ConnectionId id, const Status& why) {
    CloseConnection(id, why, true);
    return absl::UnavailableError("the peer has closed the connection");
  }

  // The end of a connection: at once where no send is with the peer, else when the peer has answered the last one.

  void CloseConnection(ConnectionId id, const Status& why, bool tell_peer) {
    auto it = connections_.find(id.value);
    if (it == connections_.end() || it->second.state == Connection::State::kClosing) return;
    Connection& c = it->second;
    if (c.state == Connection::State::kConnecting) {
      auto done = std::move(c.connect_done);
      Remove(id);
      return done(why);
    }
    c.state = Connection::State::kClosing;
    c.why = why;
    if (tell_peer) {
      c.peer->Post([peer_id = c.peer_id](LoopbackTransport& peer) { peer.PeerClosed(peer_id); });
    }
    if (c.sends_pending == 0) FinishClose(id.value);
  }

  void PeerClosed(ConnectionId id) {
    CloseConnection(id, absl::UnavailableError("the peer has closed the connection"), false);
  }

  void FinishClose(uint64_t id) {
    const Status why = connections_[id].why;
    Remove({id});
    receiver_->OnClosed({id}, why);
  }

  void Add(ConnectionId id, Connection connection) {
    connections_[id.value] = std::move(connection);
    connections_open_ = connections_.size();
  }

  void Remove(ConnectionId id) {
    connections_.erase(id.value);
    connections_open_ = connections_.size();
  }

  const TransportOptions options_;
  Receiver* const receiver_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::string address_;
  std::thread thread_;

  std::atomic<uint64_t> last_id_{0};
  std::atomic<size_t> sends_pending_{0};
  std::atomic<uint64_t> wakeups_{0}, connections_open_{0}, connections_refused_{0}, messages_sent_{0},
      messages_received_{0}, payload_bytes_sent_{0}, payload_bytes_landed_{0};

  // Of the transport's thread.
  std::unordered_map<uint64_t, Connection> connections_;
  std::unordered_map<uint64_t, PendingSend> sends_;
  uint64_t last_send_ = 0;
  bool stopping_ = false;
};

}  // namespace

StatusOr<std::unique_ptr<Transport>> CreateLoopbackTransport(const TransportOptions& options, Receiver* receiver) {
  auto transport = std::make_unique<LoopbackTransport>(options, receiver);
  SLUICE_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace sluice
