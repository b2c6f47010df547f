#include "gateway/gateway.h"

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/gateway/fake_tokenizer.h"
#include "tests/gateway/fake_workers.h"
#include "tests/gateway/http_client.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Script = FakeWorkers::Script;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ServedModel FakeModel() {
  ServedModel model;
  model.name = "fake";
  model.model_hash = "hash";
  model.vocab_size = 258;
  model.context_tokens_max = 512;
  model.tokenizer = std::make_unique<FakeTokenizer>();
  model.no_chat_template = "the model has no chat template";
  return model;
}

// Says that it has begun to encode, takes its time, and says that it has ended.
class SlowTokenizer final : public Tokenizer {
 public:
  SlowTokenizer(absl::Notification* begun, std::atomic<bool>* ended) : begun_(begun), ended_(ended) {}

  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const override {
    std::atomic<bool>* const ended = ended_;
    std::vector<TokenId> ids = bytes_.Encode(text, special);
    begun_->Notify();
    absl::SleepFor(absl::Milliseconds(200));
    *ended = true;
    return ids;
  }
  std::string_view Bytes(TokenId id, bool show_special) const override { return bytes_.Bytes(id, show_special); }
  bool IsSpecial(TokenId id) const override { return bytes_.IsSpecial(id); }
  int vocab_size() const override { return bytes_.vocab_size(); }
  bool add_bos() const override { return false; }
  TokenId bos_id() const override { return -1; }

 private:
  FakeTokenizer bytes_;
  absl::Notification* const begun_;
  std::atomic<bool>* const ended_;
};

// A whole gateway with real HTTP and real gRPC on loopback, over workers that follow a script.
class GatewayTest : public testing::Test {
 protected:
  void SetUp() override {
    workers_.Start();
    options_.model_path = "unused";
    options_.listen = "127.0.0.1:0";
    options_.decode_workers = {workers_.decode_address()};
    options_.prefill_workers = {workers_.prefill_address()};
    options_.status_period_ms = 50;
    options_.canary_period_ms = 100;
    options_.room_wait_ms = 100;
  }
  void StartGateway(ServedModel model = FakeModel()) {
    auto gateway = Gateway::Create(options_, std::move(model), &loop_);
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = *std::move(gateway);
    port_ = ParseHostPort(gateway_->address())->port;
    thread_ = std::thread([this] { loop_.Run(); });
  }
  void StartReady() {
    StartGateway();
    Eventually([this] { return Get("/ready").find("\"ready\":true") != std::string::npos; });
  }
  void TearDown() override {
    loop_.Stop();
    if (thread_.joinable()) thread_.join();
    gateway_.reset();
  }

  static void Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 2000; ++i) {
      if (holds()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << "did not come true in ten seconds";
  }
  std::string Get(const std::string& path) {
    HttpClient client(port_);
    client.Send("GET " + path + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    return client.ReadAll();
  }
  static std::string Body(const std::string& path, const std::string& body) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n",
                        body);
  }
  std::string Post(const std::string& body, const std::string& path = "/v1/completions") {
    HttpClient client(port_);
    client.Send(Body(path, body));
    return client.ReadAll();
  }
  static Json JsonOf(const std::string& answer) { return Json::parse(answer.substr(answer.find("\r\n\r\n") + 4)); }
  // Canaries come and go: what matters is that it comes down.
  void ExpectNothingHeld() {
    Eventually([this] { return workers_.reserved == 0 && workers_.generating == 0 && workers_.running == 0; });
  }

  FakeWorkers workers_;
  GatewayOptions options_;
  AsioLoop loop_{1};
  std::unique_ptr<Gateway> gateway_;
  std::thread thread_;
  int port_ = 0;
};

TEST_F(GatewayTest, AnswersACompletion) {
  StartReady();
  const std::string answer = Post(R"({"model":"fake","prompt":"hello","max_tokens":3})");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  const Json body = JsonOf(answer);
  EXPECT_EQ(body["choices"][0]["text"], "HEL");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
}

TEST_F(GatewayTest, StreamsACompletion) {
  StartReady();
  const std::string answer = Post(R"({"prompt":[104,105],"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_THAT(answer, HasSubstr("text/event-stream"));
  EXPECT_THAT(answer, HasSubstr("\"text\":\"H\""));
  EXPECT_THAT(answer, HasSubstr("\"text\":\"I\""));
  EXPECT_THAT(answer, HasSubstr("\"total_tokens\":4"));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]\n\n"));
}

TEST_F(GatewayTest, EveryChoiceComesBackUnderItsIndex) {
  StartReady();
  const Json body = JsonOf(Post(R"({"prompt":"ab","n":4})"));
  ASSERT_EQ(body["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(body["choices"][i]["text"], "AB");
}

TEST_F(GatewayTest, LogprobsHaveAsManyEntriesAsTokens) {
  StartReady();
  const Json body = JsonOf(Post(R"({"prompt":"hello","max_tokens":4,"logprobs":0})"));
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), body["usage"]["completion_tokens"]);
}

TEST_F(GatewayTest, ErrorsHaveTheirStatusAndBody) {
  StartReady();
  EXPECT_THAT(Post("{"), StartsWith("HTTP/1.1 400"));
  EXPECT_EQ(JsonOf(Post(R"({"prompt":"a","n":99})"))["error"]["param"], "n");
  EXPECT_THAT(Post(R"({"prompt":"a","model":"other"})"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Post(R"({"prompt":"a","kv_transfer_params":{}})"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post(R"({"prompt":""})"), HasSubstr("0 tokens"));
  EXPECT_THAT(Post("{}", "/v1/nothing"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/v1/completions"), HasSubstr("Allow: POST"));
  EXPECT_THAT(Post(R"({"messages":[{"role":"user","content":"x"}]})", "/v1/chat/completions"),
              HasSubstr("the model has no chat template"));
  EXPECT_THAT(Post("{\"prompt\":\"" + std::string(512, 'x') + "\"}"), HasSubstr("the prompt has 512 tokens"));
}

TEST_F(GatewayTest, AFullCacheIs429WithARetryHint) {
  StartReady();
  workers_.script = Script::kNoRoom;
  const std::string answer = Post(R"({"prompt":"a"})");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(answer, HasSubstr("Retry-After: "));
  EXPECT_THAT(answer, HasSubstr("needs 9 KV pages"));
}

TEST_F(GatewayTest, APrefillThatDiesIs503AndNothingIsHeld) {
  StartReady();
  workers_.script = Script::kPrefillFails;
  EXPECT_THAT(Post(R"({"prompt":"a"})"), StartsWith("HTTP/1.1 503"));
  ExpectNothingHeld();
}

TEST_F(GatewayTest, ADecodeThatDiesInAStreamIsAnErrorEvent) {
  StartReady();
  workers_.script = Script::kDecodeBreaks;
  const std::string answer = Post(R"({"prompt":"abc","stream":true})");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("data: {\"error\":{\"message\":\"decode "));
  EXPECT_THAT(answer, Not(HasSubstr("[DONE]")));
}

TEST_F(GatewayTest, ADecodeThatDiesBeforeAnythingWasSentIs503) {
  StartReady();
  workers_.script = Script::kDecodeBreaks;
  EXPECT_THAT(Post(R"({"prompt":"abc"})"), StartsWith("HTTP/1.1 503"));
  ExpectNothingHeld();
}

TEST_F(GatewayTest, AClientThatLeavesDuringPrefillCancelsBothLegs) {
  StartReady();
  workers_.script = Script::kPrefillHangs;
  HttpClient client(port_);
  client.Send(Body("/v1/completions", R"({"prompt":"abc"})"));
  Eventually([this] { return workers_.running == 1; });
  client.Close();
  ExpectNothingHeld();
}

TEST_F(GatewayTest, AClientThatLeavesDuringDecodeCancelsIt) {
  StartReady();
  workers_.script = Script::kDecodeHangs;
  HttpClient client(port_);
  client.Send(Body("/v1/completions", R"({"prompt":"abc","stream":true})"));
  EXPECT_THAT(client.ReadUntil("\"text\":\"A\""), EndsWith("\"text\":\"A\""));
  client.Close();
  ExpectNothingHeld();
}

TEST_F(GatewayTest, AReservationGrantedAfterTheClientHasLeftIsReleased) {
  StartReady();
  workers_.script = Script::kSlowReserve;
  HttpClient client(port_);
  client.Send(Body("/v1/completions", R"({"prompt":"abc"})"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  client.Close();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ExpectNothingHeld();
}

TEST_F(GatewayTest, WorkersMayComeAfterTheGateway) {
  const int decode = ParseHostPort(workers_.decode_address())->port;
  const int prefill = ParseHostPort(workers_.prefill_address())->port;
  workers_.Stop();
  StartGateway();
  EXPECT_THAT(Get("/ready"), HasSubstr("503"));
  EXPECT_THAT(Post(R"({"prompt":"a"})"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get("/health"), StartsWith("HTTP/1.1 200"));
  workers_.Start(decode, prefill);
  Eventually([this] { return Get("/ready").find("\"ready\":true") != std::string::npos; });
  EXPECT_THAT(Post(R"({"prompt":"a"})"), StartsWith("HTTP/1.1 200"));
}

TEST_F(GatewayTest, ReadinessFallsWhenWorkersGo) {
  StartReady();
  workers_.Stop();
  Eventually([this] { return Get("/ready").find("does not answer") != std::string::npos; });
}

TEST_F(GatewayTest, MetricsAndModelsAreServed) {
  StartReady();
  Post(R"({"prompt":"abc"})");
  const std::string metrics = Get("/metrics");
  EXPECT_THAT(metrics, HasSubstr("sluice_gateway_ready 1"));
  EXPECT_THAT(metrics, HasSubstr("sluice_gateway_route_decisions_total{outcome=\"disaggregated\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("sluice_gateway_completion_tokens_total 3"));
  EXPECT_THAT(Get("/v1/models"), HasSubstr("\"id\":\"fake\""));
  EXPECT_EQ(JsonOf(Get("/v1/models/fake"))["id"], "fake");
}

TEST_F(GatewayTest, ManyClientsAtOnceEachGetTheirOwnAnswer) {
  StartReady();
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([&, i] {
      const std::string prompt = absl::StrCat("prompt", i);
      const Json body = JsonOf(Post("{\"prompt\":\"" + prompt + "\"}"));
      right += body["choices"][0]["text"] == absl::StrCat("PROMPT", i);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 32);
  ExpectNothingHeld();
}

TEST_F(GatewayTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  StartReady();
  workers_.script = Script::kSlowReserve;
  HttpClient client(port_);
  client.Send(Body("/v1/completions", R"({"prompt":"abc"})"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  loop_.Post([this] { gateway_->Drain(); });
  EXPECT_THAT(client.ReadAll(), HasSubstr("\"text\":\"ABC\""));
  thread_.join();
  EXPECT_FALSE(HttpClient(port_).connected());
}

TEST_F(GatewayTest, EndsAfterThePreparationOfARequestWhoseClientHasLeft) {
  absl::Notification begun;
  std::atomic<bool> ended = false;
  ServedModel model = FakeModel();
  model.tokenizer = std::make_unique<SlowTokenizer>(&begun, &ended);
  StartGateway(std::move(model));
  HttpClient client(port_);
  client.Send(Body("/v1/completions", R"({"prompt":"abc"})"));
  begun.WaitForNotification();
  client.Close();
  loop_.Stop();
  thread_.join();
  gateway_.reset();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace sluice
