// Prefill's end of what decode says: how a transfer ended, that bytes are dealt with, that a frame is wanted again.
// Checked for size before memory is given to it, and for integrity before anything acts on it. Every call is made by
// the transport's thread, and so are the two functions that it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/kv_frame.h"
#include "transport/transport.h"

namespace sluice::prefill {

struct Credit {
  uint64_t given = 0;  // bytes of KV payload of this connection, since its start
};
struct WantedAgain {
  KvFrameHeader frame;
};
using Answer = std::variant<proto::TransferResult, Credit, WantedAgain>;

class AnswerReceiver final : public Receiver {
 public:
  // An error stands for an answer that was damaged or none.
  using OnAnswer = std::function<void(ConnectionId, const StatusOr<Answer>&)>;
  using OnLost = std::function<void(ConnectionId, const Status&)>;
  AnswerReceiver(OnAnswer on_answer, OnLost on_lost) : on_answer_(std::move(on_answer)), on_lost_(std::move(on_lost)) {}

  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) override;
  // Refuses, and so closes the connection, what is no answer or larger than one.
  StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) override;
  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override;
  void OnClosed(ConnectionId connection, const Status& why) override;

 private:
  struct LandingAnswer {
    std::string header_bytes;
    KvFrameHeader header;
    std::vector<std::byte> payload;
  };

  static StatusOr<Answer> Parse(const LandingAnswer& landing);

  const OnAnswer on_answer_;
  const OnLost on_lost_;
  std::unordered_map<uint64_t, LandingAnswer> landings_;
  uint64_t last_landing_ = 0;
};

}  // namespace sluice::prefill
