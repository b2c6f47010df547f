// HTTP/1.1 for clients that nobody trusts: bounded connections, headers, bodies and waits. Knows no OpenAI. Lives on
// the loop's thread. A read is always pending, so a client that leaves is noticed while its answer is still being
// computed: its exchange is destroyed, and that is what cancels the work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "gateway/asio_loop.h"
#include "gateway/options.h"

namespace sluice {

// Bytes of a body's share in body_bytes_total_max, given back by the destructor, on any thread.
class BodyLease {
 public:
  BodyLease() = default;
  // Shared with the server, which may be gone when the last lease falls.
  explicit BodyLease(std::shared_ptr<std::atomic<size_t>> used) : used_(std::move(used)) {}
  BodyLease(BodyLease&& other) noexcept : used_(std::move(other.used_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyLease& operator=(BodyLease&& other) noexcept;
  ~BodyLease();
  // False where all leases together would pass `limit`: then this one stays as it is.
  bool GrowTo(size_t bytes, size_t limit);

 private:
  std::shared_ptr<std::atomic<size_t>> used_;
  size_t bytes_ = 0;
};

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string body;
  BodyLease lease;  // falls when whoever took the request is done with the body
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers;
};

// How a handler answers: one Send(), or StartEvents(), any number of SendEvent() and EndEvents(). Calls only queue
// bytes. Valid for as long as the exchange.
class HttpReply {
 public:
  virtual void Send(HttpResponse response) = 0;
  virtual void StartEvents(const HttpHeaders& headers) = 0;
  virtual void SendEvent(std::string_view data) = 0;  // data without line breaks
  virtual void EndEvents() = 0;
  virtual size_t unsent_bytes() const = 0;

 protected:
  ~HttpReply() = default;
};

// A request being answered. Owned by its connection, which destroys it once the reply is complete and sent, or the
// client has left; never from within a call of its own.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void OnDrained() {}  // unsent_bytes() has come down to 0
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // May answer at once and return null. Otherwise the reply is used until the exchange is destroyed.
  virtual std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply* reply) = 0;
  // The answer to a request that never became one: `status` is 400, 408, 413, 431 or 503.
  virtual HttpResponse Refuse(int status, std::string_view why) = 0;
};

struct HttpCounts {
  int connections = 0;
  uint64_t connections_refused = 0;
  uint64_t clients_left = 0;  // before their answer was complete
};

class HttpServer {
 public:
  // Listens. `loop` and `handler` outlive the server.
  static StatusOr<std::unique_ptr<HttpServer>> Create(const GatewayOptions& options, AsioLoop* loop,
                                                      HttpHandler* handler);
  // Closes every connection. REQUIRES: the loop no longer runs.
  ~HttpServer();

  std::string address() const;  // with the real port
  HttpCounts counts() const;
  // Takes no new connections or requests; exchanges that run go on. Connections close after their answer.
  void Drain();
  int exchanges() const;  // requests being answered

  struct Impl;

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
