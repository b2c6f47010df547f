// What may be thrown at a real decode process's KV port: by strangers with raw sockets, by peers with another key, and
// by one that has the key and lies. Nothing crashes, nothing leaks, others are served.
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "model/kv_frame.h"
#include "tests/decode/pair.h"
#include "tests/transport/node.h"
#include "transport/socket.h"

namespace sluice::decode {
namespace {

const char kTinyModel[] = SLUICE_TEST_DATA "/tiny/llama-gqa";
constexpr int kPromptTokens = 40;

SamplingParams Greedy() {
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.max_tokens = 8;
  sampling.ignore_eos = true;
  return sampling;
}

std::vector<TokenId> Prompt() {
  std::vector<TokenId> prompt;
  for (int i = 0; i < kPromptTokens; ++i) prompt.push_back(7 + i);
  return prompt;
}

std::string RandomBytes(size_t bytes, uint64_t seed) {
  std::string garbage(bytes, '\0');
  Rng rng(seed);
  for (char& c : garbage) c = static_cast<char>(rng.Bits());
  return garbage;
}

class KvPortTest : public testing::Test {
 protected:
  void SetUp() override {
    status_ = decode_.GetStatus();
    liar_.Start("ucx", {.auth_key = kPairKey});
  }
  // Whatever came before: a request is served right, and no page is missing.
  void TearDown() override {
    const StatusOr<Answer> answer = Ask(decode_, prefill_, Prompt(), Greedy());
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->tokens, AnswerWhole(kTinyModel, Prompt(), Greedy()).tokens);
    EXPECT_TRUE(decode_.AllPagesComeBack());
  }

  std::string Hello() {
    return MakeHello("prefill", Epoch{4711}, status_.model_hash(), status_.layout(), KvCodec::kBf16, {KvCodec::kBf16})
        .SerializeAsString();
  }
  ConnectionId Connected() {
    StatusOr<ConnectionId> connection = liar_.Connect(status_.kv_address(), Hello());
    SLUICE_CHECK(connection.ok(), "the liar's hello is right: ", connection.status().ToString());
    return *connection;
  }
  // The header of a KV frame of this reservation as its prefill would send it.
  KvFrameHeader Header(const Reserved& reserved, size_t payload_bytes) {
    KvFrameHeader header;
    header.number = 1;
    header.layers = 1;
    header.tokens = kPromptTokens;
    header.payload_bytes = payload_bytes;
    header.request = RequestId{reserved.request_id};
    header.reservation = ReservationId{reserved.reply.reservation_id()};
    header.generation = Tenure{reserved.reply.generation()};
    header.epoch = Epoch{reserved.reply.epoch()};
    header.layout_hash = LayoutHash(status_.layout());
    return header;
  }
  size_t FrameBytes() const {
    return size_t{2} * kPromptTokens * status_.layout().kv_heads() * status_.layout().head_dim() * 2;
  }
  Reserved Reservation() {
    StatusOr<Reserved> reserved = decode_.Reserve(kPromptTokens, Greedy());
    SLUICE_CHECK(reserved.ok());
    return *reserved;
  }

  WorkerProcess decode_process_{{"decode", kTinyModel}};
  WorkerProcess prefill_process_{{"prefill", kTinyModel}};
  DecodeClient decode_{decode_process_.address("grpc")};
  PrefillClient prefill_{prefill_process_.address("grpc")};
  proto::WorkerStatus status_;
  Node liar_;
};

TEST_F(KvPortTest, RawSocketsGetNothing) {
  const StatusOr<SocketAddress> port = SocketAddress::Parse(status_.kv_address(), false);
  ASSERT_TRUE(port.ok());
  std::vector<UniqueFd> flood;
  for (int i = 0; i < 300; ++i) {
    flood.emplace_back(socket(port->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int fd = flood.back().get();
    if (connect(fd, reinterpret_cast<const sockaddr*>(&port->storage), port->bytes) != 0) continue;
    const std::string garbage = RandomBytes(static_cast<size_t>(i) * 37 % 5000, static_cast<uint64_t>(i));
    (void)!send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
}

TEST_F(KvPortTest, PeersWithAnotherKeyOrAnotherModelAreRefused) {
  Node outsider;
  outsider.Start("ucx", {.auth_key = "not the key of this deployment"});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(outsider.Connect(status_.kv_address(), Hello()).status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_FALSE(liar_.Connect(status_.kv_address(), RandomBytes(300, static_cast<uint64_t>(i))).ok());
  }
  const proto::Hello other =
      MakeHello("prefill", Epoch{1}, "another model", status_.layout(), KvCodec::kBf16, {KvCodec::kBf16});
  const Status refused = liar_.Connect(status_.kv_address(), other.SerializeAsString()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("another model"));
}

TEST_F(KvPortTest, HeadersThatAreNoneCloseTheirConnection) {
  const Reserved reserved = Reservation();
  std::vector<std::string> headers;
  for (size_t bytes : {0, 1, 87, 88, 89, 1000}) headers.push_back(RandomBytes(bytes, bytes));
  KvFrameHeader commit = Header(reserved, 0);
  commit.kind = FrameKind::kCommit;
  commit.number = 0;
  commit.layers = 0;
  commit.tokens = 0;
  const std::string good = Encode(commit, {});
  headers.push_back(good.substr(0, good.size() - 1));
  for (size_t field : {0, 4, 6, 7, 10, 72, 80}) {  // magic, version, what the CRC covers, the CRC
    headers.push_back(good);
    headers.back()[field] = static_cast<char>(headers.back()[field] + 77);
  }
  for (const std::string& header : headers) {
    const ConnectionId connection = Connected();
    (void)liar_.Send(connection, header);
    EXPECT_EQ(liar_.AwaitClosed(connection).code(), absl::StatusCode::kUnavailable) << header.size();
  }
  EXPECT_TRUE(decode_.Release(reserved).ok());
}

TEST_F(KvPortTest, FramesOfOtherEpochsReservationsAndGenerationsAreAnsweredByAborted) {
  const Reserved reserved = Reservation();
  const std::vector<std::byte> body(FrameBytes());
  const KvFrameHeader right = Header(reserved, body.size());
  std::vector<KvFrameHeader> stale(4, right);
  ++stale[0].epoch.value;
  ++stale[1].reservation.value;
  ++stale[2].generation.value;
  ++stale[3].request.value;
  const ConnectionId connection = Connected();
  uint64_t frames = 0;
  for (int round = 0; round < 50; ++round) {
    for (KvFrameHeader& header : stale) {
      header.number = ++frames;
      ASSERT_TRUE(liar_.Send(connection, Encode(header, body), body).ok());
    }
  }
  liar_.AwaitMessages(400);
  uint64_t credit = 0;
  for (const LandedMessage& m : liar_.messages()) {
    if (DecodeKvFrameHeader(m.header)->kind == FrameKind::kCredit) {
      credit = std::max(credit, *DecodeCredit(m.payload));
      continue;
    }
    const auto* bytes = reinterpret_cast<const char*>(m.payload.data());
    const auto result = ParseTransferResult({bytes, m.payload.size()});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(ToStatus(*result).code(), absl::StatusCode::kAborted);
  }
  EXPECT_EQ(credit, 200 * body.size());
  EXPECT_TRUE(decode_.Release(reserved).ok());
}

// Each of these is about a reservation that is open: its transfer fails, the liar is told, and its pages return.
TEST_F(KvPortTest, LiesAboutAnOpenReservationFailThatOne) {
  const std::vector<std::byte> body(FrameBytes());
  using Lie = std::function<void(ConnectionId, const KvFrameHeader&)>;
  auto send = [&](ConnectionId c, const KvFrameHeader& h, absl::Span<const std::byte> payload) {
    (void)liar_.Send(c, Encode(h, payload), payload);
  };
  const std::vector<std::pair<std::string, Lie>> lies = {
      {"layout hash", [&](ConnectionId c, KvFrameHeader h) { ++h.layout_hash, send(c, h, body); }},
      {"layer", [&](ConnectionId c, KvFrameHeader h) { h.layer = 999, send(c, h, body); }},
      {"tokens beyond the prompt", [&](ConnectionId c, KvFrameHeader h) { h.first_token = 1, send(c, h, body); }},
      {"another body, and the same when it is asked for again",
       [&](ConnectionId c, KvFrameHeader h) {
         std::vector<std::byte> changed = body;
         changed[5] = std::byte{1};
         for (h.number = 1; h.number <= 2; ++h.number) (void)liar_.Send(c, Encode(h, body), changed);
       }},
      {"a commit of garbage first",
       [&](ConnectionId c, KvFrameHeader h) {
         const std::vector<std::byte> record = Pattern(300, 3);
         h.kind = FrameKind::kCommit;
         h.number = 0;
         h.layers = 0;
         h.tokens = 0;
         h.payload_bytes = record.size();
         send(c, h, record);
       }},
      {"a result, which is decode's to send",
       [&](ConnectionId c, KvFrameHeader h) {
         h.kind = FrameKind::kResult;
         h.number = 0;
         h.layers = 0;
         h.tokens = 0;
         h.payload_bytes = 0;
         send(c, h, {});
       }},
  };
  for (const auto& [name, lie] : lies) {
    const Reserved reserved = Reservation();
    const auto stream = decode_.Generate(reserved);
    const ConnectionId connection = Connected();
    const size_t told = liar_.messages().size();
    lie(connection, Header(reserved, body.size()));
    liar_.AwaitMessages(told + 1);
    liar_.transport().Close(connection);
    // The reservation waits for another prefill, or has ended: either way the gateway can give it up.
    (void)decode_.Release(reserved);
    EXPECT_FALSE(stream->ReadToEnd().ok()) << name;
    EXPECT_TRUE(decode_.AllPagesComeBack()) << name;
  }
}

TEST_F(KvPortTest, ConnectionsThatComeAndGoLeaveNothingBehind) {
  for (int i = 0; i < 30; ++i) {
    const ConnectionId connection = Connected();
    liar_.transport().Send(connection, RandomBytes(kKvFrameHeaderBytes, static_cast<uint64_t>(i)), {},
                           [](const Status&) {});
    liar_.transport().Close(connection);
  }
}

}  // namespace
}  // namespace sluice::decode
