// What decode sends back over a connection: the outcome of each commit. Lands it, checks it, and passes it on. Belongs
// to the transport's thread alone; what it calls must not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "transport/transport.h"

namespace sluice::prefill {

class ResultReceiver final : public Receiver {
 public:
  // The result; or an error where one came that cannot be believed, so that nobody knows whose it was.
  using OnResult = std::function<void(ConnectionId, const StatusOr<proto::TransferResult>&)>;
  using OnLost = std::function<void(ConnectionId, const Status&)>;

  ResultReceiver(OnResult on_result, OnLost on_lost) : on_result_(std::move(on_result)), on_lost_(std::move(on_lost)) {}

  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) override;
  // Refuses, and so closes the connection, what is no result or larger than one.
  StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) override;
  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override;
  void OnClosed(ConnectionId connection, const Status& why) override;

 private:
  struct LandingResult {
    std::string header;
    std::vector<std::byte> payload;
  };

  const OnResult on_result_;
  const OnLost on_lost_;
  std::unordered_map<uint64_t, LandingResult> landings_;
  uint64_t last_landing_ = 0;
};

}  // namespace sluice::prefill
