#include "tests/transport/node.h"

#include <cstring>

#include "absl/synchronization/notification.h"
#include "common/rng.h"
#include "gtest/gtest.h"

namespace sluice {

namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr std::byte kScribble{0xA5};

}  // namespace

void Node::Start(std::string_view backend, TransportOptions options) {
  if (options.listen_address.empty()) options.listen_address = "127.0.0.1:0";
  StatusOr<std::unique_ptr<Transport>> transport = CreateTransport(backend, options, this);
  SLUICE_CHECK(transport.ok(), "cannot start: ", transport.status().ToString());
  transport_ = *std::move(transport);
}

void Node::Stop() {
  transport_.reset();
  absl::MutexLock lock(&mutex_);
  accepted_.clear();
  closed_.clear();
}

StatusOr<ConnectionId> Node::Connect(const std::string& address, const std::string& hello, absl::Duration timeout) {
  // Shared with the completion, which may come after this function has given up.
  struct Answer {
    absl::Notification done;
    StatusOr<std::string> reply;
  };
  auto answer = std::make_shared<Answer>();
  const ConnectionId id = transport_->Connect(address, hello, timeout, [answer](StatusOr<std::string> reply) {
    answer->reply = std::move(reply);
    answer->done.Notify();
  });
  if (!answer->done.WaitForNotificationWithTimeout(kPatience)) return absl::InternalError("Connect never answered");
  if (!answer->reply.ok()) return answer->reply.status();
  last_reply_ = *answer->reply;
  return id;
}

Status Node::Send(ConnectionId connection, const std::string& header, absl::Span<const std::byte> payload) {
  absl::Notification done;
  Status result;
  transport_->Send(connection, header, payload, [&](Status status) {
    result = std::move(status);
    done.Notify();
  });
  SLUICE_CHECK(done.WaitForNotificationWithTimeout(kPatience), "a send never completed");
  return result;
}

void Node::Await(const std::function<bool()>& condition, const char* what) {
  const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&condition), kPatience);
  if (in_time) return;
  ADD_FAILURE() << "waited in vain for " << what;
  for (const auto& [connection, why] : closed_) ADD_FAILURE() << "closed " << connection.value << ": " << why;
}

void Node::AwaitMessages(size_t count) {
  absl::MutexLock lock(&mutex_);
  Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return messages_.size() >= count; }, "messages");
}

void Node::AwaitAccepted(size_t count) {
  absl::MutexLock lock(&mutex_);
  Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return accepted_.size() >= count; }, "connections");
}

Status Node::AwaitClosed(ConnectionId connection) {
  absl::MutexLock lock(&mutex_);
  Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_.contains(connection); }, "OnClosed");
  return closed_.contains(connection) ? closed_[connection] : absl::OkStatus();
}

std::vector<LandedMessage> Node::messages() {
  absl::MutexLock lock(&mutex_);
  return messages_;
}

std::vector<ConnectionId> Node::accepted() {
  absl::MutexLock lock(&mutex_);
  return accepted_;
}

size_t Node::landings_open() {
  absl::MutexLock lock(&mutex_);
  return open_.size();
}

void Node::ScribbleLandings() {
  absl::MutexLock lock(&mutex_);
  for (LandedMessage& m : messages_) std::fill(m.payload.begin(), m.payload.end(), kScribble);
}

size_t Node::ScribbledBytesChanged() {
  absl::MutexLock lock(&mutex_);
  size_t changed = 0;
  for (const LandedMessage& m : messages_) {
    for (std::byte b : m.payload) changed += b != kScribble;
  }
  return changed;
}

StatusOr<std::string> Node::OnHello(ConnectionId connection, std::string_view hello) {
  StatusOr<std::string> reply = answer_hello(connection, hello);
  absl::MutexLock lock(&mutex_);
  if (reply.ok()) accepted_.push_back(connection);
  return reply;
}

StatusOr<Landing> Node::OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) {
  return answer_message ? answer_message(connection, header, payload_bytes) : Place(connection, header, payload_bytes);
}

Landing Node::Place(ConnectionId connection, std::string_view header, size_t payload_bytes) {
  absl::MutexLock lock(&mutex_);
  EXPECT_FALSE(closed_.contains(connection)) << "a message after OnClosed";
  const uint64_t token = ++last_token_;
  Open& open = open_[token];
  open = {connection, std::string(header), std::vector<std::byte>(payload_bytes)};
  Landing landing{.token = token};
  absl::Span<std::byte> rest = absl::MakeSpan(open.memory);
  for (size_t i = 0; !piece_bytes.empty() && !rest.empty(); ++i) {
    landing.memory.push_back(rest.subspan(0, piece_bytes[i % piece_bytes.size()]));
    rest.remove_prefix(landing.memory.back().size());
  }
  landing.memory.push_back(rest);
  return landing;
}

void Node::OnLanded(ConnectionId connection, uint64_t token, const Status& status) {
  absl::MutexLock lock(&mutex_);
  EXPECT_FALSE(closed_.contains(connection)) << "a landing after OnClosed";
  auto node = open_.extract(token);
  if (node.empty()) return ADD_FAILURE() << "landing " << token << " was reported twice or is unknown";
  if (!keep_payloads) node.mapped().memory.clear();
  messages_.push_back({connection, std::move(node.mapped().header), std::move(node.mapped().memory), status});
}

void Node::OnClosed(ConnectionId connection, const Status& why) {
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(closed_.emplace(connection, why).second) << "closed twice";
  for (const auto& [token, open] : open_) EXPECT_NE(open.connection, connection) << "OnClosed before OnLanded";
}

std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> data(bytes);
  Rng rng(seed);
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t word = rng.Bits();
    std::memcpy(&data[i], &word, 8);
  }
  for (; i < bytes; ++i) data[i] = static_cast<std::byte>(rng.Bits());
  return data;
}

}  // namespace sluice
