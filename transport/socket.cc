#include "transport/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"

namespace sluice {

namespace {

Status SystemError(std::string_view what, const SocketAddress& address) {
  return absl::UnavailableError(absl::StrCat(std::string(what), " ", address.ToString(), ": ", std::strerror(errno)));
}

std::string WithPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

StatusOr<SocketAddress> SocketAddress::Parse(const std::string& text, bool resolve) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 || port > 65535)
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not host:port"));
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (resolve ? 0 : AI_NUMERICHOST);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": ", gai_strerror(error), resolve ? "" : " (a numeric address is needed)"));
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.bytes = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

StatusOr<SocketAddress> SocketAddress::Local(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0)
    return absl::UnavailableError(absl::StrCat("getsockname: ", std::strerror(errno)));
  return address;
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

bool SocketAddress::is_wildcard() const {
  if (storage.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

int SocketAddress::port() const {
  if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

void SocketAddress::set_port(int port) {
  const auto network_order = htons(static_cast<uint16_t>(port));
  if (storage.ss_family == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = network_order;
  if (storage.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = network_order;
}

std::string SocketAddress::ToString() const {
  char host[INET6_ADDRSTRLEN] = "?";
  const void* ip = storage.ss_family == AF_INET
                       ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr)
                       : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  inet_ntop(storage.ss_family, ip, host, sizeof(host));
  return WithPort(host, port());
}

StatusOr<UniqueFd> Listen(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return SystemError("socket for", address);
  // So that a restarted process gets its port back while old connections linger in TIME_WAIT.
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0)
    return SystemError("cannot bind", address);
  if (listen(fd.get(), SOMAXCONN) != 0) return SystemError("cannot listen on", address);
  return fd;
}

StatusOr<UniqueFd> StartConnect(const SocketAddress& address, const std::optional<SocketAddress>& source) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return SystemError("socket for", address);
  const int one = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (source && bind(fd.get(), reinterpret_cast<const sockaddr*>(&source->storage), source->bytes) != 0)
    return SystemError("cannot bind", *source);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 &&
      errno != EINPROGRESS)
    return SystemError("cannot connect to", address);
  return fd;
}

Status SocketError(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

StatusOr<std::string> AdvertisedAddress(const SocketAddress& listening, const std::string& advertise_host) {
  if (!advertise_host.empty()) {
    SLUICE_ASSIGN_OR_RETURN(SocketAddress told,
                            SocketAddress::Parse(WithPort(advertise_host, listening.port()), /*resolve=*/true));
    return told.ToString();
  }
  if (!listening.is_wildcard()) return listening.ToString();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::UnavailableError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    SocketAddress address{.bytes = sizeof(sockaddr_in)};
    std::memcpy(&address.storage, i->ifa_addr, sizeof(sockaddr_in));
    address.set_port(listening.port());
    return address.ToString();
  }
  return absl::StrCat("127.0.0.1:", listening.port());
}

}  // namespace sluice
