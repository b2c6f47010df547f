// The faulty transport over each real one: without faults it is that transport, and each fault happens as asked.
#include "absl/time/clock.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "tests/transport/conformance.h"

namespace sluice {

constexpr std::string_view kFaulty[] = {"faulty-loopback", "faulty-ucx"};

INSTANTIATE_TEST_SUITE_P(Faulty, TransportConformance, testing::ValuesIn(kFaulty));

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FaultyTransport : public testing::TestWithParam<std::string_view> {
 protected:
  // Faults are the server's. REQUIRES: called once.
  void Start(FaultPolicy faults) {
    server_.Start(GetParam(), {.faults = std::move(faults)});
    client_.Start(GetParam());
    connection_ = Connect();
  }
  void Start(FaultRule rule) { Start(FaultPolicy{.rules = {std::move(rule)}}); }
  ConnectionId Connect() {
    StatusOr<ConnectionId> connection = client_.Connect(server_.transport().address());
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *connection : ConnectionId{};
  }

  // Messages "0", "1", ... each with its own payload, one after the other.
  void Send(int count, size_t payload_bytes = 2000) {
    for (int i = 0; i < count; ++i)
      EXPECT_TRUE(client_.Send(connection_, absl::StrCat(i), Pattern(payload_bytes, i)).ok()) << "message " << i;
  }
  std::vector<std::string> AwaitHeaders(size_t count) {
    server_.AwaitMessages(count);
    std::vector<std::string> headers;
    for (const LandedMessage& m : server_.messages()) headers.push_back(m.header);
    return headers;
  }
  uint64_t Count(FaultKind kind) { return server_.transport().counters().faults[static_cast<size_t>(kind)]; }
  uint64_t CountAll() {
    uint64_t all = 0;
    for (uint64_t count : server_.transport().counters().faults) all += count;
    return all;
  }

  Node server_;
  Node client_;
  ConnectionId connection_;
};

int BitsChanged(absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  EXPECT_EQ(a.size(), b.size());
  int bits = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    bits += __builtin_popcount(std::to_integer<unsigned>(a[i] ^ b[i]));
  return bits;
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST_P(FaultyTransport, ADroppedMessageIsNeverOfferedAndItsSenderIsToldThatItWent) {
  Start({.kind = FaultKind::kDrop, .at_message = 2});
  Send(5);
  EXPECT_THAT(AwaitHeaders(4), ElementsAre("0", "1", "3", "4"));
  EXPECT_EQ(Count(FaultKind::kDrop), 1u);
  EXPECT_EQ(CountAll(), 1u);
}

TEST_P(FaultyTransport, ADelayedMessageIsPassedByOthers) {
  Start({.kind = FaultKind::kDelay, .at_message = 0, .duration = absl::Seconds(1)});
  Send(3);
  EXPECT_THAT(AwaitHeaders(3), ElementsAre("1", "2", "0"));
  EXPECT_EQ(server_.messages()[2].payload, Pattern(2000, 0));
  EXPECT_EQ(Count(FaultKind::kDelay), 1u);
}

TEST_P(FaultyTransport, ADuplicateFollowsItsOriginal) {
  Start({.kind = FaultKind::kDuplicate, .at_message = 1});
  Send(3, 100'000);
  EXPECT_THAT(AwaitHeaders(4), ElementsAre("0", "1", "1", "2"));
  for (size_t i : {1, 2}) EXPECT_EQ(server_.messages()[i].payload, Pattern(100'000, 1));
  EXPECT_EQ(Count(FaultKind::kDuplicate), 1u);
}

TEST_P(FaultyTransport, AReorderedMessageChangesPlacesWithTheNext) {
  Start({.kind = FaultKind::kReorder, .at_message = 1, .duration = absl::InfiniteDuration()});
  Send(4);
  EXPECT_THAT(AwaitHeaders(4), ElementsAre("0", "2", "1", "3"));
  EXPECT_EQ(server_.messages()[2].payload, Pattern(2000, 1));
  EXPECT_EQ(Count(FaultKind::kReorder), 1u);
}

TEST_P(FaultyTransport, AReorderedMessageThatIsTheLastComesInTheEnd) {
  Start({.kind = FaultKind::kReorder, .at_message = 1, .duration = absl::Milliseconds(50)});
  Send(2);
  EXPECT_THAT(AwaitHeaders(2), ElementsAre("0", "1"));
}

TEST_P(FaultyTransport, ACorruptPayloadHasOneBitFlipped) {
  Start({.kind = FaultKind::kCorruptPayload, .at_message = 1});
  Send(3, 100'000);
  EXPECT_THAT(AwaitHeaders(3), ElementsAre("0", "1", "2"));
  for (int i : {0, 1, 2})
    EXPECT_EQ(BitsChanged(server_.messages()[i].payload, Pattern(100'000, i)), i == 1 ? 1 : 0) << "message " << i;
  EXPECT_EQ(Count(FaultKind::kCorruptPayload), 1u);
}

TEST_P(FaultyTransport, ACorruptHeaderHasOneBitFlipped) {
  Start({.kind = FaultKind::kCorruptHeader, .at_message = 1});
  Send(3);
  const std::vector<std::string> headers = AwaitHeaders(3);
  EXPECT_EQ(BitsChanged(Bytes(headers[1]), Bytes("1")), 1);
  EXPECT_EQ(server_.messages()[1].payload, Pattern(2000, 1));
  EXPECT_THAT(headers, ElementsAre("0", headers[1], "2"));
  EXPECT_EQ(Count(FaultKind::kCorruptHeader), 1u);
}

TEST_P(FaultyTransport, ATruncatedPayloadIsOfferedWithoutItsEnd) {
  Start({.kind = FaultKind::kTruncate, .at_message = 1});
  Send(3, 100'000);
  EXPECT_THAT(AwaitHeaders(3), ElementsAre("0", "1", "2"));
  std::vector<std::byte> expected = Pattern(100'000, 1);
  const std::vector<std::byte> got = server_.messages()[1].payload;
  ASSERT_LT(got.size(), expected.size());
  expected.resize(got.size());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(Count(FaultKind::kTruncate), 1u);
}

TEST_P(FaultyTransport, AStallHoldsOneConnectionAndThenGivesEverythingInOrder) {
  Start({.kind = FaultKind::kStall, .at_message = 1, .duration = absl::Milliseconds(300)});
  Send(6);
  EXPECT_THAT(AwaitHeaders(6), ElementsAre("0", "1", "2", "3", "4", "5"));
  EXPECT_EQ(Count(FaultKind::kStall), 1u);
}

TEST_P(FaultyTransport, AStalledConnectionIsSilentWhileOthersAreServed) {
  Start({.kind = FaultKind::kStall,
         .at_message = 0,
         .duration = absl::InfiniteDuration(),
         .matches = [](std::string_view header, size_t) { return header == "1"; }});
  const ConnectionId other = Connect();
  Send(5);
  AwaitHeaders(1);
  EXPECT_TRUE(client_.Send(other, "other", Pattern(2000, 9)).ok());
  EXPECT_THAT(AwaitHeaders(2), ElementsAre("0", "other"));
  client_.transport().Close(connection_);
  EXPECT_EQ(server_.AwaitClosed(server_.accepted()[0]).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.messages().size(), 2u) << "what was held goes with its connection";
}

TEST_P(FaultyTransport, AKilledConnectionEndsAtBothSidesAndTheNextOneWorks) {
  Start({.kind = FaultKind::kKill, .at_message = 2});
  Send(2);
  (void)client_.Send(connection_, "2", Pattern(100'000, 2));
  EXPECT_EQ(client_.AwaitClosed(connection_).code(), absl::StatusCode::kUnavailable);
  const Status why = server_.AwaitClosed(server_.accepted()[0]);
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()), HasSubstr("a fault"));
  EXPECT_THAT(AwaitHeaders(2), ElementsAre("0", "1"));
  connection_ = Connect();
  Send(1);
  EXPECT_THAT(AwaitHeaders(3), ElementsAre("0", "1", "0"));
  EXPECT_EQ(Count(FaultKind::kKill), 1u);
}

TEST_P(FaultyTransport, FaultsOfOneMessageAddUp) {
  Start({.rules = {{.kind = FaultKind::kCorruptPayload, .at_message = 0},
                   {.kind = FaultKind::kDuplicate, .at_message = 0},
                   {.kind = FaultKind::kReorder, .at_message = 0, .duration = absl::InfiniteDuration()}}});
  Send(2);
  EXPECT_THAT(AwaitHeaders(3), ElementsAre("1", "0", "0"));
  for (size_t i : {1, 2}) EXPECT_EQ(BitsChanged(server_.messages()[i].payload, Pattern(2000, 0)), 1);
  EXPECT_EQ(CountAll(), 3u);
}

TEST_P(FaultyTransport, ARuleStrikesWhatItMatches) {
  Start({.kind = FaultKind::kDrop, .probability = 1, .matches = [](std::string_view header, size_t bytes) {
           return header == "1" && bytes == 2000;
         }});
  Send(3);
  EXPECT_THAT(AwaitHeaders(2), ElementsAre("0", "2"));
}

TEST_P(FaultyTransport, TheSameSeedGivesTheSameMessages) {
  std::vector<uint32_t> first;
  for (int round = 0; round < 2; ++round) {
    Node server, client;
    StatusOr<FaultPolicy> faults =
        FaultPolicy::Parse("seed=11,drop=0.2,duplicate=0.2,corrupt-payload=0.3,truncate=0.2,corrupt-header=0.1");
    ASSERT_TRUE(faults.ok()) << faults.status();
    server.Start(GetParam(), {.faults = *faults});
    client.Start(GetParam());
    StatusOr<ConnectionId> connection = client.Connect(server.transport().address());
    ASSERT_TRUE(connection.ok()) << connection.status();
    for (int i = 0; i < 60; ++i)
      ASSERT_TRUE(client.Send(*connection, absl::StrCat("message ", i), Pattern(500, i)).ok());
    while (server.transport().counters().messages_received < 60) absl::SleepFor(absl::Milliseconds(1));
    server.Stop();
    std::vector<uint32_t> seen;
    for (const LandedMessage& m : server.messages())
      seen.push_back(Crc32c(m.payload.data(), m.payload.size(), Crc32c(m.header.data(), m.header.size())));
    EXPECT_GT(seen.size(), 40u);
    if (round == 0) first = seen;
    EXPECT_EQ(seen, first);
  }
}

TEST_P(FaultyTransport, WhatIsHeldIsLimited) {
  Start({.rules = {{.kind = FaultKind::kStall, .at_message = 0, .duration = absl::InfiniteDuration()}},
         .held_bytes_max = 300'000});
  Send(3, 100'000);
  (void)client_.Send(connection_, "one too many", Pattern(1, 1));
  EXPECT_EQ(server_.AwaitClosed(server_.accepted()[0]).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(client_.AwaitClosed(connection_).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(server_.messages().empty());
}

TEST_P(FaultyTransport, AnErrorOfTheReceiverAboutAHeldMessageClosesTheConnection) {
  server_.answer_message = [](ConnectionId, std::string_view, size_t) -> StatusOr<Landing> {
    return absl::InvalidArgumentError("no such frame kind: 77");
  };
  Start({.kind = FaultKind::kDelay, .at_message = 0, .duration = absl::Milliseconds(1)});
  Send(1);
  EXPECT_EQ(client_.AwaitClosed(connection_).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.AwaitClosed(server_.accepted()[0]).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(FaultyTransport, ClosingWithMessagesHeldIsQuiet) {
  Start({.kind = FaultKind::kDelay, .probability = 1, .duration = absl::Milliseconds(20)});
  Send(50);
  server_.Stop();
  EXPECT_EQ(client_.AwaitClosed(connection_).code(), absl::StatusCode::kUnavailable);
}

TEST(Backends, ARealTransportTakesNoFaults) {
  Node node;
  for (const TransportBackend& backend : TransportBackends()) {
    const StatusOr<std::unique_ptr<Transport>> transport =
        CreateTransport(backend.name, {.faults = {.rules = {{.kind = FaultKind::kDrop, .at_message = 0}}}}, &node);
    EXPECT_EQ(transport.ok(), backend.takes_faults) << backend.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Faulty, FaultyTransport, testing::ValuesIn(kFaulty));

}  // namespace

}  // namespace sluice
