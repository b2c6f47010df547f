// TCP sockets as the transports use them: numeric addresses, never blocking, closed on every path.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>

#include "common/status.h"

namespace sluice {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;

  // "host:port" or "[v6]:port". With `resolve` the host may be a name, which blocks; else it has to be numeric.
  static StatusOr<SocketAddress> Parse(const std::string& text, bool resolve);
  static StatusOr<SocketAddress> Local(int fd);

  bool is_loopback() const;
  bool is_wildcard() const;
  int port() const;
  void set_port(int port);
  std::string ToString() const;  // "127.0.0.1:4711", "[::1]:4711"
};

// Unavailable with the address and the system's words.
StatusOr<UniqueFd> Listen(const SocketAddress& address);
// Starts connecting, from `source` where given; writable when done or failed (SocketError tells).
StatusOr<UniqueFd> StartConnect(const SocketAddress& address, const std::optional<SocketAddress>& source);
Status SocketError(int fd);

// What peers are told for a socket that listens on `listening`: `advertise_host` where given, else the listening host,
// else, where that is a wildcard, the first address of this machine that is up and not loopback.
StatusOr<std::string> AdvertisedAddress(const SocketAddress& listening, const std::string& advertise_host);

}  // namespace sluice
