// The sender over the loopback transport against a receiver that checks every frame as decode must.
#include "prefill/kv_sender.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/prefill/kv_sender_fixture.h"
#include "tests/prefill/test_decode.h"
#include "transport/loopback.h"

namespace sluice::prefill {
namespace {

using ::testing::HasSubstr;

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
  ~KvSenderTest() override { End(); }
  void End() {
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

TEST_F(KvSenderTest, SmallLayersShareAFrame) {
  KvSenderOptions options = SmallOptions();
  options.frame_bytes_min = 2048;
  Start(options);
  Begin(1);
  for (int layer = 0; layer < kLayout.layers; ++layer)
    sender_->Send({1}, {.layer = layer, .layers = 1, .first_token = 0, .tokens = 3});
  sender_->Commit({1}, RecordOf(1, 3));
  EXPECT_TRUE(AwaitReport(1).status.ok());
  EXPECT_EQ(receiver_.received[1].size(), 3u * 3);
  EXPECT_EQ(metrics_.kv_frames_sent.Value(), 1);
}

TEST_F(KvSenderTest, EveryCodecArrivesAsItIsSpecified) {
  for (const KvCodec codec : WireCodecs(kLayout)) {
    KvSenderOptions options = SmallOptions();
    options.hello = HelloOf("prefill", 1, {codec});
    options.frame_bytes_min = 1000;
    receiver_.hello = HelloOf("decode", kDecodeEpoch, WireCodecs(kLayout));
    Start(options);
    const auto id = static_cast<uint64_t>(codec) + 1;
    Begin(id);
    for (const auto& [first, tokens] : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 1}, {6, 31}})
      Send(id, first, tokens);
    sender_->Commit({id}, RecordOf(id, 37));
    EXPECT_TRUE(AwaitReport(id).status.ok()) << Name(codec) << AwaitReport(id).status;
    EXPECT_EQ(receiver_.received[id].size(), 37u * 3) << Name(codec);
    EXPECT_EQ(receiver_.records[id].wire_codec(), Name(codec));
    EXPECT_EQ(receiver_.records[id].kv_wire_bytes(), AwaitReport(id).kv_bytes);
    EXPECT_EQ(metrics_.wire_codecs(codec).Value(), 1);
    EXPECT_EQ(metrics_.kv_bytes_sent(codec).Value(), static_cast<double>(AwaitReport(id).kv_bytes));
    End();
  }
}

TEST_F(KvSenderTest, CodecsThatBothNameAndDecodesStoreDecideTogether) {
  KvSenderOptions options = SmallOptions();
  options.hello = HelloOf("prefill", 1, WireCodecs(kLayout));
  receiver_.hello = HelloOf("decode", kDecodeEpoch, {KvCodec::kF32, KvCodec::kFp8, KvCodec::kInt8});
  receiver_.hello.set_store_codec("int8");
  Start(options);
  Begin(1);
  Send(1, 0, 16);
  sender_->Commit({1}, RecordOf(1, 16));
  EXPECT_TRUE(AwaitReport(1).status.ok());
  EXPECT_EQ(receiver_.records[1].wire_codec(), "int8");
}

TEST_F(KvSenderTest, ADecodeThatStoresWhatWeDoNotKnowIsRefusedByName) {
  receiver_.hello.set_store_codec("e5m2");
  Start(SmallOptions());
  Begin(1);
  Send(1, 0, 16);
  sender_->Commit({1}, RecordOf(1, 16));
  const Status status = AwaitReport(1).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("decode's store: unknown KV codec 'e5m2': there are f32, bf16"),
            std::string::npos)
      << status;
}

TEST_F(KvSenderTest, SixteenDecodesAtOnceAreEachServed) {
  KvSenderOptions options = SmallOptions();
  options.connections_max = 16;
  Start(options);
  std::vector<std::unique_ptr<TestDecode>> decodes;
  std::vector<std::unique_ptr<Transport>> servers;
  for (uint64_t i = 1; i <= 16; ++i) {
    decodes.push_back(std::make_unique<TestDecode>(HelloOf("decode", kDecodeEpoch + i), ExpectFilledRows));
    servers.push_back(*CreateLoopbackTransport({.listen_address = "127.0.0.1:0"}, decodes.back().get()));
    decodes.back()->transport = servers.back().get();
  }
  for (uint64_t i = 1; i <= 16; ++i) {
    sender_->Begin({i}, TicketOf(i, servers[i - 1]->address(), kDecodeEpoch + i), filled_.pages(), Later());
    Send(i, 0, 16);
    sender_->Commit({i}, RecordOf(i, 16));
  }
  for (uint64_t i = 1; i <= 16; ++i) {
    EXPECT_TRUE(AwaitReport(i).status.ok()) << AwaitReport(i).status;
    EXPECT_EQ(decodes[i - 1]->received[i].size(), 16u * 3);
  }
  End();
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
  EXPECT_TRUE(IsAtPeer(AwaitReport(1).status));
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
  EXPECT_TRUE(IsAtPeer(AwaitReport(1).status));
  EXPECT_EQ(AwaitReport(2).status.code(), absl::StatusCode::kUnavailable);
  TestDecode successor(HelloOf("decode", kDecodeEpoch), ExpectFilledRows);
  server_ = *CreateLoopbackTransport({.listen_address = old_address}, &successor);
  successor.transport = server_.get();
  Begin(3);
  sender_->Commit({3}, RecordOf(3, 0));
  EXPECT_TRUE(AwaitReport(3).status.ok()) << AwaitReport(3).status;
  server_.reset();
}

TEST_F(KvSenderTest, AFrameThatDecodeCannotPlaceIsABugAndNotTheRequestsFault) {
  receiver_.answer = absl::InvalidArgumentError("KV frame: ends at token 99 of a prompt of 16");
  Start();
  Begin(1);
  sender_->Commit({1}, RecordOf(1, 0));
  EXPECT_EQ(AwaitReport(1).status.code(), absl::StatusCode::kInternal);
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
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers 1 to 1: 1 KV rows"));
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
  EXPECT_FALSE(IsAtPeer(AwaitReport(1).status));
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
