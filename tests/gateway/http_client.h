// A raw TCP client on loopback: sends what it is told, byte for byte, and reads with a limit.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>

namespace sluice {

class HttpClient {
 public:
  explicit HttpClient(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;

  bool connected() const { return connected_; }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void HalfClose() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Reads until `end` has come, the server has closed, or ten seconds are over; returns everything since the last call.
  std::string ReadUntil(std::string_view end) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (received_.find(end) == std::string::npos && std::chrono::steady_clock::now() < until) {
      if (!ReadSome()) break;
    }
    const size_t at = received_.find(end);
    const size_t size = at == std::string::npos ? received_.size() : at + end.size();
    std::string out = received_.substr(0, size);
    received_.erase(0, size);
    return out;
  }
  // Everything until the server closes.
  std::string ReadAll() { return ReadUntil("\xFF\xFE no such bytes"); }
  bool closed() const { return closed_; }

 private:
  bool ReadSome() {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, 100) == 0) return true;
    char buffer[16384];
    const ssize_t bytes = recv(fd_, buffer, sizeof buffer, 0);
    closed_ = bytes <= 0;
    if (bytes > 0) received_.append(buffer, static_cast<size_t>(bytes));
    return bytes > 0;
  }

  int fd_;
  bool connected_ = false;
  std::atomic<bool> closed_ = false;  // the one thing that a second thread may look at
  std::string received_;
};

}  // namespace sluice
