// The sender over the loopback transport against a receiver that checks every frame as decode must, and over a fake
// transport under manual time where waits and failures are at stake.
#include "prefill/kv_sender.h"

#include <thread>

#include "common/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "model/kv_body.h"
#include "tests/prefill/fake_transport.h"
#include "tests/prefill/test_decode.h"
#include "transport/loopback.h"

namespace sluice::prefill {
namespace {

using ::testing::HasSubstr;

constexpr KvLayout kLayout = {.layers = 3, .kv_heads = 2, .head_dim = 16};
constexpr KvCodec kCodec = KvCodec::kBf16;
constexpr int kPageTokens = 4;
constexpr uint64_t kDecodeEpoch = 99;

proto::Hello HelloOf(std::string_view role, uint64_t epoch) {
  return MakeHello(role, {epoch}, "hash", ToProto(kLayout), kCodec, {kCodec});
}

KvSenderOptions SmallOptions() {
  return {.hello = HelloOf("prefill", 1),
          .send_memory_bytes = 8192,
          .connection_bytes_in_flight_max = 4096,
          .frame_bytes_max = 2048,
          .chunk_tokens_max = 16,
          .connections_max = 2,
          .connect_timeout = absl::Seconds(20),
          .result_timeout = absl::Seconds(20)};
}

proto::Ticket TicketOf(uint64_t reservation, const std::string& address, uint64_t epoch = kDecodeEpoch) {
  proto::Ticket ticket;
  ticket.set_request_id(reservation + 1000);
  ticket.set_reservation_id(reservation);
  ticket.set_generation(1);
  ticket.set_decode_epoch(epoch);
  ticket.set_kv_address(address);
  return ticket;
}

proto::HandoffRecord RecordOf(uint64_t reservation, int kv_tokens) {
  proto::HandoffRecord record;
  record.set_request_id(reservation + 1000);
  record.set_kv_tokens(static_cast<uint32_t>(kv_tokens));
  return record;
}

KvRange AllLayers(int64_t first_token, int64_t tokens) {
  return {.layers = kLayout.layers, .first_token = first_token, .tokens = tokens};
}

// A pool whose every element says where it is.
struct FilledPool {
  explicit FilledPool(int64_t tokens)
      : pool(*KvPool::Create({.layout = kLayout, .codec = kCodec, .page_tokens = kPageTokens, .pages = 64})),
        lease(*pool->Lease(pool->PagesFor(tokens))) {
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int e = 0; e < 32; ++e) {
          *Element(pool->Plane(Page(t), layer, 0).codes, t, e) = Value(false, layer, t, e);
          *Element(pool->Plane(Page(t), layer, 1).codes, t, e) = Value(true, layer, t, e);
        }
      }
    }
  }
  PageIndex Page(int64_t token) const { return lease.pages()[static_cast<size_t>(token / kPageTokens)]; }
  static uint16_t* Element(std::byte* plane, int64_t token, int element) {
    return reinterpret_cast<uint16_t*>(plane) + token % kPageTokens * 32 + element;
  }
  static uint16_t Value(bool is_v, int layer, int64_t token, int element) {
    return F32ToBf16(static_cast<float>((is_v ? -1 : 1) * (1 + layer + 3 * (element % 32) + 128 * (token % 64))));
  }
  std::vector<PageIndex> pages() const { return {lease.pages().begin(), lease.pages().end()}; }

  std::unique_ptr<KvPool> pool;
  PageLease lease;
};

// Every element of a frame is what FilledPool put there.
void ExpectFilledRows(const KvFrameHeader& header, absl::Span<const std::byte> payload) {
  ASSERT_EQ(payload.size(), BodyBytes(kLayout, kCodec, 1, header.tokens));
  const auto* element = reinterpret_cast<const uint16_t*>(payload.data());
  int wrong = 0;
  for (const bool is_v : {false, true}) {
    for (uint32_t t = header.first_token; t < header.first_token + header.tokens; ++t) {
      for (int e = 0; e < 32; ++e) wrong += *element++ != FilledPool::Value(is_v, header.layer, t, e);
    }
  }
  EXPECT_EQ(wrong, 0) << "layer " << header.layer << " from token " << header.first_token;
}

class KvSenderTest : public ::testing::Test {
 protected:
  void Start(const KvSenderOptions& options = SmallOptions()) {
    sender_ = *KvSender::Create(options, filled_.pool.get(), &clock_, &metrics_);
    client_ = *CreateLoopbackTransport({}, sender_->receiver());
    server_ = *CreateLoopbackTransport({.listen_address = "127.0.0.1:0"}, &receiver_);
    receiver_.transport = server_.get();
    sender_->Attach(client_.get(), [this](TransferId id, const TransferReport& report) {
      absl::MutexLock lock(&mutex_);
      reports_[id.value] = report;
    });
    thread_ = std::thread([this] { sender_->Serve(); });
  }
  ~KvSenderTest() override {
    if (!thread_.joinable()) return;
    sender_->Stop();
    thread_.join();
    client_.reset();
    server_.reset();
  }
  std::string address() const { return server_->address(); }
  absl::Time Later() const { return clock_.Now() + absl::Seconds(30); }
  void Send(uint64_t id, int64_t first_token, int64_t tokens) { sender_->Send({id}, AllLayers(first_token, tokens)); }
  void Begin(uint64_t id) { sender_->Begin({id}, TicketOf(id, address()), filled_.pages(), Later()); }

  TransferReport AwaitReport(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return reports_.contains(id); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) << "no report of " << id;
    return reports_[id];
  }
  template <typename What>
  void AwaitAtReceiver(const What& there) {
    absl::MutexLock lock(&receiver_.mutex);
    EXPECT_TRUE(receiver_.mutex.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
  }

  RealClock clock_;
  PrefillMetrics metrics_;
  FilledPool filled_{100};
  TestDecode receiver_{HelloOf("decode", kDecodeEpoch), ExpectFilledRows};
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<Transport> client_, server_;
  std::thread thread_;
  absl::Mutex mutex_;
  std::map<uint64_t, TransferReport> reports_;
};

TEST_F(KvSenderTest, EveryTokenOfEveryLayerArrivesOnceAndIntactAndTheCommitIsAcknowledged) {
  Start();
  Begin(1);
  for (const auto& [first, tokens] : std::vector<std::pair<int64_t, int64_t>>{{0, 16}, {16, 1}, {17, 14}, {31, 6}})
    Send(1, first, tokens);
  sender_->Commit({1}, RecordOf(1, 37));
  const TransferReport report = AwaitReport(1);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(report.kv_bytes, Bytes(kLayout, kCodec, 37));
  EXPECT_EQ(receiver_.received[1].size(), 37u * 3);
  EXPECT_EQ(receiver_.records[1].kv_tokens(), 37u);
}

TEST_F(KvSenderTest, ManyTransfersShareFewSendBuffers) {
  KvSenderOptions options = SmallOptions();
  options.send_memory_bytes = 2048;  // one frame at a time
  Start(options);
  for (uint64_t id = 1; id <= 20; ++id) {
    Begin(id);
    Send(id, 0, 16);
    Send(id, 16, 16);
    sender_->Commit({id}, RecordOf(id, 32));
  }
  for (uint64_t id = 1; id <= 20; ++id) {
    EXPECT_TRUE(AwaitReport(id).status.ok()) << AwaitReport(id).status;
    EXPECT_EQ(receiver_.received[id].size(), 32u * 3);
  }
}

TEST_F(KvSenderTest, ChunksLargerThanAFrameAreSplit) {
  KvSenderOptions options = SmallOptions();
  options.frame_bytes_max = 5 * 128;  // five tokens
  Start(options);
  Begin(1);
  Send(1, 0, 16);
  sender_->Commit({1}, RecordOf(1, 16));
  EXPECT_TRUE(AwaitReport(1).status.ok());
  EXPECT_EQ(receiver_.received[1].size(), 16u * 3);
  EXPECT_EQ(metrics_.kv_frames_sent.Value(), 4 * 3);
}

TEST_F(KvSenderTest, ACommitWithoutKvIsLegal) {
  Start();
  Begin(1);
  sender_->Commit({1}, RecordOf(1, 0));
  EXPECT_TRUE(AwaitReport(1).status.ok());
  EXPECT_EQ(receiver_.records[1].kv_tokens(), 0u);
}

TEST_F(KvSenderTest, DecodesRefusalOfACommitIsTheTransfersOutcome) {
  receiver_.answer = absl::DataLossError("CRC32C differs");
  Start();
  Begin(1);
  Send(1, 0, 4);
  sender_->Commit({1}, RecordOf(1, 4));
  const Status status = AwaitReport(1).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CRC32C differs"));
}

TEST_F(KvSenderTest, CancellingTellsDecodeAtOnce) {
  receiver_.answer.reset();
  Start();
  Begin(1);
  Send(1, 0, 16);
  AwaitAtReceiver([&] { return receiver_.received[1].size() == 16u * 3; });
  sender_->Cancel({1}, absl::CancelledError("the client left"));
  EXPECT_EQ(AwaitReport(1).status.code(), absl::StatusCode::kCancelled);
  AwaitAtReceiver([&] { return receiver_.aborted == std::vector<uint64_t>{1}; });
}

TEST_F(KvSenderTest, ModelsThatDifferAreRefusedWithBothValues) {
  receiver_.hello.set_model_hash("other");
  Start();
  Begin(1);
  const Status status = AwaitReport(1).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model hash: ours other, theirs hash"));
}

TEST_F(KvSenderTest, ATicketOfAnotherIncarnationIsAbortedAndTheRightOneStillServed) {
  Start();
  sender_->Begin({1}, TicketOf(1, address(), kDecodeEpoch + 1), filled_.pages(), Later());
  const Status status = AwaitReport(1).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("epoch is 100, its own is 99"));
  Begin(2);
  sender_->Commit({2}, RecordOf(2, 0));
  EXPECT_TRUE(AwaitReport(2).status.ok());
}

TEST_F(KvSenderTest, NobodyListeningIsUnavailable) {
  Start();
  // Loopback hands out port numbers from 1 on, so the address of nobody is a high one.
  sender_->Begin({1}, TicketOf(1, "127.0.0.1:65000"), filled_.pages(), Later());
  EXPECT_EQ(AwaitReport(1).status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(KvSenderTest, ADecodeThatGoesAwayFailsItsTransfersAtOnceAndItsSuccessorIsServed) {
  receiver_.answer.reset();
  Start();
  Begin(1);
  Begin(2);
  sender_->Commit({2}, RecordOf(2, 0));
  AwaitAtReceiver([&] { return receiver_.records.contains(2); });
  const std::string old_address = address();
  server_.reset();
  EXPECT_EQ(AwaitReport(1).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(AwaitReport(2).status.code(), absl::StatusCode::kUnavailable);
  TestDecode successor(HelloOf("decode", kDecodeEpoch), ExpectFilledRows);
  server_ = *CreateLoopbackTransport({.listen_address = old_address}, &successor);
  successor.transport = server_.get();
  Begin(3);
  sender_->Commit({3}, RecordOf(3, 0));
  EXPECT_TRUE(AwaitReport(3).status.ok()) << AwaitReport(3).status;
  server_.reset();
}

TEST_F(KvSenderTest, ADamagedResultEndsTheConnectionInsteadOfBeingBelieved) {
  receiver_.corrupt_results = true;
  Start();
  Begin(1);
  sender_->Commit({1}, RecordOf(1, 0));
  EXPECT_EQ(AwaitReport(1).status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(KvSenderTest, NanInTheKvFailsTheTransferInsteadOfTravelling) {
  *FilledPool::Element(filled_.pool->Plane(filled_.Page(5), 1, 1).codes, 5, 3) = 0x7FC0;
  Start();
  Begin(1);
  Send(1, 0, 16);
  const Status status = AwaitReport(1).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1: 1 KV rows"));
  AwaitAtReceiver([&] { return receiver_.aborted == std::vector<uint64_t>{1}; });
}

TEST_F(KvSenderTest, ATicketIsUsedOnce) {
  receiver_.answer.reset();
  Start();
  Begin(1);
  sender_->Begin({2}, TicketOf(1, address()), filled_.pages(), Later());
  EXPECT_EQ(AwaitReport(2).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KvSenderTest, StoppingEndsWhatRuns) {
  receiver_.answer.reset();
  Start();
  Begin(1);
  Send(1, 0, 16);
  sender_->Stop();
  EXPECT_EQ(AwaitReport(1).status.code(), absl::StatusCode::kUnavailable);
}

class KvSenderTimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sender_ = *KvSender::Create(SmallOptions(), filled_.pool.get(), &clock_, &metrics_);
    sender_->Attach(&transport_, [this](TransferId id, const TransferReport& r) { reports_[id.value] = r.status; });
  }
  absl::Time Poll() { return sender_->Poll(clock_.Now()); }
  void Send(uint64_t id, int64_t first_token, int64_t tokens) { sender_->Send({id}, AllLayers(first_token, tokens)); }
  void Begin(uint64_t id, const std::string& address = "d:1") {
    sender_->Begin({id}, TicketOf(id, address), filled_.pages(), clock_.Now() + absl::Seconds(60));
  }
  void AcceptConnection(size_t i) {
    transport_.connects.at(i)(HelloOf("decode", kDecodeEpoch).SerializeAsString());
    Poll();
  }

  ManualClock clock_;
  PrefillMetrics metrics_;
  FilledPool filled_{100};
  FakeTransport transport_;
  std::unique_ptr<KvSender> sender_;
  std::map<uint64_t, Status> reports_;
};

TEST_F(KvSenderTimeTest, TheRequestsDeadlineFiresWithoutTraffic) {
  Begin(1);
  EXPECT_EQ(Poll(), clock_.Now() + absl::Seconds(60));
  AcceptConnection(0);
  clock_.Advance(absl::Seconds(59));
  Poll();
  EXPECT_TRUE(reports_.empty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Poll(), absl::InfiniteFuture());
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(transport_.sends.back().header.kind, FrameKind::kAbort);
}

TEST_F(KvSenderTimeTest, ACommitWithoutAnAnswerIsUnavailableAfterTheResultsTimeout) {
  Begin(1);
  sender_->Commit({1}, RecordOf(1, 0));
  Poll();
  AcceptConnection(0);
  ASSERT_EQ(transport_.sends.size(), 1u);
  EXPECT_EQ(transport_.sends[0].header.kind, FrameKind::kCommit);
  EXPECT_EQ(Poll(), clock_.Now() + absl::Seconds(20));
  clock_.Advance(absl::Seconds(20));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
}

TEST_F(KvSenderTimeTest, NothingIsSentBeforeTheHandshake) {
  Begin(1);
  Send(1, 0, 16);
  Poll();
  EXPECT_TRUE(transport_.sends.empty());
  AcceptConnection(0);
  EXPECT_FALSE(transport_.sends.empty());
}

TEST_F(KvSenderTimeTest, BytesInFlightOfAConnectionAreBounded) {
  Begin(1);
  for (int64_t first = 0; first < 96; first += 16) Send(1, first, 16);
  Poll();
  AcceptConnection(0);
  EXPECT_EQ(transport_.sends.size(), 2u);  // 4096 bytes of 2048 a frame
  transport_.sends[0].done(absl::OkStatus());
  Poll();
  EXPECT_EQ(transport_.sends.size(), 3u);
}

TEST_F(KvSenderTimeTest, APeerWithManyFramesLeavesBuffersToOthers) {
  Begin(1, "d:1");
  Begin(2, "d:2");
  for (int64_t first = 0; first < 96; first += 16) {
    Send(1, first, 16);
    Send(2, first, 16);
  }
  Poll();
  AcceptConnection(0);
  AcceptConnection(1);
  EXPECT_EQ(transport_.sends.size(), 4u);  // all buffers
  for (size_t i = 0; i < 20; ++i) {
    transport_.sends[i].done(absl::OkStatus());
    Poll();
  }
  int of_first = 0;
  for (const auto& sent : transport_.sends) of_first += sent.header.reservation.value == 1;
  EXPECT_NEAR(of_first, static_cast<double>(transport_.sends.size()) / 2, 2);
}

TEST_F(KvSenderTimeTest, AFailedSendFailsItsTransferAndGivesTheBufferBack) {
  Begin(1);
  Send(1, 0, 16);
  Poll();
  AcceptConnection(0);
  const size_t sent = transport_.sends.size();
  for (size_t i = 0; i < sent; ++i) transport_.sends[i].done(absl::UnavailableError("gone"));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
  Begin(2);
  Send(2, 0, 16);
  Poll();
  EXPECT_EQ(transport_.sends.size(), sent + 2);
}

TEST_F(KvSenderTimeTest, TheIdlestConnectionMakesRoomAndBusyOnesDoNot) {
  Begin(1, "d:1");
  Begin(2, "d:2");
  Poll();
  Begin(3, "d:3");
  Poll();
  EXPECT_EQ(reports_.at(3).code(), absl::StatusCode::kResourceExhausted);
  sender_->Cancel({1}, absl::CancelledError(""));
  Begin(4, "d:4");
  Poll();
  EXPECT_FALSE(reports_.contains(4));
  EXPECT_EQ(transport_.closed, std::vector<ConnectionId>{{1}});
}

TEST(KvSender, ATokenThatNoFrameCanHoldIsRefusedAtTheStart) {
  FilledPool filled(4);
  ManualClock clock;
  PrefillMetrics metrics;
  KvSenderOptions options = SmallOptions();
  options.frame_bytes_max = 100;
  EXPECT_EQ(KvSender::Create(options, filled.pool.get(), &clock, &metrics).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::prefill
