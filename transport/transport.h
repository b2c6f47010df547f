// Moves bytes into memory that the receiver opened. Knows no KV: headers are opaque, and it is the receiver that says
// where a payload lands, from its header, before the payload is moved. So a late message of an old holder is dropped by
// the receiver instead of written by hardware.
//
// Ordering: messages of one connection are offered (OnMessage) and landed (OnLanded) in any order; a protocol that
// needs order says so in its headers. Threads: a transport has one thread of its own, which makes every call of a
// Receiver and of a completion; neither may block. Its public methods may be called from any thread, also from inside
// those calls, and do not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/status.h"
#include "transport/fault_policy.h"
#include "transport/landing.h"

namespace sluice {

struct ConnectionId {
  uint64_t value = 0;  // unique within a transport, never reused; 0 is no connection
  auto operator<=>(const ConnectionId&) const = default;
};

// Outlives the transport that calls it.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // First message of a new connection, on the accepting side. The reply is sent back; an error refuses the connection
  // and its code and words reach the connecting side's Connect callback. Accepted connections end with OnClosed.
  virtual StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) = 0;
  // A message came. Says where its payload lands, in pieces whose sizes sum to payload_bytes unless it is dropped. An
  // error closes the connection; so does a wrong sum (Internal), after OnLanded with it. Empty payloads are offered too
  // (control messages) and landed at once.
  virtual StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) = 0;
  // The payload is in place, or (error) the memory is quiet and its content undefined. Once for each landing.
  virtual void OnLanded(ConnectionId connection, uint64_t token, const Status& status) = 0;
  // No more calls for this connection. Every landing and every send has been reported before. Called once for each
  // connection that OnHello accepted or whose Connect succeeded, whoever closed it.
  virtual void OnClosed(ConnectionId connection, const Status& why) = 0;
};

// What a message may carry where nothing else is said.
inline constexpr size_t kPayloadBytesMax = size_t{64} << 20;

struct TransportOptions {
  std::string listen_address;  // "host:port", port 0 picks one; empty: does not listen
  std::string advertise_host;  // what peers are told instead of the listening host; needed where that is a wildcard
  // Everything goes over this network interface ("eth0") and is told its address where the listening host is a
  // wildcard; empty: whatever routes there, and `lo` alone where the address is a loopback one.
  std::string interface;
  std::string auth_key;  // both ends prove that they know it before anything else is looked at
  size_t connections_max = 1024;
  size_t handshakes_max = 128;  // strangers at the door; one more pushes out the oldest
  size_t header_bytes_max = 1024;
  size_t hello_bytes_max = 16384;  // also of the reply
  size_t payload_bytes_max = kPayloadBytesMax;
  size_t sends_pending_max = 16384;  // of all connections together; one more fails with ResourceExhausted
  absl::Duration peer_silence_max = absl::Seconds(3);  // a peer that is gone or stuck is noticed at the latest then
  FaultPolicy faults;  // for tests: what a faulty transport does to messages; a real one refuses to start with any

  // Every problem at once. InvalidArgument.
  Status Validate() const;
};

// Since the start. `wakeups` is how often the transport's thread left its sleep: it stands still on an idle process but
// for keepalives.
struct TransportCounters {
  uint64_t wakeups = 0;
  uint64_t connections_open = 0;     // now, those still shaking hands included
  uint64_t connections_refused = 0;  // by OnHello, by limits, or because what came was no hello
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;  // offered
  uint64_t payload_bytes_sent = 0;
  uint64_t payload_bytes_landed = 0;
  FaultCounts faults = {};  // of a faulty transport: messages struck, by FaultKind
};

class Transport {
 public:
  // Closes everything with Cancelled; returns when all memory is quiet and every completion has been called. Not to be
  // destroyed from its own thread.
  virtual ~Transport() = default;

  virtual std::string address() const = 0;  // what peers connect to; empty where it does not listen

  // Connects and exchanges hellos. `done` is called once, with the peer's reply or why not (the peer's own code and
  // words where it refused; Unavailable; DeadlineExceeded; Cancelled after Close). Messages follow it, never before.
  // The id is valid at once for Close only.
  virtual ConnectionId Connect(const std::string& address, std::string hello, absl::Duration timeout,
                               std::function<void(StatusOr<std::string>)> done) = 0;

  // Sends header and payload. `payload` stays untouched and valid until `done`, which is called exactly once; after it
  // the memory is quiet. OK means that this side needs the memory no more, not that the peer has landed it. Either side
  // of a connection may send. InvalidArgument: beyond the limits of the options. Unavailable: the connection is gone.
  virtual void Send(ConnectionId connection, std::string header, absl::Span<const std::byte> payload,
                    std::function<void(Status)> done) = 0;

  // Abrupt: what is in flight fails with Cancelled here, Unavailable at the peer. Unknown ids are ignored.
  virtual void Close(ConnectionId connection) = 0;

  virtual TransportCounters counters() const = 0;
};

}  // namespace sluice
