#include "tests/transport/peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/transport/node.h"

namespace sluice {

namespace {

// Holds every message until it has gone back.
class Echo final : public Receiver {
 public:
  std::atomic<Transport*> transport{nullptr};

  StatusOr<std::string> OnHello(ConnectionId, std::string_view) override { return std::string("echo"); }

  StatusOr<Landing> OnMessage(ConnectionId, std::string_view header, size_t payload_bytes) override {
    const uint64_t token = ++last_token_;
    Message& message = messages_[token];
    message = {std::string(header), std::vector<std::byte>(payload_bytes)};
    return Landing{.memory = {absl::MakeSpan(message.payload)}, .token = token};
  }

  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override {
    if (!status.ok()) return (void)messages_.erase(token);
    const Message& message = messages_[token];
    transport.load()->Send(connection, message.header, message.payload,
                           [this, token](Status) { messages_.erase(token); });
  }

  void OnClosed(ConnectionId, const Status&) override {}

 private:
  struct Message {
    std::string header;
    std::vector<std::byte> payload;
  };
  std::map<uint64_t, Message> messages_;  // of the transport's thread
  uint64_t last_token_ = 0;
};

void SendForever(Transport* transport, ConnectionId connection, const std::vector<std::byte>* payload) {
  transport->Send(connection, "stream", *payload, [=](const Status& status) {
    if (status.ok()) SendForever(transport, connection, payload);
  });
}

void AwaitEndOfInput() {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

// One connection, a few payloads there and back.
Status CallOnce(Node* node, const std::string& address) {
  const size_t sizes[] = {100, 100'000, 4 << 20};
  const size_t before = node->messages().size();
  SLUICE_ASSIGN_OR_RETURN(const ConnectionId connection, node->Connect(address, "call", kCallPatience));
  for (size_t bytes : sizes) SLUICE_RETURN_IF_ERROR(node->Send(connection, "x", Pattern(bytes, bytes)));
  const absl::Time deadline = absl::Now() + kCallPatience;
  size_t intact = 0;
  while (intact < std::size(sizes) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
    const std::vector<LandedMessage> messages = node->messages();
    intact = 0;
    for (size_t i = before; i < messages.size(); ++i) {
      const std::vector<std::byte>& payload = messages[i].payload;
      intact += messages[i].connection == connection && payload == Pattern(payload.size(), payload.size());
    }
  }
  node->transport().Close(connection);
  if (intact == std::size(sizes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(intact, " of ", std::size(sizes), " messages came back"));
}

// One transport for all calls: whatever it remembers of a failure stays.
int AnswerCalls(const std::string& address, const std::string& interface) {
  Node node;
  node.Start("ucx", {.listen_address = "0.0.0.0:0", .interface = interface, .peer_silence_max = absl::Seconds(1)});
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
    const Status status = CallOnce(&node, address);
    std::printf("%s\n", status.ok() ? "ok" : status.ToString().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int RunPeer(const std::string& mode, const std::string& address, const std::string& interface) {
  if (mode == "call") return AnswerCalls(address, interface);
  Echo receiver;
  const std::vector<std::byte> payload(1 << 20, std::byte{7});
  const TransportOptions options{.listen_address = mode == "echo" ? address : "",
                                 .interface = interface,
                                 .peer_silence_max = interface.empty() ? absl::Minutes(1) : absl::Seconds(1)};
  StatusOr<std::unique_ptr<Transport>> transport = CreateTransport("ucx", options, &receiver);
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().ToString().c_str());
    return 1;
  }
  receiver.transport = transport->get();
  std::printf("%s\n", (*transport)->address().c_str());
  std::fflush(stdout);
  if (mode == "stream") {
    absl::Notification connected;
    const ConnectionId connection =
        (*transport)->Connect(address, "stream", absl::Seconds(20), [&](const StatusOr<std::string>&) {
          connected.Notify();
        });
    connected.WaitForNotification();
    for (int i = 0; i < 8; ++i) SendForever(transport->get(), connection, &payload);
  }
  AwaitEndOfInput();
  return 0;
}

Peer::Peer(const std::string& mode, const std::string& address, const std::string& interface,
           std::vector<std::string> wrapper) {
  char self[PATH_MAX] = {};
  SLUICE_CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
  std::vector<std::string> words = std::move(wrapper);
  words.insert(words.end(), {self, "--peer", mode, address, interface});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int in[2], out[2];
  SLUICE_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  pid_ = fork();
  SLUICE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  stdin_ = in[1];
  stdout_ = out[0];
}

Peer::~Peer() {
  Kill();
  close(stdin_);
  close(stdout_);
}

std::string Peer::AwaitLine() {
  std::string line;
  char c = 0;
  while (read(stdout_, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

std::string Peer::Call() {
  (void)!write(stdin_, "\n", 1);
  return AwaitLine();
}

void Peer::Signal(int signal) { kill(pid_, signal); }

void Peer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace sluice
