// A transport that only records what is asked of it; the test plays the peer.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/kv_frame.h"
#include "transport/transport.h"

namespace sluice::prefill {

class FakeTransport final : public Transport {
 public:
  std::string address() const override { return ""; }
  ConnectionId Connect(const std::string&, std::string, absl::Duration,
                       std::function<void(StatusOr<std::string>)> done) override {
    connects.push_back(std::move(done));
    return {connects.size()};
  }
  void Send(ConnectionId connection, std::string header, absl::Span<const std::byte> payload,
            std::function<void(Status)> done) override {
    sends.push_back({connection, *DecodeKvFrameHeader(header),
                     std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), std::move(done)});
  }
  void Close(ConnectionId connection) override { closed.push_back(connection); }
  TransportCounters counters() const override { return {}; }

  struct Sent {
    ConnectionId connection;
    KvFrameHeader header;
    std::string payload;
    std::function<void(Status)> done;
  };
  std::vector<std::function<void(StatusOr<std::string>)>> connects;
  std::vector<Sent> sends;
  std::vector<ConnectionId> closed;
};

}  // namespace sluice::prefill
