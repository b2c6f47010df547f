// The UCX transport on real interfaces: those of this machine, and a veth pair between two network namespaces that the
// test makes and removes.
#include <unistd.h>

#include <cstdlib>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/transport/node.h"
#include "tests/transport/peer.h"
#include "transport/interface.h"

namespace sluice {

namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Whether two nodes with these options reach each other at the address that the first one tells.
Status Pass(const TransportOptions& server_options, const TransportOptions& client_options) {
  Node server, client;
  server.Start("ucx", server_options);
  client.Start("ucx", client_options);
  SLUICE_ASSIGN_OR_RETURN(const ConnectionId connection, client.Connect(server.transport().address()));
  SLUICE_RETURN_IF_ERROR(client.Send(connection, "x", Pattern(1 << 20, 1)));
  server.AwaitMessages(1);
  return absl::OkStatus();
}

Status StartStatus(std::string_view backend, const TransportOptions& options) {
  Node unused;
  return CreateTransport(backend, options, &unused).status();
}

TEST(UcxInterface, AWildcardListenerTellsTheInterfacesAddress) {
  Node node;
  node.Start("ucx", {.listen_address = "0.0.0.0:0", .interface = "lo"});
  EXPECT_THAT(node.transport().address(), StartsWith("127.0.0.1:"));
  EXPECT_TRUE(Pass({.listen_address = "0.0.0.0:0", .interface = "lo"}, {.interface = "lo"}).ok());
}

TEST(UcxInterface, AWrongNameIsAnErrorThatNamesWhatThereIs) {
  for (const char* listen_address : {"", "127.0.0.1:0"}) {
    const Status status = StartStatus("ucx", {.listen_address = listen_address, .interface = "nosuch0"});
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("nosuch0"), HasSubstr("lo (127.0.0.1)")));
  }
}

TEST(UcxInterface, ListeningOnAnAddressOfAnotherInterfaceIsAnError) {
  const Status status = StartStatus("ucx", {.listen_address = "192.0.2.77:0", .interface = "lo"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("192.0.2.77"), HasSubstr("lo (127.0.0.1)")));
}

TEST(UcxInterface, ATransportWithinOneProcessHasNone) {
  for (const TransportBackend& backend : TransportBackends()) {
    const Status status = StartStatus(backend.name, {.interface = "lo"});
    EXPECT_EQ(status.ok(), backend.crosses_processes) << backend.name << ": " << status;
  }
}

TEST(UcxAddress, AWildcardListenerWithoutAnInterfaceTellsAnAddressThatIsReachable) {
  Node node;
  node.Start("ucx", {.listen_address = "0.0.0.0:0"});
  EXPECT_THAT(node.transport().address(), testing::Not(StartsWith("0.0.0.0:")));
  const Status passed = Pass({.listen_address = "0.0.0.0:0"}, {});
  EXPECT_TRUE(passed.ok()) << passed;
}

TEST(UcxAddress, TheAdvertisedHostIsToldWithTheRealPort) {
  Node node;
  node.Start("ucx", {.listen_address = "0.0.0.0:0", .advertise_host = "127.0.0.9"});
  EXPECT_THAT(node.transport().address(), StartsWith("127.0.0.9:"));
  EXPECT_THAT(node.transport().address(), testing::Not(testing::EndsWith(":0")));
  const Status passed = Pass({.listen_address = "0.0.0.0:0", .advertise_host = "127.0.0.9"}, {});
  EXPECT_TRUE(passed.ok()) << passed;
}

TEST(UcxAddress, AFixedPortIsTheOneThatIsTold) {
  Node node;
  node.Start("ucx");
  const std::string address = node.transport().address();  // free again after the stop
  node.Stop();
  node.Start("ucx", {.listen_address = address});
  EXPECT_EQ(node.transport().address(), address);
}

bool Shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// Two namespaces joined by a veth pair: `a0` with 10.77.0.1 here, `b0` with 10.77.0.2 there.
class UcxNamespaces : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    if (!Shell("ip -V")) GTEST_SKIP() << "network namespaces need iproute2";
    if (!Shell("ip netns add " + a_)) GTEST_SKIP() << "network namespaces are not allowed here";
    const bool made =
        Shell("ip netns add " + b_) && Shell("ip -n " + a_ + " link add a0 type veth peer name b0 netns " + b_) &&
        Shell("ip -n " + a_ + " addr add 10.77.0.1/24 dev a0") &&
        Shell("ip -n " + b_ + " addr add 10.77.0.2/24 dev b0") && Shell("ip -n " + a_ + " link set lo up") &&
        Shell("ip -n " + a_ + " link set a0 up") && Shell("ip -n " + b_ + " link set lo up") && SetLink("up");
    if (!made) GTEST_SKIP() << "veth pairs are not allowed here";
  }
  void TearDown() override {
    Shell("ip netns del " + a_);
    Shell("ip netns del " + b_);
  }
  static std::vector<std::string> Inside(const std::string& name) { return {"ip", "netns", "exec", name}; }
  bool SetLink(const std::string& state) { return Shell("ip -n " + b_ + " link set b0 " + state); }

  // A link that was set up a moment ago is not running yet; soon it has to be.
  static std::string CallUntilOk(Peer& caller) {
    std::string answer = caller.Call();
    for (int i = 0; i < 50 && answer != "ok"; ++i) {
      absl::SleepFor(absl::Milliseconds(100));
      answer = caller.Call();
    }
    return answer;
  }

  const std::string a_ = absl::StrCat("sluice-a-", getpid());
  const std::string b_ = absl::StrCat("sluice-b-", getpid());
};

TEST_F(UcxNamespaces, PeersReachEachOtherByInterfaceAndByAddress) {
  for (const char* listen_address : {"0.0.0.0:0", "10.77.0.1:0", "0.0.0.0:4711"}) {
    Peer echo("echo", listen_address, "a0", Inside(a_));
    const std::string address = echo.AwaitAddress();
    EXPECT_THAT(address, StartsWith("10.77.0.1:"));
    EXPECT_THAT(address, testing::Not(testing::EndsWith(":0")));
    for (const char* interface : {"b0", ""}) {
      Peer caller("call", address, interface, Inside(b_));
      EXPECT_EQ(CallUntilOk(caller), "ok") << listen_address << " from interface \"" << interface << "\"";
    }
  }
}

TEST_F(UcxNamespaces, TheWrongInterfaceDoesNotReachThePeer) {
  Peer echo("echo", "10.77.0.1:0", "a0", Inside(a_));
  Peer caller("call", echo.AwaitAddress(), "lo", Inside(b_));
  EXPECT_THAT(caller.Call(), testing::Not("ok"));
}

// A process that starts before its network does.
TEST_F(UcxNamespaces, ALinkThatComesUpAfterTheFirstCallIsUsed) {
  Peer echo("echo", "10.77.0.1:0", "a0", Inside(a_));
  const std::string address = echo.AwaitAddress();
  ASSERT_TRUE(SetLink("down"));
  Peer caller("call", address, "", Inside(b_));
  EXPECT_THAT(caller.Call(), testing::Not("ok"));
  ASSERT_TRUE(SetLink("up"));
  EXPECT_EQ(CallUntilOk(caller), "ok");
}

// Nothing is remembered against a peer whose link was down.
TEST_F(UcxNamespaces, ALinkThatComesBackIsUsedAgain) {
  for (const char* interface : {"b0", ""}) {
    Peer echo("echo", "10.77.0.1:0", "a0", Inside(a_));
    Peer caller("call", echo.AwaitAddress(), interface, Inside(b_));
    EXPECT_EQ(CallUntilOk(caller), "ok");
    ASSERT_TRUE(SetLink("down"));
    EXPECT_THAT(caller.Call(), testing::Not("ok"));
    absl::SleepFor(absl::Seconds(3));
    ASSERT_TRUE(SetLink("up"));
    EXPECT_EQ(CallUntilOk(caller), "ok") << "interface \"" << interface << "\"";
  }
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == "--peer") return sluice::RunPeer(argv[2], argv[3], argv[4]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
