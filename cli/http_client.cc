#include "cli/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace sluice {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr size_t kBodyBytesMax = size_t{64} << 20;
constexpr size_t kEventBytesMax = size_t{4} << 20;
constexpr size_t kChunkBytes = 8192;

// The message of an OpenAI error body, or the body's beginning.
std::string ErrorText(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    const auto message = json["error"].find("message");
    if (message != json["error"].end() && message->is_string()) return message->get<std::string>();
  }
  return body.substr(0, 200);
}

Status StatusOfHttp(unsigned http_status, const std::string& url, const std::string& body) {
  const std::string message = absl::StrCat(url, " answered ", http_status, ": ", ErrorText(body));
  if (http_status == 429 || http_status == 503) return absl::UnavailableError(message);
  if (http_status == 504) return absl::DeadlineExceededError(message);
  if (http_status >= 500) return absl::InternalError(message);
  return absl::InvalidArgumentError(message);
}

}  // namespace

// One request and its answer. Operations are started asynchronously and awaited one by one, because only those honour
// the stream's deadline.
class HttpClient::Exchange {
 public:
  explicit Exchange(const HttpClient& client) : client_(client) { parser_.body_limit(kBodyBytesMax); }

  // Sends the request and reads the answer's header.
  Status Start(std::string_view path, const std::string& body) {
    error_code error;
    tcp::resolver resolver(io_);
    const auto endpoints = resolver.resolve(client_.host_, client_.port_, error);
    if (error) return Failed("cannot be resolved", error);
    error = Await(kConnectTimeout, [&](auto done) {
      stream_.async_connect(endpoints, [done](error_code e, const tcp::endpoint&) { done(e); });
    });
    if (error) return Failed("cannot be reached", error);
    stream_.socket().set_option(tcp::no_delay(true), error);
    http::request<http::string_body> request(http::verb::post, client_.prefix_ + std::string(path), 11, body);
    request.set(http::field::host, absl::StrCat(client_.host_, ":", client_.port_));
    request.set(http::field::content_type, "application/json");
    request.set(http::field::connection, "close");
    request.prepare_payload();
    error = Await(client_.idle_timeout_,
                  [&](auto done) { http::async_write(stream_, request, [done](error_code e, size_t) { done(e); }); });
    if (error) return Failed("does not take the request", error);
    error = Await(client_.idle_timeout_, [&](auto done) {
      http::async_read_header(stream_, buffer_, parser_, [done](error_code e, size_t) { done(e); });
    });
    if (error) return Failed("does not answer", error);
    return absl::OkStatus();
  }

  unsigned http_status() const { return parser_.get().result_int(); }

  // The next part of the body; empty at its end.
  StatusOr<std::string> Read() {
    std::string chunk(kChunkBytes, '\0');
    while (!parser_.is_done()) {
      auto& body = parser_.get().body();
      body.data = chunk.data();
      body.size = chunk.size();
      error_code error = Await(client_.idle_timeout_, [&](auto done) {
        http::async_read_some(stream_, buffer_, parser_, [done](error_code e, size_t) { done(e); });
      });
      if (error == http::error::need_buffer) error = {};
      if (error) return Failed("broke off its answer", error);
      chunk.resize(chunk.size() - body.size);
      if (!chunk.empty()) return chunk;
      chunk.resize(kChunkBytes);
    }
    return std::string();
  }

  StatusOr<std::string> ReadAll() {
    std::string whole;
    for (;;) {
      SLUICE_ASSIGN_OR_RETURN(const std::string part, Read());
      if (part.empty()) return whole;
      whole += part;
    }
  }

 private:
  template <typename Start>
  error_code Await(absl::Duration timeout, Start start) {
    error_code result;
    stream_.expires_after(absl::ToChronoNanoseconds(timeout));
    start([&result](error_code error) { result = error; });
    io_.restart();
    io_.run();
    return result;
  }

  Status Failed(std::string_view what, const error_code& error) const {
    return absl::UnavailableError(
        absl::StrCat(client_.url_, " ", absl::string_view(what.data(), what.size()), ": ", error.message()));
  }

  const HttpClient& client_;
  asio::io_context io_;
  beast::tcp_stream stream_{io_};
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
};

StatusOr<HttpClient> HttpClient::Create(std::string_view url, absl::Duration idle_timeout) {
  HttpClient client;
  client.url_ = std::string(url);
  client.idle_timeout_ = idle_timeout;
  absl::string_view rest(url.data(), url.size());
  if (!absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError(absl::StrCat("\"", client.url_, "\" is not a URL such as http://127.0.0.1:8080"));
  }
  const size_t slash = rest.find('/');
  if (slash != absl::string_view::npos) client.prefix_ = std::string(absl::StripSuffix(rest.substr(slash), "/"));
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != absl::string_view::npos && rest.find(']', colon) == absl::string_view::npos;
  client.port_ = has_port ? std::string(rest.substr(colon + 1)) : "80";
  client.host_ = std::string(has_port ? rest.substr(0, colon) : rest);
  if (absl::StartsWith(client.host_, "[") && absl::EndsWith(client.host_, "]")) {
    client.host_ = client.host_.substr(1, client.host_.size() - 2);
  }
  if (client.host_.empty() || client.port_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", client.url_, "\" names no host and port"));
  }
  return client;
}

StatusOr<std::string> HttpClient::Post(std::string_view path, const std::string& body) const {
  Exchange exchange(*this);
  SLUICE_RETURN_IF_ERROR(exchange.Start(path, body));
  SLUICE_ASSIGN_OR_RETURN(std::string answer, exchange.ReadAll());
  if (exchange.http_status() != 200) return StatusOfHttp(exchange.http_status(), url_, answer);
  return answer;
}

Status HttpClient::PostStream(std::string_view path, const std::string& body,
                              absl::FunctionRef<Status(std::string_view data)> on_event) const {
  Exchange exchange(*this);
  SLUICE_RETURN_IF_ERROR(exchange.Start(path, body));
  if (exchange.http_status() != 200) {
    SLUICE_ASSIGN_OR_RETURN(const std::string answer, exchange.ReadAll());
    return StatusOfHttp(exchange.http_status(), url_, answer);
  }
  std::string pending;  // the beginning of a line whose end has not come
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const std::string part, exchange.Read());
    if (part.empty()) return absl::DataLossError(absl::StrCat(url_, " ended its stream without [DONE]"));
    pending += part;
    if (pending.size() > kEventBytesMax) return absl::DataLossError(absl::StrCat(url_, " sent an endless line"));
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      absl::string_view line = absl::StripSuffix(absl::string_view(pending).substr(0, end), "\r");
      if (!absl::ConsumePrefix(&line, "data:")) continue;
      absl::ConsumePrefix(&line, " ");
      if (line == "[DONE]") return absl::OkStatus();
      SLUICE_RETURN_IF_ERROR(on_event(std::string_view(line.data(), line.size())));
    }
  }
}

}  // namespace sluice
