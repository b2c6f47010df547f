// One end of a transport as tests see it: a receiver that keeps what it was told, and verbs that wait for it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "transport/backends.h"

namespace sluice {

struct LandedMessage {
  ConnectionId connection;
  std::string header;
  std::vector<std::byte> payload;
  Status status;
};

class Node final : public Receiver {
 public:
  // How it answers; set before traffic starts. By default every hello is welcome and every message gets a landing.
  std::function<StatusOr<std::string>(ConnectionId, std::string_view)> answer_hello =
      [](ConnectionId, std::string_view hello) { return absl::StrCat("welcome ", std::string(hello)); };
  std::function<StatusOr<Landing>(ConnectionId, std::string_view, size_t)> answer_message;
  bool keep_payloads = true;  // else only statuses and headers are kept
  // Landings are cut into pieces of these sizes, in turn; empty: one piece.
  std::vector<size_t> piece_bytes;

  // Starts listening on 127.0.0.1 unless options say otherwise. A test fails hard where this fails.
  void Start(std::string_view backend, TransportOptions options = {});
  void Stop();  // a later Start counts connections anew, and may use their ids again
  Transport& transport() { return *transport_; }

  StatusOr<ConnectionId> Connect(const std::string& address, const std::string& hello = "hello",
                                 absl::Duration timeout = absl::Seconds(20));
  const std::string& last_reply() const { return last_reply_; }
  Status Send(ConnectionId connection, const std::string& header, absl::Span<const std::byte> payload = {});

  // Each waits for at most a minute and fails the test then.
  void AwaitMessages(size_t count);
  void AwaitAccepted(size_t count);
  Status AwaitClosed(ConnectionId connection);

  std::vector<LandedMessage> messages();
  std::vector<ConnectionId> accepted();
  size_t landings_open();
  // Overwrites every landing that was reported; how many bytes of them somebody wrote since.
  void ScribbleLandings();
  size_t ScribbledBytesChanged();

  // The default answer to a message: memory of its own.
  Landing Place(ConnectionId connection, std::string_view header, size_t payload_bytes);

  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) override;
  StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) override;
  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override;
  void OnClosed(ConnectionId connection, const Status& why) override;

 private:
  struct Open {
    ConnectionId connection;
    std::string header;
    std::vector<std::byte> memory;
  };

  void Await(const std::function<bool()>& condition, const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  uint64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Open> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<LandedMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionId> accepted_ ABSL_GUARDED_BY(mutex_);
  std::map<ConnectionId, Status> closed_ ABSL_GUARDED_BY(mutex_);
  std::string last_reply_;
  std::unique_ptr<Transport> transport_;  // last: its thread uses the rest
};

// Bytes that depend on `seed`, so that a mix-up shows.
std::vector<std::byte> Pattern(size_t bytes, uint64_t seed);

}  // namespace sluice
