// Moves bytes into memory that the receiver opened. Knows no KV: headers are opaque, and it is the receiver that says
// where a payload lands, from its header, before the payload is moved. So a late message of an old holder is dropped by
// the receiver instead of written by hardware.
//
// Ordering: messages of one connection are offered (OnMessage) and landed (OnLanded) in any order; a protocol that
// needs order says so in its headers. Threads: a transport has one thread of its own, which makes every call of a
// Receiver and of a completion; neither may block. Its public methods may be called from any thread and do not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/status.h"

namespace sluice {

struct ConnectionId {
  uint64_t value = 0;
  auto operator<=>(const ConnectionId&) const = default;
};

// Where a payload goes. `memory` must stay valid until OnLanded. An empty `memory` with `drop` lands nowhere.
struct Landing {
  absl::Span<std::byte> memory;
  uint64_t token = 0;  // given back in OnLanded
  bool drop = false;   // take it off the wire and forget it
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  // First message of a new connection, on the accepting side. The reply is sent back; an error refuses the connection
  // and its message reaches the connecting side's Connect callback.
  virtual StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) = 0;
  // A message came. Says where its payload lands; REQUIRES landing.memory.size() == payload_bytes unless dropped.
  // An error closes the connection. Empty payloads are offered too (control messages) and landed at once.
  virtual StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) = 0;
  // The payload is in place, or (error) the memory is quiet and its content undefined.
  virtual void OnLanded(ConnectionId connection, uint64_t token, const Status& status) = 0;
  // No more calls for this connection. Every landing has been reported before.
  virtual void OnClosed(ConnectionId connection, const Status& why) = 0;
};

struct TransportOptions {
  std::string listen_address;            // "host:port", port 0 picks one; empty: does not listen
  size_t header_bytes_max = 1024;
  size_t payload_bytes_max = size_t{64} << 20;
  absl::Duration peer_silence_max = absl::Seconds(3);  // a peer that is gone is noticed at the latest then
};

class Transport {
 public:
  virtual ~Transport() = default;  // closes everything; returns when all memory is quiet

  virtual std::string address() const = 0;  // what peers connect to; empty where it does not listen

  // Connects and exchanges hellos. `done` gets the peer's reply, or why not (FailedPrecondition: refused, with the
  // peer's words; Unavailable; DeadlineExceeded). The id is valid at once for Close only.
  virtual ConnectionId Connect(const std::string& address, std::string hello, absl::Duration timeout,
                               std::function<void(StatusOr<std::string>)> done) = 0;

  // Sends header and payload. `payload` stays untouched and valid until `done`, which is called exactly once; after it
  // the memory is quiet. Either side of a connection may send.
  virtual void Send(ConnectionId connection, std::string header, absl::Span<const std::byte> payload,
                    std::function<void(Status)> done) = 0;

  virtual void Close(ConnectionId connection) = 0;
};

}  // namespace sluice
