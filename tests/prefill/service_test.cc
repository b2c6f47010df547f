// The whole process but for the model: gRPC calls on real sockets, engine and sender on their threads, and decode
// played over the loopback transport.
#include "prefill/service.h"

#include <thread>

#include "common/proto/convert.h"
#include "common/proto/worker.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/prefill/test_decode.h"
#include "transport/loopback.h"

namespace sluice::prefill {
namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 64;
constexpr int kPages = 16;
const KvPoolOptions kKv = {.layout = {.layers = 2, .kv_heads = 1, .head_dim = 16}, .page_tokens = 4, .pages = kPages};

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sender_ = *KvSender::Create({.hello = MakeHello("prefill", {1}, "m1", Layout(), kKv.codec, {kKv.codec}),
                                 .send_memory_bytes = 1 << 16,
                                 .connection_bytes_in_flight_max = 1 << 16,
                                 .frame_bytes_min = 1,
                                 .frame_bytes_max = 4096,
                                 .connections_max = 4,
                                 .connect_timeout = absl::Seconds(20),
                                 .result_timeout = absl::Seconds(60)},
                                pool_.get(), &clock_, &metrics_);
    transport_ = *CreateLoopbackTransport({}, sender_->receiver());
    decode_transport_ = *CreateLoopbackTransport({.listen_address = "127.0.0.1:0"}, &decode_);
    decode_.transport = decode_transport_.get();
    worker_ = std::make_unique<Worker>(
        WorkerOptions{.limits = {.batch_tokens_max = 8, .logit_rows_max = 4},
                      .requests_max = 8,
                      .queued_tokens_max = 1000,
                      .vocab_size = kVocab,
                      .context_tokens_max = 128},
        [this](const Batch& batch) { return Forward(batch); }, pool_.get(), nullptr, sender_.get(), &metrics_, &clock_);
    sender_->Attach(transport_.get(),
                    [this](TransferId id, const TransferReport& r) { worker_->TransferEnded(id, r); });
    ServiceOptions options = {.listen = "127.0.0.1:0",
                              .request_bytes_max = 1 << 20,
                              .limits = {.model_hash = "m1",
                                         .layout_hash = LayoutHash(Layout()),
                                         .wire_codecs = {"bf16"},
                                         .vocab_size = kVocab,
                                         .context_tokens_max = 128}};
    options.fixed_status.set_role("prefill");
    service_ = *Service::Create(options, key_, worker_.get(), &metrics_, &clock_);
    engine_thread_ = std::thread([this] { worker_->Serve(); });
    sender_thread_ = std::thread([this] { sender_->Serve(); });
    stub_ = proto::Prefill::NewStub(grpc::CreateChannel(service_->address(), grpc::InsecureChannelCredentials()));
  }
  ~ServiceTest() override {
    worker_->Stop();
    engine_thread_.join();
    service_->Shutdown(clock_.Now() + absl::Seconds(20));
    sender_->Stop();
    sender_thread_.join();
    transport_.reset();
    decode_transport_.reset();
    EXPECT_EQ(pool_->pages_free(), kPages);
  }

  static proto::KvLayout Layout() { return ToProto(kKv.layout); }

  StatusOr<absl::Span<const float>> Forward(const Batch& batch) {
    for (int layer = 0; layer < kKv.layout.layers; ++layer) batch.on_layer_stored(layer);
    logits_.assign(batch.sequences.size() * kVocab, 0.0f);
    return absl::Span<const float>(logits_);
  }

  proto::PrefillRequest Request(int tokens) {
    proto::Ticket ticket;
    ticket.set_request_id(++last_request_);
    ticket.set_reservation_id(last_request_);
    ticket.set_generation(1);
    ticket.set_decode_epoch(99);
    ticket.set_deadline_unix_ms(absl::ToUnixMillis(clock_.Now() + absl::Seconds(60)));
    ticket.set_model_hash("m1");
    ticket.set_layout_hash(LayoutHash(Layout()));
    ticket.add_wire_codecs("bf16");
    ticket.set_kv_address(decode_transport_->address());
    ticket.set_prompt_tokens(static_cast<uint32_t>(tokens));
    proto::PrefillRequest request;
    request.set_request_id(last_request_);
    for (int i = 0; i < tokens; ++i) request.add_prompt_ids(i % kVocab);
    *request.mutable_sampling() = ToProto(SamplingParams{.temperature = 0});
    request.set_deadline_unix_ms(ticket.deadline_unix_ms());
    request.set_ticket(Seal(ticket, key_));
    return request;
  }
  proto::WorkerStatus GetStatus() {
    grpc::ClientContext context;
    proto::WorkerStatus status;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &status).ok());
    return status;
  }
  void AwaitCommit(uint64_t reservation) {
    absl::MutexLock lock(&decode_.mutex);
    const auto there = [&] { return decode_.records.contains(reservation); };
    EXPECT_TRUE(decode_.mutex.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
  }
  void AwaitIdle() {
    for (int i = 0; i < 2000 && worker_->load().requests > 0; ++i) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(worker_->load().requests, 0);
  }

  const ClusterKey key_ = *ClusterKey::Load("0123456789abcdef", "");
  RealClock clock_;
  PrefillMetrics metrics_;
  std::unique_ptr<KvPool> pool_ = *KvPool::Create(kKv);
  TestDecode decode_{MakeHello("decode", {99}, "m1", Layout(), kKv.codec, {kKv.codec}), [](const auto&, auto) {}};
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<Transport> transport_, decode_transport_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Service> service_;
  std::thread engine_thread_, sender_thread_;
  std::unique_ptr<proto::Prefill::Stub> stub_;
  std::vector<float> logits_;
  uint64_t last_request_ = 0;
};

TEST_F(ServiceTest, RunReturnsWhenDecodeHasAcknowledged) {
  grpc::ClientContext context;
  proto::PrefillReply reply;
  const grpc::Status status = stub_->Run(&context, Request(20), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.kv_bytes(), Bytes(kKv.layout, kKv.codec, 20));
  EXPECT_EQ(decode_.received[1].size(), 40u);
}

TEST_F(ServiceTest, CancellingTheCallCancelsTheWorkAndTellsDecode) {
  decode_.answer.reset();
  grpc::ClientContext context;
  grpc::Status status;
  std::thread caller([&] {
    proto::PrefillReply reply;
    status = stub_->Run(&context, Request(20), &reply);
  });
  AwaitCommit(1);
  EXPECT_EQ(GetStatus().requests_active(), 1u);
  EXPECT_EQ(GetStatus().kv_pages_free(), kPages - 5u);
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  AwaitIdle();
  EXPECT_EQ(GetStatus().kv_pages_free(), static_cast<uint32_t>(kPages));
}

TEST_F(ServiceTest, ACallersDeadlineEndsTheWorkToo) {
  decode_.answer.reset();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  proto::PrefillReply reply;
  EXPECT_EQ(stub_->Run(&context, Request(4), &reply).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitIdle();
}

TEST_F(ServiceTest, RefusalsCarryTheirCodeAndAreCounted) {
  grpc::ClientContext context;
  proto::PrefillReply reply;
  proto::PrefillRequest request = Request(4);
  request.set_ticket("forged");
  EXPECT_EQ(stub_->Run(&context, request, &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(metrics_.refused(absl::UnauthenticatedError("")).Value(), 1);
  EXPECT_TRUE(decode_.received.empty());
}

TEST_F(ServiceTest, ADecodeThatIsGoneIsNotThisProcesssFault) {
  const proto::PrefillRequest request = Request(5);
  decode_transport_.reset();
  grpc::ClientContext context;
  proto::PrefillReply reply;
  const grpc::Status status = stub_->Run(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_details(), kAtPeerDetails);
}

TEST_F(ServiceTest, DrainingShowsInTheStatusAndRefuses) {
  EXPECT_EQ(GetStatus().not_ready_reason(), "");
  EXPECT_TRUE(worker_->Drain(absl::InfiniteFuture()));
  EXPECT_TRUE(GetStatus().draining());
  EXPECT_THAT(GetStatus().not_ready_reason(), HasSubstr("draining"));
  grpc::ClientContext context;
  proto::PrefillReply reply;
  EXPECT_EQ(stub_->Run(&context, Request(4), &reply).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServiceTest, ManyCallersAtOnceAreAllAnswered) {
  std::vector<std::thread> callers;
  std::atomic<int> ok = 0, full = 0;
  std::vector<proto::PrefillRequest> requests;
  for (int i = 0; i < 16; ++i) requests.push_back(Request(1 + 3 * i));
  for (const auto& request : requests) {
    callers.emplace_back([&] {
      grpc::ClientContext context;
      proto::PrefillReply reply;
      const grpc::Status status = stub_->Run(&context, request, &reply);
      ok += status.ok();
      full += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ok + full, 16);
  EXPECT_GE(ok, 8);
}

TEST_F(ServiceTest, AnAddressThatIsTakenIsUnavailable) {
  EXPECT_EQ(Service::Create({.listen = service_->address(), .request_bytes_max = 1000}, key_, worker_.get(), &metrics_,
                            &clock_)
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice::prefill
