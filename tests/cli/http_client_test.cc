// The HTTP client, and `complete --url` and `chat --url` on top of it, against a server of canned answers.
#include "cli/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/command_line_runner.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// Answers each connection with the next of `answers` and keeps what was asked.
class CannedServer {
 public:
  explicit CannedServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~CannedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // REQUIRES: as many calls have ended as there are answers.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  void Serve() {
    for (const std::string& answer : answers_) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      std::string request;
      char bytes[4096];
      // The body is JSON on one line that ends the request.
      while (request.find("\r\n\r\n") == std::string::npos || request.back() != '}') {
        const ssize_t n = read(connection, bytes, sizeof(bytes));
        if (n <= 0) break;
        request.append(bytes, static_cast<size_t>(n));
      }
      requests_.push_back(request);
      // In two parts, so that an event may be split between them.
      const size_t half = answer.size() / 2;
      send(connection, answer.data(), half, MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      send(connection, answer.data() + half, answer.size() - half, MSG_NOSIGNAL);
      close(connection);
    }
  }

  std::vector<std::string> answers_;
  std::vector<std::string> requests_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

std::string Answer(const std::string& status, const std::string& type, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string Events(const std::vector<std::string>& events) {
  std::string body;
  for (const std::string& event : events) body += "data: " + event + "\n\n";
  return Answer("200 OK", "text/event-stream", body);
}

std::string CompletionEvents() {
  return Events({R"({"choices":[{"index":0,"text":"Hel","token_ids":[7],"finish_reason":null,)"
                 R"("logprobs":{"tokens":["Hel"],"token_logprobs":[-0.5],"top_logprobs":[{"Hel":-0.5,"x":-2}]}}]})",
                 R"({"choices":[{"index":0,"text":"lo","token_ids":[8,9],"finish_reason":"stop","logprobs":)"
                 R"({"tokens":["l","o"],"token_logprobs":[-1,-1.5],"top_logprobs":[null,null]}}]})",
                 R"({"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3},"timings":{"prefill_ms":2.5}})",
                 "[DONE]"});
}

StatusOr<HttpClient> ClientOf(const std::string& url) { return HttpClient::Create(url, absl::Seconds(5)); }

TEST(HttpClient, TakesUrlsOfAHostAndRefusesOthers) {
  for (const char* url : {"http://a", "http://a:1", "http://a:1/", "http://[::1]:80/prefix"}) {
    EXPECT_TRUE(ClientOf(url).ok()) << url;
  }
  for (const char* url : {"", "a:1", "https://a", "http://", "http://:80", "http://a:"}) {
    EXPECT_EQ(ClientOf(url).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
}

TEST(HttpClient, ReturnsTheBodyOfAnAnswer) {
  CannedServer server({Answer("200 OK", "application/json", R"({"a":1})")});
  auto client = ClientOf(server.url());
  ASSERT_TRUE(client.ok());
  const auto body = client->Post("/x", "{}");
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, R"({"a":1})");
  EXPECT_THAT(server.requests()[0], HasSubstr("POST /x HTTP/1.1"));
}

TEST(HttpClient, TellsTheServersOwnWordsOfAnError) {
  const std::string body = R"({"error":{"message":"no room for it","type":"x","code":null}})";
  CannedServer server(
      {Answer("429 Too Many Requests", "application/json", body), Answer("400 Bad Request", "text/plain", "what?")});
  auto client = ClientOf(server.url());
  const Status busy = client->Post("/x", "{}").status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(busy.message()), HasSubstr("answered 429: no room for it"));
  const Status wrong = client->PostStream("/x", "{}", [](std::string_view) { return absl::OkStatus(); });
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("answered 400: what?"));
}

TEST(HttpClient, SaysThatNobodyListensOrAnswers) {
  std::string url;
  {
    CannedServer gone({});
    url = gone.url();
  }
  EXPECT_THAT(std::string(ClientOf(url)->Post("/x", "{}").status().message()), HasSubstr("cannot be reached"));
  CannedServer mute({""});
  EXPECT_THAT(std::string(ClientOf(mute.url())->Post("/x", "{}").status().message()), HasSubstr("does not answer"));
}

TEST(HttpClient, NoticesAStreamThatBreaksOff) {
  CannedServer server({Events({"{}"})});
  int events = 0;
  const Status status = ClientOf(server.url())->PostStream("/x", "{}", [&](std::string_view) {
    ++events;
    return absl::OkStatus();
  });
  EXPECT_EQ(events, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
}

TEST(CompleteThroughAService, GivesIdsTextLogProbabilitiesAndTimings) {
  CannedServer server({CompletionEvents()});
  const CommandLineResult result = RunSluice({"complete", "--url", server.url(), "--prompt-ids", "1,2,3,4",
                                              "--max-tokens", "5", "--logprobs", "2", "--seed", "11", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  EXPECT_EQ(answer["text"], "Hello");
  EXPECT_EQ(answer["ids"], nlohmann::json({7, 8, 9}));
  EXPECT_EQ(answer["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(answer["logprobs"][0]["top"][1]["text"], "x");
  EXPECT_EQ(answer["logprobs"][2]["logprob"], -1.5);
  EXPECT_EQ(answer["timings"]["prefill_ms"], 2.5);
  const std::string& request = server.requests()[0];
  const auto body = nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4));
  EXPECT_EQ(body["prompt"], nlohmann::json({1, 2, 3, 4}));
  EXPECT_EQ(body["max_tokens"], 5);
  EXPECT_EQ(body["logprobs"], 2);
  EXPECT_EQ(body["seed"], 11);
  EXPECT_EQ(body["stream"], true);
}

TEST(CompleteThroughAService, SendsTextThatIsNotUtf8WithReplacements) {
  CannedServer server({CompletionEvents()});
  ASSERT_EQ(RunSluice({"complete", "--url", server.url(), "--prompt", "a\xFF"}).status, 0);
  EXPECT_THAT(server.requests()[0], HasSubstr("\"prompt\":\"a\xEF\xBF\xBD\""));
}

TEST(CompleteThroughAService, EndsWithStatusOneOnAnErrorInTheStream) {
  CannedServer server({Events({R"({"error":{"message":"decode is gone"}})", "[DONE]"})});
  const CommandLineResult result = RunSluice({"complete", "--url", server.url(), "--prompt", "a"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("decode is gone"));
}

TEST(ChatThroughAService, SendsTheWholeConversationEachTurn) {
  const auto reply = [](const std::string& text) {
    return Events({R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})",
                   R"({"choices":[{"index":0,"delta":{"content":")" + text + R"("},"token_ids":[1,2]}]})",
                   R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})", "[DONE]"});
  };
  CannedServer server({reply("One."), reply("Two."), reply("Three.")});
  const CommandLineResult result = RunSluice({"chat", "--url", server.url(), "--system", "Be brief."},
                                             "first\n\n second \n/new\nthird\n/exit\nnot\n");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "One.\nTwo.\nThree.\n");
  EXPECT_THAT(result.err, HasSubstr("[2 tokens, "));
  const auto messages = [&](size_t turn) {
    const std::string& request = server.requests()[turn];
    return nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4))["messages"];
  };
  ASSERT_EQ(messages(1).size(), 4u);
  EXPECT_EQ(messages(1)[0]["content"], "Be brief.");
  EXPECT_EQ(messages(1)[2]["content"], "One.");
  EXPECT_EQ(messages(1)[3]["content"], "second");
  EXPECT_EQ(messages(2).size(), 2u);
}

TEST(ChatThroughAService, EndsWithStatusOneWhereATurnFailsAndNobodyIsThere) {
  CannedServer server({Answer("503 Service Unavailable", "application/json", R"({"error":{"message":"not ready"}})")});
  const CommandLineResult result = RunSluice({"chat", "--url", server.url()}, "hello\nagain\n");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("not ready"));
}

}  // namespace
}  // namespace sluice
