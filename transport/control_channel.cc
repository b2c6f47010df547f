#include "transport/control_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace sluice {

namespace {

constexpr size_t kUnsentBytesMax = 1 << 20;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

Status Broken() { return absl::UnavailableError(absl::StrCat("the control stream broke: ", std::strerror(errno))); }

}  // namespace

Status ControlChannel::Send(ControlKind kind, std::string_view body) {
  if (unsent_.size() + body.size() > kUnsentBytesMax) return absl::UnavailableError("the peer takes nothing");
  unsent_.append(EncodeControlFrame(kind, body));
  return Flush();
}

Status ControlChannel::Flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && WouldBlock()) return absl::OkStatus();
    if (sent < 0) return Broken();
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

Status ControlChannel::Receive() {
  char buffer[16 << 10];
  const ssize_t received = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (received < 0 && WouldBlock()) return absl::OkStatus();
  if (received < 0) return Broken();
  if (received == 0) return absl::UnavailableError("the peer is gone");
  parser_.Append({buffer, static_cast<size_t>(received)});
  return absl::OkStatus();
}

}  // namespace sluice
