#include "tests/transport/peer.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "transport/backends.h"

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

}  // namespace

int RunPeer(const std::string& mode, const std::string& address) {
  Echo receiver;
  const std::vector<std::byte> payload(1 << 20, std::byte{7});
  const TransportOptions options{.listen_address = mode == "echo" ? address : "", .peer_silence_max = absl::Minutes(1)};
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

}  // namespace sluice
