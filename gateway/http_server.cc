#include "gateway/http_server.h"

#include <array>
#include <deque>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"

namespace sluice {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 16 << 10;      // one read; also how far a client may run ahead of its answer
constexpr int kRefusingConnectionsMax = 64;  // beyond connections_max: only long enough to say so
constexpr auto kLinger = std::chrono::seconds(2);

std::string StatusLine(int status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return absl::StrCat("HTTP/1.1 ", status, " ", absl::string_view(reason.data(), reason.size()), "\r\n");
}

void AppendHeaders(const HttpHeaders& headers, std::string* out) {
  for (const auto& [name, value] : headers) absl::StrAppend(out, name, ": ", value, "\r\n");
}

class Session;

}  // namespace

bool BodyLease::GrowTo(size_t bytes, size_t limit) {
  if (bytes <= bytes_) return true;
  const size_t more = bytes - bytes_;
  if (used_->fetch_add(more) + more > limit) {
    used_->fetch_sub(more);
    return false;
  }
  bytes_ = bytes;
  return true;
}

BodyLease& BodyLease::operator=(BodyLease&& other) noexcept {
  std::swap(used_, other.used_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

BodyLease::~BodyLease() {
  if (used_ != nullptr) used_->fetch_sub(bytes_);
}

struct HttpServer::Impl {
  Impl(const GatewayOptions& o, AsioLoop* l, HttpHandler* h)
      : options(o), context(l->context()), handler(h), acceptor(context), accept_pause(context) {}

  Status Listen();
  void Accept();
  void OnAccepted(tcp::socket socket);

  const GatewayOptions options;
  asio::io_context& context;
  HttpHandler* const handler;
  tcp::acceptor acceptor;
  asio::steady_timer accept_pause;
  std::unordered_set<Session*> sessions;
  std::shared_ptr<std::atomic<size_t>> body_bytes = std::make_shared<std::atomic<size_t>>(0);  // see BodyLease
  int refusing = 0;  // of the sessions, those that are there to be told that there are too many
  HttpCounts counts;
  bool draining = false;
};

namespace {

// One connection. Kept alive by its pending reads, writes and waits; Close() ends them all.
class Session final : public HttpReply, public std::enable_shared_from_this<Session> {
 public:
  Session(HttpServer::Impl* server, tcp::socket socket)
      : server_(server), options_(server->options), socket_(std::move(socket)), timer_(server->context) {
    server_->sessions.insert(this);
  }
  ~Session() { Forget(); }

  void Start() {
    AwaitRequest();
    Read();
  }
  void StartRefused() {
    refused_ = true;
    ++server_->refusing;
    Read();
    RefuseAndClose(503, "too many connections");
  }

  // The server goes: nothing of this connection may touch it any more.
  void Close() {
    Forget();
    exchange_.reset();
    Disarm();
    error_code ignored;
    socket_.close(ignored);
    state_ = State::kClosed;
  }

  void Drain() {
    keep_alive_ = false;
    if (state_ == State::kIdle) Close();
  }
  bool answering() const { return state_ == State::kAnswering; }

  void Send(HttpResponse response) override {
    if (state_ != State::kAnswering || complete_) return;
    std::string head = StatusLine(response.status);
    absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                    "\r\n");
    AppendHeaders(response.headers, &head);
    FinishHead(&head);
    if (!head_only_) head += response.body;
    complete_ = true;
    Write(std::move(head));
  }

  void StartEvents(const HttpHeaders& headers) override {
    if (state_ != State::kAnswering || complete_) return;
    std::string head = StatusLine(200);
    head += "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
    AppendHeaders(headers, &head);
    // HTTP/1.0 knows no chunks: there the end of the connection is the end of the body.
    if (chunked_) head += "Transfer-Encoding: chunked\r\n";
    if (!chunked_) keep_alive_ = false;
    FinishHead(&head);
    Write(std::move(head));
  }

  void SendEvent(std::string_view data) override {
    if (state_ != State::kAnswering || complete_) return;
    const std::string event = absl::StrCat("data: ", absl::string_view(data.data(), data.size()), "\n\n");
    Write(chunked_ ? absl::StrFormat("%x\r\n%s\r\n", event.size(), event) : event);
  }

  void EndEvents() override {
    if (state_ != State::kAnswering || complete_) return;
    complete_ = true;
    Write(chunked_ ? "0\r\n\r\n" : "");
  }

  size_t unsent_bytes() const override { return unsent_bytes_; }

 private:
  enum class State { kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };

  void Forget() {
    if (server_ == nullptr) return;
    server_->sessions.erase(this);
    server_->refusing -= refused_;
    server_ = nullptr;
  }

  void FinishHead(std::string* head) {
    absl::StrAppend(head, "Server: sluice\r\nConnection: ", keep_alive_ ? "keep-alive" : "close", "\r\n\r\n");
  }

  // The one timer: what it guards depends on the state.
  void Arm(int timeout_ms) {
    timer_.expires_after(std::chrono::milliseconds(timeout_ms));
    // The number tells a wait that expired from the one that replaced it before its handler ran.
    timer_.async_wait([self = shared_from_this(), wait = ++wait_](const error_code& error) {
      if (!error && wait == self->wait_) self->OnTimeout();
    });
  }
  void Disarm() {
    ++wait_;
    timer_.cancel();
  }

  void OnTimeout() {
    switch (state_) {
      case State::kHeader:
        return RefuseAndClose(408, "the header did not arrive in time");
      case State::kBody:
        return RefuseAndClose(408, "the body did not arrive in time");
      case State::kAnswering:
        return ClientLeft();
      default:
        return Close();
    }
  }

  void AwaitRequest() {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(options_.header_bytes_max));
    parser_->body_limit(options_.body_bytes_max);
    lease_ = BodyLease();
    complete_ = head_only_ = false;
    keep_alive_ = true;
    state_ = State::kIdle;
    if (server_->draining) return Close();
    Arm(options_.idle_timeout_ms);
    if (!pending_.empty()) Parse();
  }

  void Read() {
    if (reading_ || state_ == State::kClosed || pending_.size() >= kReadBytes + options_.header_bytes_max) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(read_buffer_),
                            [self = shared_from_this()](const error_code& error, size_t bytes) {
                              self->reading_ = false;
                              self->OnRead(error, bytes);
                            });
  }

  void OnRead(const error_code& error, size_t bytes) {
    if (state_ == State::kClosed) return;
    if (error) return OnReadEnd();
    if (state_ == State::kLingering) return Read();
    pending_.append(read_buffer_.data(), bytes);
    if (state_ != State::kAnswering) Parse();
    Read();
  }

  // A client that shuts its sending side cannot be told from one that has gone until something is sent to it. While
  // the answer is being computed it counts as gone; an answer that is complete is still sent.
  void OnReadEnd() {
    if (state_ != State::kAnswering) return Close();
    keep_alive_ = false;
    if (!complete_) ClientLeft();
  }

  void ClientLeft() {
    if (server_ != nullptr && !complete_) ++server_->counts.clients_left;
    Close();
  }

  void Parse() {
    if (state_ == State::kIdle) {
      state_ = State::kHeader;
      Arm(options_.header_timeout_ms);
    }
    error_code error;
    pending_.erase(0, parser_->put(asio::buffer(pending_), error));
    if (error && error != http::error::need_more) return RefuseMalformed(error);
    if (state_ == State::kHeader && parser_->is_header_done()) BeginBody();
    // A body counts as it arrives: who announces much and sends little takes no room from the others.
    if (state_ == State::kBody && !lease_.GrowTo(parser_->get().body().size(), options_.body_bytes_total_max)) {
      return RefuseAndClose(503, "too many request bodies at once");
    }
    if (parser_->is_done()) BeginAnswer();
  }

  void BeginBody() {
    state_ = State::kBody;
    Arm(options_.body_timeout_ms);
    lease_ = BodyLease(server_->body_bytes);
    if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue") && !parser_->is_done()) {
      Write("HTTP/1.1 100 Continue\r\n\r\n");
    }
  }

  void BeginAnswer() {
    Disarm();
    state_ = State::kAnswering;
    auto message = parser_->release();
    keep_alive_ = message.keep_alive() && !server_->draining;
    chunked_ = message.version() >= 11;
    head_only_ = message.method() == http::verb::head;
    const auto target = message.target();
    HttpRequest request{.method = std::string(message.method_string()),
                        .path = std::string(target.substr(0, target.find('?'))),
                        .body = std::move(message.body()),
                        .lease = std::move(lease_)};
    exchange_ = server_->handler->Handle(std::move(request), this);
  }

  void RefuseMalformed(const error_code& error) {
    if (error == http::error::body_limit) {
      return RefuseAndClose(413, absl::StrCat("the body has more than ", options_.body_bytes_max, " bytes"));
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return RefuseAndClose(431, absl::StrCat("the header has more than ", options_.header_bytes_max, " bytes"));
    }
    RefuseAndClose(400, absl::StrCat("not HTTP: ", error.message()));
  }

  void RefuseAndClose(int status, const std::string& why) {
    Disarm();
    state_ = State::kAnswering;
    keep_alive_ = complete_ = head_only_ = false;
    Send(server_->handler->Refuse(status, why));
  }

  void Write(std::string bytes) {
    unsent_bytes_ += bytes.size();
    outbox_.push_back(std::move(bytes));
    if (!writing_) WriteSome();
  }

  void WriteSome() {
    writing_ = true;
    if (state_ == State::kAnswering) Arm(options_.write_timeout_ms);
    const std::string& front = outbox_.front();
    socket_.async_write_some(
        asio::buffer(front.data() + front_sent_, front.size() - front_sent_),
        [self = shared_from_this()](const error_code& error, size_t bytes) { self->OnWritten(error, bytes); });
  }

  void OnWritten(const error_code& error, size_t bytes) {
    writing_ = false;
    if (state_ == State::kClosed) return;
    if (error) return ClientLeft();
    front_sent_ += bytes;
    unsent_bytes_ -= bytes;
    if (front_sent_ == outbox_.front().size()) {
      outbox_.pop_front();
      front_sent_ = 0;
    }
    if (!outbox_.empty()) return WriteSome();
    if (state_ != State::kAnswering) return;
    Disarm();
    if (complete_) return EndAnswer();
    if (exchange_ != nullptr) exchange_->OnDrained();
  }

  void EndAnswer() {
    exchange_.reset();
    if (keep_alive_) {
      AwaitRequest();
      return Read();
    }
    // Closing with unread bytes would reset the connection, and the client might never see the answer.
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    state_ = State::kLingering;
    Arm(static_cast<int>(std::chrono::milliseconds(kLinger).count()));
    pending_.clear();
    Read();
  }

  HttpServer::Impl* server_;       // null once closed
  const GatewayOptions& options_;  // the server's; not used once closed
  tcp::socket socket_;
  asio::steady_timer timer_;
  uint64_t wait_ = 0;
  std::array<char, kReadBytes> read_buffer_;
  std::string pending_;  // read and not yet parsed
  std::optional<http::request_parser<http::string_body>> parser_;
  BodyLease lease_;
  std::unique_ptr<HttpExchange> exchange_;

  State state_ = State::kIdle;
  bool refused_ = false;  // beyond connections_max
  bool reading_ = false;
  bool keep_alive_ = true;
  bool chunked_ = true;
  bool head_only_ = false;
  bool complete_ = false;  // the whole reply is in the outbox

  std::deque<std::string> outbox_;
  size_t front_sent_ = 0;
  size_t unsent_bytes_ = 0;
  bool writing_ = false;
};

}  // namespace

Status HttpServer::Impl::Listen() {
  SLUICE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options.listen));
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(at.host, std::to_string(at.port), tcp::resolver::passive, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("listen ", options.listen, ": ", error.message()));
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return absl::UnavailableError(absl::StrCat("listen ", options.listen, ": ", error.message()));
  return absl::OkStatus();
}

void HttpServer::Impl::Accept() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || draining) return;
    if (!error) {
      OnAccepted(std::move(socket));
      return Accept();
    }
    // Out of descriptors, most likely: they come back as connections end.
    accept_pause.expires_after(std::chrono::milliseconds(50));
    accept_pause.async_wait([this](const error_code& stopped) {
      if (!stopped) Accept();
    });
  });
}

void HttpServer::Impl::OnAccepted(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  const bool full = static_cast<int>(sessions.size()) - refusing >= options.connections_max;
  if (full) ++counts.connections_refused;
  if (full && refusing >= kRefusingConnectionsMax) return;
  const auto session = std::make_shared<Session>(this, std::move(socket));
  full ? session->StartRefused() : session->Start();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const GatewayOptions& options, AsioLoop* loop,
                                                         HttpHandler* handler) {
  auto impl = std::make_unique<Impl>(options, loop, handler);
  SLUICE_RETURN_IF_ERROR(impl->Listen());
  impl->Accept();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  const std::unordered_set<Session*> open = std::move(impl_->sessions);
  impl_->sessions.clear();
  for (Session* session : open) session->shared_from_this()->Close();
}

std::string HttpServer::address() const {
  error_code error;
  const tcp::endpoint endpoint = impl_->acceptor.local_endpoint(error);
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? absl::StrCat("[", host, "]:", endpoint.port())
                                    : absl::StrCat(host, ":", endpoint.port());
}

HttpCounts HttpServer::counts() const {
  HttpCounts counts = impl_->counts;
  counts.connections = static_cast<int>(impl_->sessions.size());
  return counts;
}

void HttpServer::Drain() {
  impl_->draining = true;
  error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->accept_pause.cancel();
  const std::unordered_set<Session*> open = impl_->sessions;
  for (Session* session : open) session->shared_from_this()->Drain();
}

int HttpServer::exchanges() const {
  int answering = 0;
  for (const Session* session : impl_->sessions) answering += session->answering();
  return answering;
}

}  // namespace sluice
