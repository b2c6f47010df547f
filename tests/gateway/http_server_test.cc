#include "gateway/http_server.h"

#include <functional>
#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/http_client.h"

namespace sluice {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Answers "/echo" with the body, never answers "/hang", streams events on "/events".
class EchoHandler final : public HttpHandler {
 public:
  class Exchange final : public HttpExchange {
   public:
    Exchange(EchoHandler* handler, HttpReply* reply) : handler_(handler), reply_(reply) { ++handler_->alive; }
    ~Exchange() override { --handler_->alive; }
    void OnDrained() override {
      if (flooding && sent < 200) reply_->SendEvent(std::string(1 << 16, 'x')), ++sent;
    }
    bool flooding = false;
    int sent = 0;

   private:
    EchoHandler* handler_;
    HttpReply* reply_;
  };

  std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply* reply) override {
    auto exchange = std::make_unique<Exchange>(this, reply);
    if (request.path == "/echo") {
      reply->Send({.body = request.method + " " + request.body, .content_type = "text/plain"});
    } else if (request.path == "/events" || request.path == "/flood") {
      reply->StartEvents({{"X-Request-Id", "7"}});
      reply->SendEvent("one");
      exchange->flooding = request.path == "/flood";
      if (!exchange->flooding) reply->SendEvent("two"), reply->EndEvents();
    } else if (request.path != "/hang") {
      reply->Send({.status = 404, .body = "{}"});
    }
    return exchange;
  }
  HttpResponse Refuse(int status, std::string_view why) override {
    return {.status = status, .body = std::string(why)};
  }

  std::atomic<int> alive{0};
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.listen = "127.0.0.1:0";
    options_.header_bytes_max = 2048;
    options_.body_bytes_max = 4096;
    options_.body_bytes_total_max = 8192;
    options_.connections_max = 4;
    options_.header_timeout_ms = options_.body_timeout_ms = options_.write_timeout_ms = 300;
    options_.idle_timeout_ms = 600;
    auto server = HttpServer::Create(options_, &loop_, &handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = ParseHostPort(server_->address())->port;
    thread_ = std::thread([this] { loop_.Run(); });
  }
  void TearDown() override {
    loop_.Stop();
    thread_.join();
  }
  template <typename T>
  T OnLoop(std::function<T()> function) {
    std::promise<T> result;
    loop_.Post([&] { result.set_value(function()); });
    return result.get_future().get();
  }
  HttpCounts Counts() {
    return OnLoop<HttpCounts>([this] { return server_->counts(); });
  }
  void AwaitNoExchange() {
    for (int i = 0; i < 1000 && handler_.alive > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(handler_.alive, 0);
  }
  static std::string Post(const std::string& path, const std::string& body) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  }

  GatewayOptions options_;
  AsioLoop loop_{1};
  EchoHandler handler_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  int port_ = 0;
};

TEST_F(HttpServerTest, KeepsTheConnectionForTheNextRequest) {
  HttpClient client(port_);
  client.Send(Post("/echo", "a"));
  EXPECT_THAT(client.ReadUntil("POST a"), HasSubstr("Connection: keep-alive"));
  client.Send("GET /echo?x=1 HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("GET "), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  HttpClient client(port_);
  client.Send(Post("/echo", "first") + Post("/echo", "second") + "GET /none HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("POST first"), EndsWith("POST first"));
  EXPECT_THAT(client.ReadUntil("POST second"), EndsWith("POST second"));
  EXPECT_THAT(client.ReadUntil("{}"), StartsWith("HTTP/1.1 404"));
}

TEST_F(HttpServerTest, ClosesWhereTheClientAsksForIt) {
  HttpClient client(port_);
  client.Send("GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("Connection: close"));
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  HttpClient client(port_);
  client.Send("HEAD /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, EventsComeInChunks) {
  HttpClient client(port_);
  client.Send("GET /events HTTP/1.1\r\n\r\n");
  const std::string answer = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(answer, HasSubstr("X-Request-Id: 7"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nb\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n"));
  client.Send(Post("/echo", "still here"));
  EXPECT_THAT(client.ReadUntil("still here"), EndsWith("still here"));
}

TEST_F(HttpServerTest, EventsForOldClientsEndWithTheConnection) {
  HttpClient client(port_);
  client.Send("GET /events HTTP/1.0\r\n\r\n");
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  EXPECT_THAT(answer, EndsWith("\r\n\r\ndata: one\n\ndata: two\n\n"));
}

TEST_F(HttpServerTest, TakesChunkedBodies) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("POST abcde"), EndsWith("POST abcde"));
}

TEST_F(HttpServerTest, RefusesBadChunking) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpServerTest, RefusesTwoLengths) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpServerTest, RefusesGarbage) {
  HttpClient client(port_);
  client.Send(std::string("\x16\x03\x01\x02\x00\x01\x00", 7) + "not http\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpServerTest, RefusesAHeaderThatIsTooLarge) {
  HttpClient client(port_);
  client.Send("GET /echo HTTP/1.1\r\nX: " + std::string(4000, 'x') + "\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpServerTest, RefusesABodyThatIsTooLargeBeforeReadingIt) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, AClientThatSendsTooMuchStillSeesTheRefusal) {
  HttpClient client(port_);
  client.Send(Post("/echo", std::string(3 << 20, 'x')));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, RefusesChunksThatAddUpToTooMuch) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n" + std::string(0x2000, 'x'));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, BodiesOfAllConnectionsTogetherAreBounded) {
  HttpClient a(port_), b(port_), c(port_);
  const std::string begun = "POST /echo HTTP/1.1\r\nContent-Length: 4096\r\n\r\n" + std::string(4095, 'x');
  a.Send(begun);
  b.Send(begun);
  while (Counts().connections < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  c.Send(begun);
  EXPECT_THAT(c.ReadAll(), StartsWith("HTTP/1.1 503"));
}

TEST_F(HttpServerTest, BodiesThatAreOnlyAnnouncedTakeNoRoom) {
  HttpClient a(port_), b(port_), c(port_);
  a.Send("POST /echo HTTP/1.1\r\nContent-Length: 4096\r\n\r\nx");
  b.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx");
  while (Counts().connections < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  c.Send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
  EXPECT_THAT(c.ReadAll(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AsksForTheBodyWhereTheClientWaitsToBeAsked) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_THAT(client.ReadUntil("POST ok"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ASlowHeaderIsTimedOutThoughBytesKeepComing) {
  HttpClient client(port_);
  client.Send("GET /echo HTTP/1.1\r\nX: ");
  std::thread trickle([&] {
    while (client.Send("x") && !client.closed()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 408"));
  trickle.join();
}

TEST_F(HttpServerTest, ASlowBodyIsTimedOut) {
  HttpClient client(port_);
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 408"));
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedInSilence) {
  HttpClient client(port_);
  EXPECT_EQ(client.ReadAll(), "");
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, AClientThatLeavesWhileNothingIsWrittenIsNoticed) {
  HttpClient client(port_);
  client.Send("GET /hang HTTP/1.1\r\n\r\n");
  while (handler_.alive == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  client.Close();
  AwaitNoExchange();
  EXPECT_EQ(Counts().clients_left, 1u);
}

TEST_F(HttpServerTest, AHalfClosedClientCountsAsGoneWhileItsAnswerIsComputed) {
  HttpClient client(port_);
  client.Send("GET /hang HTTP/1.1\r\n\r\n");
  client.HalfClose();
  EXPECT_EQ(client.ReadAll(), "");
  AwaitNoExchange();
}

TEST_F(HttpServerTest, AHalfClosedClientGetsAnAnswerThatIsComplete) {
  HttpClient client(port_);
  client.Send("GET /echo HTTP/1.1\r\n\r\n");
  client.HalfClose();
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AClientThatStopsReadingIsLeft) {
  HttpClient client(port_);
  client.Send("GET /flood HTTP/1.1\r\n\r\n");
  while (handler_.alive == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  AwaitNoExchange();
}

TEST_F(HttpServerTest, PipeliningDoesNotHideThatTheClientHasLeft) {
  HttpClient client(port_);
  client.Send("GET /hang HTTP/1.1\r\n\r\nGET /hang HTTP/1.1\r\n\r\n");
  while (handler_.alive == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  client.Close();
  AwaitNoExchange();
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitAreToldSo) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port_));
    clients.back()->Send("GET /hang HTTP/1.1\r\n\r\n");
  }
  while (handler_.alive < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HttpClient fifth(port_);
  EXPECT_THAT(fifth.ReadAll(), StartsWith("HTTP/1.1 503"));
  clients.pop_back();
  while (handler_.alive == 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HttpClient sixth(port_);
  sixth.Send(Post("/echo", "room again"));
  EXPECT_THAT(sixth.ReadUntil("room again"), EndsWith("room again"));
}

TEST_F(HttpServerTest, DrainClosesIdleConnectionsAndFinishesAnswers) {
  HttpClient idle(port_), busy(port_);
  busy.Send("GET /hang HTTP/1.1\r\n\r\n");
  while (handler_.alive != 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  idle.Send(Post("/echo", "a"));
  idle.ReadUntil("POST a");
  while (handler_.alive != 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  OnLoop<int>([this] {
    server_->Drain();
    return 0;
  });
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_EQ(OnLoop<int>([this] { return server_->exchanges(); }), 1);
  EXPECT_FALSE(HttpClient(port_).connected());
}

}  // namespace
}  // namespace sluice
