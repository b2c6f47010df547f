// Worker and sender together in one thread under manual time; the test plays decode, and the model is a rule: after
// token t comes t + 1.
#include "prefill/worker.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "common/proto/convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "tests/prefill/fake_transport.h"

namespace sluice::prefill {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr KvLayout kLayout = {.layers = 2, .kv_heads = 1, .head_dim = 16};
constexpr int kVocab = 64;
constexpr TokenId kEos = 63;
constexpr int kPageTokens = 4;
constexpr int kPages = 16;
constexpr int kBatchTokens = 10;
constexpr int64_t kPrunedTokensMax = 20;

class WorkerTest : public ::testing::Test {
 protected:
  virtual SendWhen send_when() const { return SendWhen::kLayer; }
  void SetUp() override {
    const proto::KvLayout layout = ToProto(kLayout);
    sender_ = *KvSender::Create({.hello = MakeHello("prefill", {1}, "hash", layout, KvCodec::kBf16, {KvCodec::kBf16}),
                                 .send_memory_bytes = 1 << 16,
                                 .connection_bytes_in_flight_max = 1 << 16,
                                 .frame_bytes_min = 1,
                                 .frame_bytes_max = 4096,
                                 .connections_max = 4,
                                 .connect_timeout = absl::Seconds(2),
                                 .result_timeout = absl::Seconds(10)},
                                pool_.get(), &clock_, &metrics_);
    worker_ = std::make_unique<Worker>(
        WorkerOptions{.limits = {.batch_tokens_max = kBatchTokens, .logit_rows_max = 4},
                      .requests_max = 40,
                      .queued_tokens_max = queued_tokens_max_,
                      .tokens_per_s_guess = 100,
                      .send_when = send_when(),
                      .prefix_cache_pages = prefix_cache_pages_,
                      .pruning_bytes_max = Pruning::BytesMax(kLayout, kPrunedTokensMax),
                      .vocab_size = kVocab,
                      .context_tokens_max = 128,
                      .eos_ids = {kEos}},
        [this](const Batch& batch) { return Forward(batch); }, pool_.get(), nullptr, sender_.get(), &metrics_, &clock_);
    sender_->Attach(&transport_, [this](TransferId id, const TransferReport& r) { worker_->TransferEnded(id, r); });
  }
  void TearDown() override {
    worker_->Stop();
    Run();
    EXPECT_EQ(pool_->pages_free() + pool_->pages_cached(), kPages);
    EXPECT_LE(pool_->pages_cached(), prefix_cache_pages_);
    EXPECT_EQ(worker_->load().requests, 0);
    EXPECT_EQ(worker_->load().queued_tokens, 0);
  }

  StatusOr<absl::Span<const float>> Forward(const Batch& batch) {
    if (forward_error) return *forward_error;
    logits_.clear();
    steps_.emplace_back();
    for (const SequenceChunk& s : batch.sequences) {
      steps_.back().push_back(static_cast<int>(s.tokens.size()));
      if (s.logits == LogitsFor::kNone) continue;
      const size_t row = logits_.size();
      logits_.resize(row + kVocab);
      logits_[row + static_cast<size_t>((s.tokens.back() + 1) % kVocab)] = 100.0f;
    }
    for (int layer = 0; batch.on_layer_stored && layer < kLayout.layers; ++layer) {
      batch.on_layer_stored(layer);
      kv_sent_in_step_ |= PollSender();
    }
    if (poison_logits) std::fill(logits_.begin(), logits_.end(), std::numeric_limits<float>::quiet_NaN());
    clock_.Advance(absl::Milliseconds(100));
    return absl::Span<const float>(logits_);
  }

  proto::PrefillRequest Request(int tokens, TokenId last = 5, const SamplingParams& sampling = {.temperature = 0}) {
    proto::PrefillRequest request;
    request.set_request_id(++last_request_);
    for (int i = 0; i + 1 < tokens; ++i) request.add_prompt_ids(i % 50);
    request.add_prompt_ids(last);
    *request.mutable_sampling() = ToProto(sampling);
    request.set_deadline_unix_ms(absl::ToUnixMillis(clock_.Now() + absl::Seconds(60)));
    return request;
  }
  StatusOr<PromptId> Submit(const proto::PrefillRequest& request, uint32_t kv_from_token = 0,
                            const CachePolicy& policy = {}) {
    proto::Ticket ticket;
    ticket.set_request_id(request.request_id());
    ticket.set_reservation_id(request.request_id());
    ticket.set_generation(1);
    ticket.set_decode_epoch(99);
    ticket.set_kv_address("d:1");
    ticket.set_kv_from_token(kv_from_token);
    if (policy.kind != CachePolicyKind::kFull) *ticket.mutable_policy() = ToProto(policy);
    return worker_->Submit(request, ticket, [this, id = request.request_id()](const StatusOr<proto::PrefillReply>& r) {
      EXPECT_FALSE(replies_.contains(id)) << "answered twice";
      replies_.emplace(id, r);
    });
  }
  // True where that sent KV.
  bool PollSender() {
    const size_t before = transport_.sends.size();
    sender_->Poll(clock_.Now());
    return std::any_of(transport_.sends.begin() + static_cast<std::ptrdiff_t>(before), transport_.sends.end(),
                       [](const auto& sent) { return sent.header.kind == FrameKind::kKv; });
  }
  // One turn of everything: a step, what it sends, what the peer says to that.
  void Turn() {
    worker_->Step(clock_.Now());
    sender_->Poll(clock_.Now());
    for (; connected_ < transport_.connects.size(); ++connected_) {
      const proto::KvLayout layout = ToProto(kLayout);
      proto::Hello hello = MakeHello("decode", {99}, "hash", layout, KvCodec::kBf16, {KvCodec::kBf16});
      hello.set_credit_bytes(1 << 16);
      transport_.connects[connected_](hello.SerializeAsString());
    }
    for (; sent_ < transport_.sends.size(); ++sent_) {
      const FakeTransport::Sent sent = transport_.sends[sent_];
      sent.done(absl::OkStatus());
      if (sent.header.kind == FrameKind::kKv)
        Answer(sent, {.kind = FrameKind::kCredit}, EncodeCredit(credit_given_[sent.connection] += sent.payload.size()));
      if (sent.header.kind == FrameKind::kCommit && decode_answers) AnswerCommit(sent);
    }
    sender_->Poll(clock_.Now());
  }
  void Run(int turns = 40) {
    for (int i = 0; i < turns; ++i) Turn();
  }
  void AnswerCommit(const FakeTransport::Sent& sent) {
    Answer(sent, {.kind = FrameKind::kResult},
           MakeTransferResult(sent.header.request, sent.header.reservation, sent.header.generation, commit_answer)
               .SerializeAsString());
  }
  void Answer(const FakeTransport::Sent& sent, KvFrameHeader header, const std::string& payload) {
    header.payload_bytes = payload.size();
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload.data()), payload.size());
    const auto landing = sender_->receiver()->OnMessage(sent.connection, Encode(header, bytes), payload.size());
    ASSERT_TRUE(landing.ok()) << landing.status();
    landing->Copy(bytes);
    sender_->receiver()->OnLanded(sent.connection, landing->token, absl::OkStatus());
  }

  proto::HandoffRecord RecordOf(uint64_t request) {
    proto::HandoffRecord record;
    for (const auto& sent : transport_.sends) {
      if (sent.header.kind != FrameKind::kCommit || sent.header.request.value != request) continue;
      EXPECT_TRUE(record.ParseFromString(sent.payload));
    }
    EXPECT_EQ(record.request_id(), request) << "no commit";
    return record;
  }
  // Tokens whose KV was sent, in every layer.
  std::set<uint32_t> KvTokensSent(uint64_t request) const {
    std::map<uint32_t, int> layers;  // by token
    for (const auto& sent : transport_.sends) {
      if (sent.header.kind != FrameKind::kKv || sent.header.request.value != request) continue;
      for (uint32_t t = 0; t < sent.header.tokens; ++t) layers[sent.header.first_token + t] += sent.header.layers;
    }
    std::set<uint32_t> tokens;
    for (const auto& [token, count] : layers) {
      EXPECT_LE(count, kLayout.layers) << "twice: token " << token;
      if (count == kLayout.layers) tokens.insert(token);
    }
    return tokens;
  }
  void ExpectHandedOff(const proto::PrefillRequest& request) {
    ASSERT_TRUE(replies_.contains(request.request_id()));
    EXPECT_TRUE(replies_.at(request.request_id()).ok()) << replies_.at(request.request_id()).status();
    const proto::HandoffRecord record = RecordOf(request.request_id());
    const HandoffExpectation expected = {.request = {request.request_id()},
                                         .prompt_tokens = request.prompt_ids_size(),
                                         .kv_from_token = static_cast<int>(record.kv_from_token()),
                                         .kv_tokens = request.prompt_ids_size(),
                                         .n = request.sampling().n(),
                                         .max_tokens = request.sampling().max_tokens(),
                                         .vocab_size = kVocab};
    const Status valid = Validate(record, expected);
    EXPECT_TRUE(valid.ok()) << valid;
    std::set<uint32_t> named;
    for (uint32_t t = record.kv_from_token(); t < record.kv_tokens(); ++t) named.insert(t);
    EXPECT_EQ(KvTokensSent(request.request_id()), named);
  }
  absl::StatusCode CodeOf(const proto::PrefillRequest& request) {
    if (!replies_.contains(request.request_id())) return absl::StatusCode::kUnknown;
    return replies_.at(request.request_id()).status().code();
  }

  int64_t queued_tokens_max_ = 200;
  int prefix_cache_pages_ = 0;
  ManualClock clock_;
  PrefillMetrics metrics_;
  std::unique_ptr<KvPool> pool_ =
      *KvPool::Create({.layout = kLayout, .codec = KvCodec::kBf16, .page_tokens = kPageTokens, .pages = kPages});
  FakeTransport transport_;
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<Worker> worker_;
  std::map<uint64_t, StatusOr<proto::PrefillReply>> replies_;
  std::vector<std::vector<int>> steps_;
  std::vector<float> logits_;
  std::optional<Status> forward_error;
  bool poison_logits = false;
  bool decode_answers = true;
  Status commit_answer;
  uint64_t last_request_ = 0;
  size_t connected_ = 0;
  size_t sent_ = 0;
  std::map<ConnectionId, uint64_t> credit_given_;
  bool kv_sent_in_step_ = false;  // some KV left before its step's end
};

class WorkerSendTest : public WorkerTest, public ::testing::WithParamInterface<SendWhen> {
 protected:
  SendWhen send_when() const override { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, WorkerSendTest, ::testing::Values(SendWhen::kLayer, SendWhen::kChunk, SendWhen::kPrompt),
                         [](const auto& info) {
                           return std::string(info.param == SendWhen::kLayer   ? "Layer"
                                              : info.param == SendWhen::kChunk ? "Chunk"
                                                                               : "Prompt");
                         });

TEST_F(WorkerTest, APromptRunsInChunksAndIsHandedOffWithItsFirstToken) {
  const auto request = Request(25);
  ASSERT_TRUE(Submit(request).ok());
  Run();
  EXPECT_THAT(steps_, ElementsAre(ElementsAre(10), ElementsAre(10), ElementsAre(5)));
  ExpectHandedOff(request);
  const proto::HandoffRecord record = RecordOf(request.request_id());
  EXPECT_EQ(record.kv_tokens(), 25u);
  EXPECT_EQ(record.choices(0).generated(0), 6);
  EXPECT_EQ(record.choices(0).unsent(0).token(), 6);
  EXPECT_EQ(record.choices(0).finish(), proto::FINISH_NONE);
  EXPECT_EQ(record.times().prefill_us(), 300'000);
  EXPECT_EQ(replies_.at(1)->kv_bytes(), Bytes(kLayout, KvCodec::kBf16, 25));
}

TEST_P(WorkerSendTest, KvLeavesAtItsTime) {
  ASSERT_TRUE(Submit(Request(1)).ok());
  Run(5);  // connected
  kv_sent_in_step_ = false;
  ASSERT_TRUE(Submit(Request(25)).ok());
  Turn();
  Turn();
  EXPECT_EQ(kv_sent_in_step_, GetParam() == SendWhen::kLayer);
  EXPECT_EQ(KvTokensSent(2).size(), GetParam() == SendWhen::kPrompt ? 0u : 20u);
  Turn();
  EXPECT_EQ(KvTokensSent(2).size(), 25u);
}

TEST_P(WorkerSendTest, PromptsAroundPageBordersCarryTheirOwnTokenCount) {
  for (const int tokens : {1, 2, 3, 4, 5, 8, 12, 16, 17}) {
    const auto request = Request(tokens);
    ASSERT_TRUE(Submit(request).ok());
    Run();
    ExpectHandedOff(request);
    EXPECT_EQ(RecordOf(request.request_id()).kv_tokens(), static_cast<uint32_t>(tokens));
  }
}

TEST_P(WorkerSendTest, OnlyTheKvThatDecodeLacksIsSent) {
  for (const uint32_t from : {1u, 4u, 9u, 10u, 11u, 20u, 24u, 25u}) {
    const auto request = Request(25);
    ASSERT_TRUE(Submit(request, from).ok());
    Run();
    ExpectHandedOff(request);
    EXPECT_EQ(RecordOf(request.request_id()).kv_from_token(), from);
    EXPECT_EQ(KvTokensSent(request.request_id()).size(), 25 - from);
  }
}

TEST_F(WorkerTest, EachOfNChoicesHasItsFirstTokenAndThePromptRunsOnce) {
  SamplingParams sampling = {.temperature = 1};
  sampling.n = 4;
  const auto request = Request(7, 5, sampling);
  ASSERT_TRUE(Submit(request).ok());
  Run();
  EXPECT_THAT(steps_, ElementsAre(ElementsAre(7)));
  ExpectHandedOff(request);
  EXPECT_EQ(RecordOf(request.request_id()).usage().completion_tokens(), 4u);
}

TEST_P(WorkerSendTest, AFirstTokenThatEndsTheAnswerIsHandedOverAndKvThatHasNotLeftIsNot) {
  const auto eos = Request(25, kEos - 1);
  SamplingParams stop = {.temperature = 0};
  stop.stop_token_ids = {6};
  const auto stopped = Request(8, 5, stop);
  SamplingParams one = {.temperature = 0};
  one.max_tokens = 1;
  const auto limited = Request(8, 5, one);
  for (const auto& request : {eos, stopped, limited}) ASSERT_TRUE(Submit(request).ok());
  Run();
  for (const auto& request : {eos, stopped, limited}) ExpectHandedOff(request);
  EXPECT_EQ(RecordOf(1).choices(0).finish(), proto::FINISH_STOP);
  // Prompts of earlier chunks went while later ones were computed; nothing is held back for a connection here.
  EXPECT_EQ(RecordOf(1).kv_tokens(), GetParam() == SendWhen::kLayer ? 25u : GetParam() == SendWhen::kChunk ? 20u : 0u);
  EXPECT_EQ(RecordOf(2).choices(0).finish(), proto::FINISH_STOP);
  EXPECT_EQ(RecordOf(3).choices(0).finish(), proto::FINISH_LENGTH);
  EXPECT_EQ(RecordOf(3).usage().completion_tokens(), 1u);
}

TEST_F(WorkerTest, MorePromptsThanPagesAllEnd) {
  std::vector<proto::PrefillRequest> requests;
  for (int i = 0; i < 32; ++i) {
    requests.push_back(Request(1 + i % 9));
    ASSERT_TRUE(Submit(requests.back()).ok());
  }
  Run(200);
  for (const auto& request : requests) ExpectHandedOff(request);
  EXPECT_EQ(pool_->pages_free(), kPages);
}

TEST_F(WorkerTest, PromptsThatArePrunedShareTheMemoryForItInOrder) {
  const CachePolicy h2o = {.kind = CachePolicyKind::kH2o, .budget = kPrunedTokensMax, .window = 10};
  const auto too_long =
      Submit(Request(kPrunedTokensMax + 1), 0, {.kind = CachePolicyKind::kH2o, .budget = 21, .window = 10}).status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("takes 846 bytes, prefill has 820"));

  decode_answers = false;
  const auto first = Request(20), second = Request(20), behind = Request(4);
  ASSERT_TRUE(Submit(first, 0, h2o).ok() && Submit(second, 0, h2o).ok() && Submit(behind).ok());
  Run(5);
  EXPECT_THAT(steps_, ElementsAre(ElementsAre(10), ElementsAre(10)));  // though there are pages for all
  decode_answers = true;
  for (const FakeTransport::Sent& sent : std::vector(transport_.sends)) {
    if (sent.header.kind == FrameKind::kCommit) AnswerCommit(sent);
  }
  Run();
  EXPECT_THAT(steps_, ElementsAre(ElementsAre(10), ElementsAre(10), ElementsAre(10), ElementsAre(10), ElementsAre(4)));
  for (const auto& request : {first, second, behind}) EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk);
}

TEST_F(WorkerTest, ACancelledPromptGivesItsPagesBackInEveryState) {
  decode_answers = false;
  const auto handing_off = Request(4), computing = Request(40), queued = Request(30);
  const PromptId a = *Submit(handing_off), b = *Submit(computing), c = *Submit(queued);
  Turn();
  Turn();
  ASSERT_EQ(replies_.size(), 0u);
  for (const PromptId id : {a, b, c}) worker_->Cancel(id);
  Run(3);
  for (const auto& request : {handing_off, computing, queued})
    EXPECT_EQ(CodeOf(request), absl::StatusCode::kCancelled) << request.request_id();
  EXPECT_EQ(pool_->pages_free(), kPages);
  int aborts = 0;
  for (const auto& sent : transport_.sends) aborts += sent.header.kind == FrameKind::kAbort;
  EXPECT_EQ(aborts, 2) << "decode hears of the two that had begun";
}

TEST_F(WorkerTest, ALateOrUnknownCancellationDoesNothing) {
  const auto request = Request(4);
  const PromptId id = *Submit(request);
  Run();
  worker_->Cancel(id);
  worker_->Cancel({12345});
  Run(3);
  ExpectHandedOff(request);
}

TEST_F(WorkerTest, DeadlinesFireWithoutTrafficWhetherQueuedOrComputed) {
  decode_answers = false;
  const auto waits_for_decode = Request(60), waits_for_pages = Request(60);
  ASSERT_TRUE(Submit(waits_for_decode).ok());
  ASSERT_TRUE(Submit(waits_for_pages).ok());
  for (int i = 0; i < 8; ++i) Turn();
  clock_.Advance(absl::Seconds(5));
  Run(3);
  EXPECT_EQ(replies_.size(), 0u);
  clock_.Advance(absl::Seconds(60));
  Run(3);
  EXPECT_EQ(CodeOf(waits_for_decode), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CodeOf(waits_for_pages), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WorkerTest, DecodesRefusalIsTheAnswer) {
  commit_answer = absl::DataLossError("a frame was damaged");
  const auto request = Request(4);
  ASSERT_TRUE(Submit(request).ok());
  Run();
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kDataLoss);
}

TEST_F(WorkerTest, ALostPeerStopsTheComputationForIt) {
  const auto request = Request(60);
  ASSERT_TRUE(Submit(request).ok());
  Turn();
  Turn();
  sender_->receiver()->OnClosed({1}, absl::UnavailableError("gone"));
  Run(5);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kUnavailable);
  EXPECT_LT(steps_.size(), 5u);
}

TEST_F(WorkerTest, AFailedStepFailsItsPromptsOnly) {
  const auto bad = Request(4);
  forward_error = absl::InvalidArgumentError("odd");
  ASSERT_TRUE(Submit(bad).ok());
  Run(3);
  EXPECT_EQ(CodeOf(bad), absl::StatusCode::kInternal);
  forward_error.reset();
  const auto good = Request(4);
  ASSERT_TRUE(Submit(good).ok());
  Run();
  ExpectHandedOff(good);
}

TEST_F(WorkerTest, LogitsThatAreNoNumbersFailTheirPromptAndTellDecode) {
  ASSERT_TRUE(Submit(Request(4)).ok());
  Run(5);  // connected
  poison_logits = true;
  const auto request = Request(4);
  ASSERT_TRUE(Submit(request).ok());
  Run(5);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInternal);
  EXPECT_EQ(transport_.sends.back().header.kind, FrameKind::kAbort);
}

TEST_F(WorkerTest, WhatIsBeyondABoundIsRefusedAtOnceWithBothNumbers) {
  const Status large = Submit(Request(65)).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(large.message()), HasSubstr("65 tokens, prefill's KV pool holds 64"));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Submit(Request(60)).ok());
  const Status tokens = Submit(Request(21)).status();
  EXPECT_EQ(tokens.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tokens.message()), HasSubstr("180 prompt tokens waiting, at most 200"));
  worker_->Stop();
  Run();
}

TEST_F(WorkerTest, MoreRequestsThanAllowedAreRefused) {
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Submit(Request(1)).ok());
  EXPECT_EQ(Submit(Request(1)).status().code(), absl::StatusCode::kResourceExhausted);
  Run(100);
  EXPECT_TRUE(Submit(Request(1)).ok());
}

TEST_F(WorkerTest, DrainingRefusesNewPromptsAndFinishesTheOthers) {
  const auto running = Request(30);
  ASSERT_TRUE(Submit(running).ok());
  EXPECT_FALSE(worker_->Drain(absl::InfinitePast()));
  EXPECT_EQ(Submit(Request(1)).status().code(), absl::StatusCode::kUnavailable);
  Run();
  ExpectHandedOff(running);
  EXPECT_TRUE(worker_->Drain(absl::InfinitePast()));
}

TEST_F(WorkerTest, StoppingAnswersEveryone) {
  const auto computing = Request(30), queued = Request(60);
  ASSERT_TRUE(Submit(computing).ok());
  ASSERT_TRUE(Submit(queued).ok());
  Turn();
  worker_->Stop();
  Run(3);
  EXPECT_EQ(CodeOf(computing), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(queued), absl::StatusCode::kUnavailable);
}

TEST_F(WorkerTest, LoadSaysWhatWaitsAndHowFastItGoes) {
  EXPECT_EQ(worker_->load().tokens_per_s, 100);
  ASSERT_TRUE(Submit(Request(25)).ok());
  EXPECT_EQ(worker_->load().queued_tokens, 25);
  EXPECT_EQ(worker_->load().requests, 1);
  Turn();
  EXPECT_EQ(worker_->load().queued_tokens, 15);
  EXPECT_NEAR(worker_->load().tokens_per_s, 100, 1);  // 10 tokens in 100 ms
  EXPECT_EQ(worker_->load().pages_free, kPages - 7);
  EXPECT_EQ(worker_->load().transfer_tokens_per_s, 0);
  decode_answers = false;
  Turn();
  Turn();
  clock_.Advance(absl::Milliseconds(50));
  AnswerCommit(transport_.sends.back());
  Run();
  EXPECT_NEAR(worker_->load().transfer_tokens_per_s, 25 / 0.05, 1);
}

// --- prompts that begin alike ---

class PrefixTest : public WorkerTest {
 protected:
  PrefixTest() {
    prefix_cache_pages_ = kPages;
    queued_tokens_max_ = 1000;
  }
  // Runs it to its end and returns what its usage says was cached.
  uint32_t CachedTokens(const proto::PrefillRequest& request) {
    EXPECT_TRUE(Submit(request).ok());
    Run();
    ExpectHandedOff(request);
    return RecordOf(request.request_id()).usage().cached_tokens();
  }
  int TokensComputed() {
    int tokens = 0;
    for (const auto& step : std::exchange(steps_, {})) tokens = std::accumulate(step.begin(), step.end(), tokens);
    return tokens;
  }
};

class PrefixSendTest : public PrefixTest, public ::testing::WithParamInterface<SendWhen> {
 protected:
  SendWhen send_when() const override { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, PrefixSendTest, ::testing::Values(SendWhen::kLayer, SendWhen::kChunk, SendWhen::kPrompt));

TEST_F(PrefixTest, APromptStartsBehindItsLongestCachedPrefixAndSendsAllOfItsKv) {
  EXPECT_EQ(CachedTokens(Request(25)), 0u);
  EXPECT_EQ(TokensComputed(), 25);
  const auto longer = Request(30);
  EXPECT_EQ(CachedTokens(longer), 24u);
  EXPECT_EQ(TokensComputed(), 6);
  EXPECT_EQ(KvTokensSent(longer.request_id()).size(), 30u);
  EXPECT_EQ(metrics_.prefix_hit_tokens.Value(), 24);
  EXPECT_EQ(metrics_.prefix_miss_tokens.Value(), 31);
}

TEST_P(PrefixSendTest, OfWhatIsCachedOnlyThatIsSentWhichDecodeLacks) {
  ASSERT_TRUE(Submit(Request(25)).ok());
  Run();
  for (const uint32_t from : {0u, 8u, 23u, 24u, 28u}) {
    const auto request = Request(30);
    ASSERT_TRUE(Submit(request, from).ok());
    Run();
    ExpectHandedOff(request);
    EXPECT_EQ(KvTokensSent(request.request_id()).size(), 30 - from);
  }
}

TEST_F(PrefixTest, TheSamePromptAgainComputesAtLeastItsLastToken) {
  for (int pages = 1; pages <= 8; ++pages) {
    for (const int tokens : {pages * kPageTokens, pages * kPageTokens + 1}) {
      const TokenId own = 50 + pages;  // so that lengths do not meet in the cache
      auto prompt = Request(tokens);
      prompt.set_prompt_ids(0, own);
      CachedTokens(prompt);
      const auto expected = static_cast<uint32_t>((tokens - 1) / kPageTokens * kPageTokens);
      for (int again = 0; again < 2; ++again) {
        prompt.set_request_id(++last_request_);
        EXPECT_EQ(CachedTokens(prompt), expected) << tokens;
        EXPECT_EQ(RecordOf(prompt.request_id()).choices(0).generated(0), 6) << tokens;
      }
    }
  }
}

TEST_F(PrefixTest, APrefixServesOthersWhileItIsStillBeingSent) {
  decode_answers = false;
  ASSERT_TRUE(Submit(Request(13)).ok());
  Run(4);
  const auto second = Request(14);
  ASSERT_TRUE(Submit(second).ok());
  Run(4);
  EXPECT_EQ(RecordOf(second.request_id()).usage().cached_tokens(), 12u);
  EXPECT_EQ(pool_->pages_leased(), 5);  // 4 and 4, of which 3 are shared
  worker_->Stop();
}

TEST_F(PrefixTest, ManyDistinctPromptsPushEachOtherOutAndAllEnd) {
  std::vector<proto::PrefillRequest> requests;
  for (int i = 0; i < 32; ++i) {  // four fit at once
    requests.push_back(Request(16));
    requests.back().set_prompt_ids(0, i);
    ASSERT_TRUE(Submit(requests.back()).ok());
  }
  Run(200);
  for (const auto& request : requests) ExpectHandedOff(request);
  EXPECT_EQ(metrics_.prefix_evictions.Value(), 32 * 4 - kPages);
}

TEST_F(PrefixTest, WhoSharesPagesThatAreHeldNeedsNoRoomForThem) {
  decode_answers = false;
  const auto first = Request(56), second = Request(57);  // 14 and 15 pages of 16, of which they share 14
  ASSERT_TRUE(Submit(first).ok());
  Run(10);
  ASSERT_TRUE(Submit(second).ok());
  Run(10);
  EXPECT_EQ(RecordOf(second.request_id()).usage().cached_tokens(), 56u);
  worker_->Stop();
}

TEST_F(PrefixTest, AHitLeavesRoomInTheStepForTheNextPrompt) {
  CachedTokens(Request(9));
  steps_.clear();
  ASSERT_TRUE(Submit(Request(9)).ok());
  ASSERT_TRUE(Submit(Request(9)).ok());
  Run();
  EXPECT_THAT(steps_, ElementsAre(ElementsAre(1, 1)));
}

TEST_F(PrefixTest, AFailedTransferLeavesThePrefixWhole) {
  commit_answer = absl::DataLossError("a frame was damaged");
  const auto failed = Request(9);
  ASSERT_TRUE(Submit(failed).ok());
  Run();
  EXPECT_EQ(CodeOf(failed), absl::StatusCode::kDataLoss);
  commit_answer = absl::OkStatus();
  EXPECT_EQ(CachedTokens(Request(10)), 8u);
}

TEST_F(PrefixTest, WhatWasNotComputedWholeIsNotKept) {
  const auto cancelled = Request(40);
  const PromptId id = *Submit(cancelled);
  Turn();
  worker_->Cancel(id);
  Run(3);
  poison_logits = true;
  ASSERT_TRUE(Submit(Request(8)).ok());
  Run(3);
  EXPECT_EQ(pool_->pages_cached(), 0);
}

}  // namespace
}  // namespace sluice::prefill
