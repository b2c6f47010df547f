// A connected TCP stream of control frames. Never blocks; what the socket does not take at once is kept, within a
// bound. Owned and driven by the transport's thread.
#pragma once

#include <string>

#include "transport/control_frame.h"
#include "transport/socket.h"

namespace sluice {

class ControlChannel {
 public:
  ControlChannel(UniqueFd fd, size_t body_bytes_max) : fd_(std::move(fd)), parser_(body_bytes_max) {}

  int fd() const { return fd_.get(); }
  bool wants_write() const { return !unsent_.empty(); }

  // Unavailable: the stream is broken, or the peer takes nothing.
  Status Send(ControlKind kind, std::string_view body);
  Status Flush();
  // Takes in some of what has come, at most one buffer. Unavailable: broken, or the peer has ended it.
  Status Receive();
  StatusOr<std::optional<ControlFrame>> Next() { return parser_.Next(); }
  void Shut() { fd_.Reset(); }

 private:
  UniqueFd fd_;
  ControlParser parser_;
  std::string unsent_;
};

}  // namespace sluice
