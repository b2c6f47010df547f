// Two real processes: the peer is this program started again, which may be stopped and killed.
#include <signal.h>

#include "absl/time/clock.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "tests/transport/node.h"
#include "tests/transport/peer.h"

namespace sluice {

namespace {

TEST(UcxProcess, MessagesGoThereAndBack) {
  Peer peer("echo", "127.0.0.1:0");
  Node node;
  node.Start("ucx");
  StatusOr<ConnectionId> connection = node.Connect(peer.AwaitAddress());
  ASSERT_TRUE(connection.ok()) << connection.status();
  size_t count = 0;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{65536}, size_t{8} << 20}) {
    const std::vector<std::byte> payload = Pattern(bytes, bytes);
    ASSERT_TRUE(node.Send(*connection, absl::StrCat(bytes), payload).ok());
    node.AwaitMessages(++count);
    const LandedMessage echoed = node.messages().back();
    EXPECT_EQ(echoed.header, absl::StrCat(bytes));
    EXPECT_TRUE(echoed.payload == payload) << bytes << " bytes came back changed";
  }
}

// UCX aborts a process that is sent longer segments than it takes, so the size is no operator's business.
TEST(UcxProcess, SegmentSizesOfTheEnvironmentAreNotUsed) {
  Peer peer("echo", "127.0.0.1:0", "", {"env", "UCX_TCP_RX_SEG_SIZE=16K"});
  Node node;
  node.Start("ucx");
  StatusOr<ConnectionId> connection = node.Connect(peer.AwaitAddress());
  ASSERT_TRUE(connection.ok()) << connection.status();
  const std::vector<std::byte> payload = Pattern(4 << 20, 1);
  ASSERT_TRUE(node.Send(*connection, "x", payload).ok());
  node.AwaitMessages(1);
  EXPECT_TRUE(node.messages()[0].payload == payload);
}

TEST(UcxProcess, AKilledPeerIsNoticedAtOnceAndLeavesMemoryQuiet) {
  Node node;
  node.Start("ucx", {.peer_silence_max = absl::Minutes(5)});
  Peer peer("stream", node.transport().address());
  node.AwaitMessages(20);
  peer.Kill();
  EXPECT_EQ(node.AwaitClosed(node.accepted()[0]).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(node.landings_open(), 0u);
  node.ScribbleLandings();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(node.ScribbledBytesChanged(), 0u);
}

TEST(UcxProcess, AStoppedPeerIsClosedAfterTheSilence) {
  Peer peer("echo", "127.0.0.1:0");
  Node node;
  node.Start("ucx", {.peer_silence_max = absl::Seconds(1)});
  StatusOr<ConnectionId> connection = node.Connect(peer.AwaitAddress());
  ASSERT_TRUE(connection.ok()) << connection.status();
  peer.Signal(SIGSTOP);
  const std::vector<std::byte> payload = Pattern(8 << 20, 1);
  EXPECT_FALSE(node.Send(*connection, "nobody takes this", payload).ok());
  const Status why = node.AwaitClosed(*connection);
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()), testing::HasSubstr("silent"));
}

TEST(UcxProcess, AKilledPeerIsReachableAgainOnItsPort) {
  Node node;
  node.Start("ucx");
  std::string address = "127.0.0.1:0";
  for (int i = 0; i < 5; ++i) {
    Peer peer("echo", address);
    address = peer.AwaitAddress();
    StatusOr<ConnectionId> connection = node.Connect(address);
    ASSERT_TRUE(connection.ok()) << connection.status();
    ASSERT_TRUE(node.Send(*connection, "x", Pattern(1 << 20, 1)).ok());
    node.AwaitMessages(i + 1);
    peer.Kill();
    EXPECT_EQ(node.AwaitClosed(*connection).code(), absl::StatusCode::kUnavailable);
  }
}

// The moments at which a peer dies are spread over handshake, wire-up and first messages.
TEST(UcxProcess, PeersThatDieWhileConnectingDoNoHarm) {
  Node node;
  node.keep_payloads = false;
  node.Start("ucx");
  for (int i = 0; i < 20; ++i) {
    Peer peer("stream", node.transport().address());
    peer.AwaitAddress();
    absl::SleepFor(absl::Microseconds(i * 1500));
  }
  Peer peer("stream", node.transport().address());
  const size_t before = node.messages().size();
  node.AwaitMessages(before + 10);
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == "--peer") return sluice::RunPeer(argv[2], argv[3], argv[4]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
