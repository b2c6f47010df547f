#include "tests/transport/conformance.h"

#include <atomic>
#include <set>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"

namespace sluice {

namespace {

using testing::HasSubstr;

// Counts completions of sends that are not waited for one by one.
struct Completions {
  std::atomic<int> ok{0}, failed{0}, exhausted{0};
  std::function<void(Status)> Counter() {
    return [this](Status status) {
      if (absl::IsResourceExhausted(status)) ++exhausted;
      ++(status.ok() ? ok : failed);
    };
  }
  int total() const { return ok + failed; }
  void AwaitTotal(int count) const {
    for (int i = 0; i < 6000 && total() < count; ++i) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(total(), count);
  }
};

uint32_t Crc(absl::Span<const std::byte> bytes) { return Crc32c(bytes.data(), bytes.size()); }

}  // namespace

TEST_P(TransportConformance, AHelloIsAnsweredWithTheReply) {
  StartBoth();
  ASSERT_TRUE(client_.Connect(server_.transport().address(), "anna").ok());
  EXPECT_EQ(client_.last_reply(), "welcome anna");
}

TEST_P(TransportConformance, AListenerOnPortZeroTellsItsRealAddress) {
  server_.Start(backend());
  EXPECT_THAT(server_.transport().address(), HasSubstr("127.0.0.1:"));
  EXPECT_NE(server_.transport().address(), "127.0.0.1:0");
}

TEST_P(TransportConformance, ARefusalCarriesCodeAndWords) {
  server_.answer_hello = [](ConnectionId, std::string_view) {
    return absl::FailedPreconditionError("layers differ: 30 here, 32 there");
  };
  StartBoth();
  const Status status = client_.Connect(server_.transport().address()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers differ: 30 here, 32 there"));
  EXPECT_EQ(server_.transport().counters().connections_refused, 1u);
}

TEST_P(TransportConformance, AHelloBeyondThePeersLimitIsRefused) {
  server_.Start(backend(), {.hello_bytes_max = 100});
  client_.Start(backend());
  EXPECT_FALSE(client_.Connect(server_.transport().address(), std::string(101, 'x')).ok());
  EXPECT_TRUE(client_.Connect(server_.transport().address(), std::string(100, 'x')).ok());
}

TEST_P(TransportConformance, ConnectingToNobodyFails) {
  client_.Start(backend());
  server_.Start(backend());
  const std::string address = server_.transport().address();
  server_.Stop();
  const Status status = client_.Connect(address).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(TransportConformance, ConnectGivesUpAtItsDeadline) {
  server_.answer_hello = [&](ConnectionId, std::string_view) {
    release_.WaitForNotification();
    return std::string("too late");
  };
  StartBoth();
  const Status status = client_.Connect(server_.transport().address(), "hello", absl::Milliseconds(100)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  release_.Notify();
  server_.AwaitAccepted(1);
  EXPECT_FALSE(server_.AwaitClosed(server_.accepted()[0]).ok());
}

TEST_P(TransportConformance, CloseEndsAConnectThatIsUnderWay) {
  absl::Notification done;
  Status status;
  server_.answer_hello = [&](ConnectionId, std::string_view) {
    release_.WaitForNotification();
    return std::string("too late");
  };
  StartBoth();
  const ConnectionId id = client_.transport().Connect(server_.transport().address(), "hello", absl::Seconds(30),
                                                      [&](StatusOr<std::string> reply) {
                                                        status = reply.status();
                                                        done.Notify();
                                                      });
  client_.transport().Close(id);
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  release_.Notify();
}

TEST_P(TransportConformance, ConnectionsAreLimited) {
  server_.Start(backend(), {.connections_max = 2});
  client_.Start(backend());
  ASSERT_TRUE(client_.Connect(server_.transport().address()).ok());
  StatusOr<ConnectionId> second = client_.Connect(server_.transport().address());
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(client_.Connect(server_.transport().address()).ok());
  client_.transport().Close(*second);
  EXPECT_FALSE(server_.AwaitClosed(server_.accepted()[1]).ok());
  EXPECT_TRUE(client_.Connect(server_.transport().address()).ok());
}

TEST_P(TransportConformance, PayloadsOfAllSizesLandIntact) {
  StartConnected();
  size_t count = 0;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{65536}, size_t{8} << 20}) {
    const std::vector<std::byte> payload = Pattern(bytes, bytes);
    ASSERT_TRUE(client_.Send(to_server_, absl::StrCat("size ", bytes), payload).ok());
    server_.AwaitMessages(++count);
    const LandedMessage landed = server_.messages().back();
    EXPECT_TRUE(landed.status.ok());
    EXPECT_EQ(landed.header, absl::StrCat("size ", bytes));
    EXPECT_EQ(landed.payload.size(), bytes);
    EXPECT_EQ(Crc(landed.payload), Crc(payload));
  }
}

// Pieces of one size, of odd ones, empty ones among them, and thousands of them.
TEST_P(TransportConformance, PayloadsLandInPieces) {
  const std::vector<std::vector<size_t>> cuts = {{4096}, {1, 0, 4095, 7, 65536}, {640}, {100'000, 0, 0, 3}};
  for (const std::vector<size_t>& cut : cuts) {
    Node server, client;
    server.piece_bytes = cut;
    server.Start(backend());
    client.Start(backend());
    StatusOr<ConnectionId> connection = client.Connect(server.transport().address());
    ASSERT_TRUE(connection.ok()) << connection.status();
    size_t count = 0;
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{4000}, size_t{65537}, size_t{3} << 20}) {
      const std::vector<std::byte> payload = Pattern(bytes, bytes);
      ASSERT_TRUE(client.Send(*connection, "x", payload).ok());
      server.AwaitMessages(++count);
      EXPECT_EQ(Crc(server.messages().back().payload), Crc(payload)) << bytes << " bytes, cut at " << cut[0];
    }
    EXPECT_EQ(server.transport().counters().payload_bytes_landed, 4001u + 65537u + (3u << 20));
  }
}

// Pages lie in any order and have neighbours, whose bytes are not ours.
TEST_P(TransportConformance, PiecesMayLieInAnyOrderAndNothingBesideThemIsTouched) {
  constexpr size_t kPieces = 300, kPiece = 5000, kStride = 5100;
  std::vector<std::byte> pages(kPieces * kStride, std::byte{0xEE});
  server_.answer_message = [&](ConnectionId connection, std::string_view header, size_t) -> StatusOr<Landing> {
    Landing landing = server_.Place(connection, header, 0);
    landing.memory.clear();
    for (size_t i = 0; i < kPieces; ++i)
      landing.memory.push_back(absl::MakeSpan(&pages[i * 7 % kPieces * kStride], kPiece));
    return landing;
  };
  StartConnected();
  const std::vector<std::byte> payload = Pattern(kPieces * kPiece, 5);
  ASSERT_TRUE(client_.Send(to_server_, "x", payload).ok());
  server_.AwaitMessages(1);
  for (size_t i = 0; i < kPieces; ++i) {
    const std::byte* page = &pages[i * 7 % kPieces * kStride];
    ASSERT_EQ(Crc({page, kPiece}), Crc({&payload[i * kPiece], kPiece})) << "piece " << i;
    for (size_t b = kPiece; b < kStride; ++b) ASSERT_EQ(page[b], std::byte{0xEE}) << "beside piece " << i;
  }
}

TEST_P(TransportConformance, PiecesThatAreNotThePayloadsSizeCloseTheConnection) {
  for (size_t bytes : {size_t{0}, size_t{100}, size_t{1} << 20}) {
    Node server, client;
    server.answer_message = [&](ConnectionId connection, std::string_view header, size_t payload_bytes) {
      Landing landing = server.Place(connection, header, payload_bytes + 1);
      return StatusOr<Landing>(std::move(landing));
    };
    server.Start(backend());
    client.Start(backend());
    StatusOr<ConnectionId> connection = client.Connect(server.transport().address());
    ASSERT_TRUE(connection.ok()) << connection.status();
    (void)client.Send(*connection, "bad", Pattern(bytes, 1));
    EXPECT_EQ(client.AwaitClosed(*connection).code(), absl::StatusCode::kUnavailable);
    const Status why = server.AwaitClosed(server.accepted()[0]);
    EXPECT_EQ(why.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(why.message()), HasSubstr(absl::StrCat("for a payload of ", bytes, " bytes")));
    ASSERT_EQ(server.messages().size(), 1u);
    EXPECT_EQ(server.messages()[0].status.code(), absl::StatusCode::kInternal);
  }
}

TEST_P(TransportConformance, CountersTellWhatPassed) {
  StartConnected();
  ASSERT_TRUE(client_.Send(to_server_, "a", Pattern(1000, 1)).ok());
  ASSERT_TRUE(client_.Send(to_server_, "b", Pattern(1 << 20, 1)).ok());
  server_.AwaitMessages(2);
  EXPECT_EQ(client_.transport().counters().messages_sent, 2u);
  EXPECT_EQ(client_.transport().counters().payload_bytes_sent, (1u << 20) + 1000);
  EXPECT_EQ(server_.transport().counters().messages_received, 2u);
  EXPECT_EQ(server_.transport().counters().payload_bytes_landed, (1u << 20) + 1000);
  EXPECT_EQ(server_.transport().counters().connections_open, 1u);
}

TEST_P(TransportConformance, ThousandsOfMessagesPassInBothDirections) {
  StartConnected();
  constexpr int kMessages = 2000;
  std::vector<std::vector<std::byte>> payloads;
  for (int i = 0; i < 16; ++i) payloads.push_back(Pattern(static_cast<size_t>(i) * 1500, i));
  Completions completions;
  for (int i = 0; i < kMessages; ++i) {
    const absl::Span<const std::byte> payload = payloads[i % 16];
    client_.transport().Send(to_server_, absl::StrCat(i), payload, completions.Counter());
    server_.transport().Send(to_client_, absl::StrCat(i), payload, completions.Counter());
  }
  completions.AwaitTotal(2 * kMessages);
  EXPECT_EQ(completions.failed, 0);
  for (Node* node : {&client_, &server_}) {
    node->AwaitMessages(kMessages);
    std::vector<bool> seen(kMessages, false);
    for (const LandedMessage& m : node->messages()) {
      const int i = std::stoi(m.header);
      EXPECT_FALSE(seen[i]) << "message " << i << " came twice";
      seen[i] = true;
      ASSERT_EQ(Crc(m.payload), Crc(payloads[i % 16])) << "message " << i;
    }
  }
}

TEST_P(TransportConformance, ManyConnectionsKeepTheirMessagesApart) {
  StartBoth();
  constexpr int kConnections = 32;
  std::vector<ConnectionId> connections;
  for (int i = 0; i < kConnections; ++i) {
    StatusOr<ConnectionId> connection = client_.Connect(server_.transport().address());
    ASSERT_TRUE(connection.ok()) << i << ": " << connection.status();
    connections.push_back(*connection);
  }
  const std::vector<std::byte> payload = Pattern(20000, 7);
  for (int i = 0; i < kConnections; ++i) ASSERT_TRUE(client_.Send(connections[i], absl::StrCat(i), payload).ok());
  server_.AwaitMessages(kConnections);
  const std::vector<ConnectionId> accepted = server_.accepted();
  for (const LandedMessage& m : server_.messages()) EXPECT_EQ(m.connection, accepted[std::stoi(m.header)]);
  EXPECT_EQ(server_.transport().counters().connections_open, static_cast<uint64_t>(kConnections));
}

// A fleet that starts at once: handshakes overlap, and each ends with its own peer.
TEST_P(TransportConformance, SixteenPeersMayConnectAtOnce) {
  const TransportOptions patient = {.peer_silence_max = absl::Minutes(1)};  // sixteen threads on a busy machine
  server_.Start(backend(), patient);
  constexpr int kPeers = 16;
  std::vector<Node> peers(kPeers);
  for (Node& peer : peers) peer.Start(backend(), patient);
  absl::Notification go;
  std::vector<std::thread> threads;
  for (int i = 0; i < kPeers; ++i) {
    threads.emplace_back([&, i] {
      go.WaitForNotification();
      StatusOr<ConnectionId> connection = peers[i].Connect(server_.transport().address(), absl::StrCat(i));
      ASSERT_TRUE(connection.ok()) << "peer " << i << ": " << connection.status();
      EXPECT_EQ(peers[i].last_reply(), absl::StrCat("welcome ", i));
      EXPECT_TRUE(peers[i].Send(*connection, absl::StrCat(i), Pattern(100'000, i)).ok());
    });
  }
  go.Notify();
  for (std::thread& thread : threads) thread.join();
  server_.AwaitMessages(kPeers);
  std::set<uint64_t> connections;
  for (const LandedMessage& m : server_.messages()) {
    EXPECT_EQ(Crc(m.payload), Crc(Pattern(100'000, std::stoi(m.header))));
    connections.insert(m.connection.value);
  }
  EXPECT_EQ(connections.size(), static_cast<size_t>(kPeers));
  EXPECT_EQ(server_.transport().counters().connections_refused, 0u);
}

TEST_P(TransportConformance, OnePeerMayConnectSixteenTimesAtOnce) {
  StartBoth();
  constexpr int kConnections = 16;
  Completions completions;
  std::vector<ConnectionId> ids;
  for (int i = 0; i < kConnections; ++i) {
    ids.push_back(client_.transport().Connect(
        server_.transport().address(), "hello", absl::Seconds(20),
        [count = completions.Counter()](const StatusOr<std::string>& reply) { count(reply.status()); }));
  }
  completions.AwaitTotal(kConnections);
  EXPECT_EQ(completions.failed, 0);
  for (ConnectionId id : ids) EXPECT_TRUE(client_.Send(id, "x", Pattern(1000, 1)).ok());
  server_.AwaitMessages(kConnections);
}

TEST_P(TransportConformance, AHeaderBeyondTheLimitFailsAndTheConnectionLives) {
  StartConnected({.header_bytes_max = 64});
  EXPECT_EQ(client_.Send(to_server_, std::string(65, 'h')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client_.Send(to_server_, std::string(64, 'h')).ok());
  server_.AwaitMessages(1);
}

TEST_P(TransportConformance, AMessageBeyondTheReceiversLimitsClosesTheConnection) {
  server_.Start(backend(), {.payload_bytes_max = 1 << 20});
  client_.Start(backend());
  ConnectBoth();
  const std::vector<std::byte> payload = Pattern((1 << 20) + 1, 1);
  (void)client_.Send(to_server_, "too big", payload);
  EXPECT_FALSE(client_.AwaitClosed(to_server_).ok());
  EXPECT_EQ(server_.AwaitClosed(to_client_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(server_.messages().empty());
}

TEST_P(TransportConformance, ADroppedPayloadIsTakenOffTheWire) {
  server_.answer_message = [&](ConnectionId connection, std::string_view header, size_t bytes) -> StatusOr<Landing> {
    return header == "drop" ? Landing{.drop = true} : server_.Place(connection, header, bytes);
  };
  StartConnected();
  for (size_t bytes : {size_t{0}, size_t{1000}, size_t{2} << 20}) {
    EXPECT_TRUE(client_.Send(to_server_, "drop", Pattern(bytes, 1)).ok());
  }
  EXPECT_TRUE(client_.Send(to_server_, "keep", Pattern(100, 2)).ok());
  server_.AwaitMessages(1);
  EXPECT_EQ(server_.messages()[0].header, "keep");
}

TEST_P(TransportConformance, AnErrorOfTheReceiverClosesTheConnection) {
  server_.answer_message = [](ConnectionId, std::string_view, size_t) -> StatusOr<Landing> {
    return absl::InvalidArgumentError("no such frame kind: 77");
  };
  for (size_t bytes : {size_t{0}, size_t{100}, size_t{1} << 20}) {
    Node server, client;
    server.answer_message = server_.answer_message;
    server.Start(backend());
    client.Start(backend());
    StatusOr<ConnectionId> connection = client.Connect(server.transport().address());
    ASSERT_TRUE(connection.ok());
    (void)client.Send(*connection, "bad", Pattern(bytes, 1));
    EXPECT_EQ(client.AwaitClosed(*connection).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(server.AwaitClosed(server.accepted()[0]).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(TransportConformance, TheAcceptingSideMaySendAtOnceAndTheReplyComesFirst) {
  server_.answer_hello = [&](ConnectionId connection, std::string_view) {
    server_.transport().Send(connection, "early", {}, [](Status) {});
    return std::string("reply");
  };
  std::atomic<bool> connected{false};
  std::atomic<bool> early{false};
  client_.answer_message = [&](ConnectionId, std::string_view, size_t) -> StatusOr<Landing> {
    if (!connected) early = true;
    return Landing{.drop = true};
  };
  StartBoth();
  client_.transport().Connect(server_.transport().address(), "hello", absl::Seconds(20),
                              [&](StatusOr<std::string> reply) { connected = reply.ok(); });
  while (client_.transport().counters().messages_received == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(connected);
  EXPECT_FALSE(early);
}

TEST_P(TransportConformance, ClosingDuringTransfersLeavesMemoryQuiet) {
  for (const bool receiver_closes : {false, true}) {
    Node server, client;
    server.Start(backend());
    client.Start(backend());
    StatusOr<ConnectionId> connection = client.Connect(server.transport().address());
    ASSERT_TRUE(connection.ok());
    std::vector<std::vector<std::byte>> payloads(32, Pattern(2 << 20, 3));
    Completions completions;
    for (auto& payload : payloads) client.transport().Send(*connection, "x", payload, completions.Counter());
    server.AwaitMessages(2);
    if (receiver_closes) server.transport().Close(server.accepted()[0]);
    if (!receiver_closes) client.transport().Close(*connection);
    EXPECT_FALSE(server.AwaitClosed(server.accepted()[0]).ok());
    EXPECT_FALSE(client.AwaitClosed(*connection).ok());
    EXPECT_EQ(completions.total(), 32);
    EXPECT_EQ(server.landings_open(), 0u);
    server.ScribbleLandings();
    // The sender's memory is its own again: overwriting and freeing it may not disturb anybody.
    for (auto& payload : payloads) std::fill(payload.begin(), payload.end(), std::byte{0});
    payloads.clear();
    client.Stop();
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_EQ(server.ScribbledBytesChanged(), 0u);
  }
}

TEST_P(TransportConformance, DestroyingOneEndCompletesEverySendOfBoth) {
  for (const bool server_goes : {false, true}) {
    auto server = std::make_unique<Node>();
    auto client = std::make_unique<Node>();
    server->Start(backend());
    client->Start(backend());
    StatusOr<ConnectionId> connection = client->Connect(server->transport().address());
    ASSERT_TRUE(connection.ok());
    const ConnectionId back = server->accepted()[0];
    const std::vector<std::byte> payload = Pattern(1 << 20, 3);
    Completions completions;
    for (int i = 0; i < 20; ++i) {
      client->transport().Send(*connection, "x", payload, completions.Counter());
      server->transport().Send(back, "x", payload, completions.Counter());
    }
    (server_goes ? server : client).reset();
    const Status seen = server_goes ? client->AwaitClosed(*connection) : server->AwaitClosed(back);
    EXPECT_EQ(seen.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(completions.total(), 40);
  }
}

TEST_P(TransportConformance, SendingOnAConnectionThatIsGoneFails) {
  StartConnected();
  client_.transport().Close(to_server_);
  EXPECT_EQ(client_.AwaitClosed(to_server_).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(client_.Send(to_server_, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_.Send(ConnectionId{987654}, "x").code(), absl::StatusCode::kUnavailable);
  client_.transport().Close(to_server_);
  EXPECT_EQ(server_.AwaitClosed(to_client_).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, ARestartedPeerIsReachableOnTheSamePort) {
  server_.Start(backend());
  client_.Start(backend());
  ConnectBoth();
  const std::string address = server_.transport().address();
  for (int i = 0; i < 5; ++i) {
    server_.Stop();
    EXPECT_FALSE(client_.AwaitClosed(to_server_).ok());
    server_.Start(backend(), {.listen_address = address});
    StatusOr<ConnectionId> again = client_.Connect(address);
    ASSERT_TRUE(again.ok()) << again.status();
    to_server_ = *again;
    EXPECT_TRUE(client_.Send(to_server_, "again", Pattern(1 << 20, i)).ok());
    server_.AwaitMessages(i + 1);
  }
}

TEST_P(TransportConformance, AnAddressInUseIsAnErrorAtStart) {
  server_.Start(backend());
  const StatusOr<std::unique_ptr<Transport>> second =
      CreateTransport(backend(), {.listen_address = server_.transport().address()}, &client_);
  EXPECT_FALSE(second.ok());
  EXPECT_THAT(second.status().ToString(), HasSubstr(server_.transport().address()));
}

TEST_P(TransportConformance, ManyThreadsMaySend) {
  StartConnected();
  constexpr int kThreads = 8, kEach = 200;
  const std::vector<std::byte> payload = Pattern(3000, 3);
  Completions completions;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) client_.transport().Send(to_server_, "x", payload, completions.Counter());
    });
  }
  for (std::thread& thread : threads) thread.join();
  completions.AwaitTotal(kThreads * kEach);
  EXPECT_EQ(completions.failed, 0);
  server_.AwaitMessages(kThreads * kEach);
}

TEST_P(TransportConformance, PendingSendsAreLimited) {
  server_.answer_message = [&](ConnectionId, std::string_view, size_t) -> StatusOr<Landing> {
    release_.WaitForNotification();
    return Landing{.drop = true};
  };
  StartConnected({.sends_pending_max = 4});
  const std::vector<std::byte> payload = Pattern(8 << 20, 1);
  Completions completions;
  for (int i = 0; i < 10; ++i) client_.transport().Send(to_server_, "x", payload, completions.Counter());
  completions.AwaitTotal(6);
  EXPECT_EQ(completions.exhausted, 6);
  release_.Notify();
  completions.AwaitTotal(10);
  EXPECT_EQ(completions.ok, 4);
}

TEST_P(TransportConformance, AnIdleTransportSleeps) {
  StartConnected({.peer_silence_max = absl::Minutes(5)});
  ASSERT_TRUE(client_.Send(to_server_, "x", Pattern(8 << 20, 1)).ok());
  server_.AwaitMessages(1);
  absl::SleepFor(absl::Milliseconds(200));
  const uint64_t before = client_.transport().counters().wakeups + server_.transport().counters().wakeups;
  absl::SleepFor(absl::Milliseconds(500));
  const uint64_t after = client_.transport().counters().wakeups + server_.transport().counters().wakeups;
  EXPECT_LE(after - before, 2u);
}

}  // namespace sluice
