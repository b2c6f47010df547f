// The ports of the UCX transport and those who have no business there, such as garbage.
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "tests/transport/node.h"
#include "transport/control_frame.h"
#include "transport/socket.h"

namespace sluice {

namespace {

// A raw TCP connection to one of the ports.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    StatusOr<SocketAddress> to = SocketAddress::Parse(address, false);
    SLUICE_CHECK(to.ok());
    fd_ = UniqueFd(socket(to->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connected_ = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to->storage), to->bytes) == 0;
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }
  void Say(std::string_view bytes) { (void)!send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Reads until the other side closes; false if it has not within a minute.
  bool AwaitClosed() {
    char buffer[4096];
    for (;;) {
      pollfd readable{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 60'000) <= 0) return false;
      if (recv(fd_.get(), buffer, sizeof(buffer), 0) <= 0) return true;
    }
  }

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

// Stands between a connecting process and a listener. Passes everything on and keeps what the listener said; later it
// says the same to whoever connects, without the listener. One connection at a time.
class Eavesdropper {
 public:
  explicit Eavesdropper(std::string listener) : to_(std::move(listener)) {
    StatusOr<UniqueFd> fd = Listen(*SocketAddress::Parse("127.0.0.1:0", false));
    SLUICE_CHECK(fd.ok());
    listener_ = *std::move(fd);
    fcntl(listener_.get(), F_SETFL, 0);
    thread_ = std::thread([this] {
      for (;;) {
        const UniqueFd client(accept(listener_.get(), nullptr, nullptr));
        if (!client.ok() || stop_) return;
        replay_ ? Replay(client.get()) : Relay(client.get());
      }
    });
  }
  ~Eavesdropper() {
    stop_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return SocketAddress::Local(listener_.get())->ToString(); }
  void ReplayFromNowOn() { replay_ = true; }

 private:
  void Relay(int client) {
    Stranger server(to_);
    char buffer[65536];
    for (;;) {
      pollfd readable[2] = {{.fd = client, .events = POLLIN}, {.fd = server.fd(), .events = POLLIN}};
      if (stop_ || replay_ || poll(readable, 2, 20) < 0) return;
      for (int side : {0, 1}) {
        if ((readable[side].revents & (POLLIN | POLLHUP)) == 0) continue;
        const ssize_t bytes = recv(readable[side].fd, buffer, sizeof(buffer), 0);
        if (bytes <= 0) return;
        if (side == 1) said_.append(buffer, static_cast<size_t>(bytes));
        (void)!send(readable[1 - side].fd, buffer, static_cast<size_t>(bytes), MSG_NOSIGNAL);
      }
    }
  }
  void Replay(int client) {
    (void)!send(client, said_.data(), said_.size(), MSG_NOSIGNAL);
    char buffer[65536];
    pollfd readable = {.fd = client, .events = POLLIN};
    while (!stop_ && poll(&readable, 1, 20) >= 0) {
      if (readable.revents != 0 && recv(client, buffer, sizeof(buffer), 0) <= 0) return;
    }
  }

  const std::string to_;
  UniqueFd listener_;
  std::atomic<bool> stop_{false}, replay_{false};
  std::string said_;  // of the thread
  std::thread thread_;
};

// Every TCP port that this process listens on, UCX's own included.
std::vector<std::string> ListeningAddresses() {
  std::set<std::string> own;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char target[128] = {};
    if (readlink(absl::StrCat("/proc/self/fd/", entry->d_name).c_str(), target, sizeof(target) - 1) > 0)
      own.insert(target);
  }
  closedir(directory);
  std::vector<std::string> addresses;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (state != "0A" || !own.contains(absl::StrCat("socket:[", inode, "]"))) continue;
    in_addr ip{.s_addr = static_cast<in_addr_t>(std::stoul(local.substr(0, 8), nullptr, 16))};
    SocketAddress address{.bytes = sizeof(sockaddr_in)};
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_addr = ip;
    v4->sin_port = htons(static_cast<uint16_t>(std::stoul(local.substr(9), nullptr, 16)));
    addresses.push_back(address.ToString());
  }
  return addresses;
}

class UcxStrangers : public testing::Test {
 protected:
  void SetUp() override {
    server_.Start("ucx", {.auth_key = "the key"});
    client_.Start("ucx", {.auth_key = "the key"});
    StatusOr<ConnectionId> connection = client_.Connect(address());
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
  }
  // Whoever was served before is served still, and newcomers are let in.
  void TearDown() override {
    const size_t before = server_.messages().size();
    EXPECT_TRUE(client_.Send(connection_, "still here", Pattern(1 << 20, 1)).ok());
    StatusOr<ConnectionId> second = client_.Connect(address());
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_TRUE(client_.Send(*second, "here too", Pattern(100, 1)).ok());
    server_.AwaitMessages(before + 2);
  }
  std::string address() { return server_.transport().address(); }

  Node server_;
  Node client_;
  ConnectionId connection_;
};

TEST_F(UcxStrangers, GarbageIsAnsweredByClosing) {
  Rng rng(1);
  for (size_t bytes : {1, 15, 16, 17, 1000, 100'000}) {
    std::string garbage(bytes, '\0');
    for (char& c : garbage) c = static_cast<char>(rng.Bits());
    garbage[0] = 'x';
    Stranger stranger(address());
    stranger.Say(garbage);
    EXPECT_TRUE(stranger.AwaitClosed()) << bytes << " bytes of garbage";
  }
}

TEST_F(UcxStrangers, FramesThatLieAreAnsweredByClosing) {
  const std::string hello = EncodeControlFrame(ControlKind::kHello, Encode(Introduction{.words = "hello"}));
  std::string too_long = hello;
  std::memset(&too_long[8], 0xFF, 4);
  std::string wrong_crc = hello;
  wrong_crc.back() ^= 1;
  std::string wrong_version = hello;
  wrong_version[3] = '1';
  const std::string wrong_kind = EncodeControlFrame(static_cast<ControlKind>(77), "");
  const std::string out_of_place = EncodeControlFrame(ControlKind::kWelcome, "");
  Introduction liar{.words = "hello"};
  std::string long_address = Encode(liar);
  std::memset(&long_address[sizeof(Nonce) + sizeof(Mac) + 8], 0xFF, 4);
  for (const std::string& lie :
       {too_long, wrong_crc, wrong_version, wrong_kind, out_of_place, EncodeControlFrame(ControlKind::kHello, "short"),
        EncodeControlFrame(ControlKind::kHello, long_address)}) {
    Stranger stranger(address());
    stranger.Say(lie);
    EXPECT_TRUE(stranger.AwaitClosed());
  }
}

TEST_F(UcxStrangers, AHelloWithoutTheKeyIsRefusedBeforeTheReceiverHearsOfIt) {
  Node outsider;
  outsider.Start("ucx", {.auth_key = "another key"});
  EXPECT_EQ(outsider.Connect(address()).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(server_.accepted().size(), 1u);
}

TEST_F(UcxStrangers, AReplayedHelloIsRefused) {
  Introduction hello{.secret = 5, .worker_address = "anything", .words = "hello"};
  hello.mac = HelloMac("the key", /*challenge=*/Nonce{}, hello);
  Stranger stranger(address());
  stranger.Say(EncodeControlFrame(ControlKind::kHello, Encode(hello)));
  EXPECT_TRUE(stranger.AwaitClosed());
  EXPECT_EQ(server_.accepted().size(), 1u);
}

// Whoever has seen a handshake knows a challenge and the welcome that went with it, but not the key.
TEST_F(UcxStrangers, AReplayedWelcomeIsRefused) {
  Eavesdropper between(address());
  Node victim;
  victim.Start("ucx", {.auth_key = "the key"});
  ASSERT_TRUE(victim.Connect(between.address()).ok());
  between.ReplayFromNowOn();
  const Status status = victim.Connect(between.address(), "hello", absl::Seconds(5)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
}

TEST_F(UcxStrangers, TruncatedFramesTimeOut) {
  Node quick;
  quick.Start("ucx", {.peer_silence_max = absl::Milliseconds(200)});
  const std::string hello = EncodeControlFrame(ControlKind::kHello, Encode(Introduction{.words = "hello"}));
  for (size_t bytes : {size_t{0}, size_t{3}, size_t{16}, hello.size() - 1}) {
    Stranger stranger(quick.transport().address());
    stranger.Say(std::string_view(hello).substr(0, bytes));
    EXPECT_TRUE(stranger.AwaitClosed()) << "after " << bytes << " bytes";
  }
}

TEST_F(UcxStrangers, AFloodOfSilentConnectionsKeepsNobodyOut) {
  std::vector<std::unique_ptr<Stranger>> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(std::make_unique<Stranger>(address()));
  StatusOr<ConnectionId> connection = client_.Connect(address());
  EXPECT_TRUE(connection.ok()) << connection.status();
}

TEST_F(UcxStrangers, GarbageOnUcxsOwnPortsDoesNoHarm) {
  const std::vector<std::string> addresses = ListeningAddresses();
  EXPECT_GE(addresses.size(), 3u) << "the published ports and UCX's";
  Rng rng(2);
  for (const std::string& port : addresses) {
    EXPECT_THAT(port, testing::StartsWith("127.0.0.1:")) << "only this machine was asked for";
    for (size_t bytes : {1, 8, 100, 100'000}) {
      std::string garbage(bytes, '\0');
      for (char& c : garbage) c = static_cast<char>(rng.Bits());
      Stranger stranger(port);
      stranger.Say(garbage);
    }
  }
}

}  // namespace

}  // namespace sluice
