// Plays decode on the other end of a transport: checks each frame as a receiver must, and answers commits.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/proto/handoff.pb.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "model/kv_frame.h"
#include "transport/transport.h"

namespace sluice::prefill {

class TestDecode final : public Receiver {
 public:
  // `check_kv` judges the bytes of a frame.
  TestDecode(proto::Hello mine, std::function<void(const KvFrameHeader&, absl::Span<const std::byte>)> check_kv)
      : hello(std::move(mine)), check_kv_(std::move(check_kv)) {
    if (hello.credit_bytes() == 0) hello.set_credit_bytes(1 << 20);
  }

  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view bytes) override {
    credit_given_[connection] = 0;
    SLUICE_ASSIGN_OR_RETURN(const proto::Hello theirs, ParseHello(bytes));
    SLUICE_RETURN_IF_ERROR(CompareHello(hello, theirs));
    return hello.SerializeAsString();
  }

  StatusOr<Landing> OnMessage(ConnectionId, std::string_view header, size_t payload_bytes) override {
    const auto decoded = DecodeKvFrameHeader(header);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->payload_bytes, payload_bytes);
    LandingFrame& landing = landings_[++last_landing_];
    landing = {std::string(header), *decoded, std::vector<std::byte>(payload_bytes)};
    return Landing{.memory = {absl::MakeSpan(landing.payload)}, .token = last_landing_};
  }

  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override {
    const auto node = landings_.extract(token);
    if (!status.ok()) return;
    const auto& [header_bytes, header, payload] = node.mapped();
    EXPECT_TRUE(VerifyCrc(header_bytes, payload).ok());
    EXPECT_EQ(header.epoch.value, hello.epoch());
    EXPECT_EQ(header.layout_hash, LayoutHash(hello.layout()));
    absl::MutexLock lock(&mutex);
    if (header.kind == FrameKind::kKv) {
      TakeKv(header, payload);
      SendAnswer(connection, {.kind = FrameKind::kCredit}, EncodeCredit(credit_given_[connection] += payload.size()));
    }
    if (header.kind == FrameKind::kAbort) aborted.push_back(header.reservation.value);
    if (header.kind != FrameKind::kCommit) return;
    EXPECT_TRUE(records[header.reservation.value].ParseFromArray(payload.data(), static_cast<int>(payload.size())));
    if (answer) Answer(connection, header, *answer);
  }

  void OnClosed(ConnectionId, const Status&) override {}

  proto::Hello hello;
  Transport* transport = nullptr;           // set before the first message
  std::optional<Status> answer = Status();  // to every commit; none: silence
  bool corrupt_results = false;

  absl::Mutex mutex;                                                // guards what follows
  std::map<uint64_t, std::set<std::pair<int, uint32_t>>> received;  // by reservation: (layer, token)
  std::map<uint64_t, proto::HandoffRecord> records;
  std::vector<uint64_t> aborted;

 private:
  struct LandingFrame {
    std::string header_bytes;
    KvFrameHeader header;
    std::vector<std::byte> payload;
  };

  void TakeKv(const KvFrameHeader& header, const std::vector<std::byte>& payload) {
    check_kv_(header, payload);
    auto& tokens = received[header.reservation.value];
    for (int layer = header.layer; layer < header.layer + header.layers; ++layer) {
      for (uint32_t t = header.first_token; t < header.first_token + header.tokens; ++t)
        EXPECT_TRUE(tokens.insert({layer, t}).second) << "twice: layer " << layer << " token " << t;
    }
  }

  void Answer(ConnectionId connection, const KvFrameHeader& of, const Status& status) {
    SendAnswer(connection, {.kind = FrameKind::kResult, .request = of.request},
               MakeTransferResult(of.request, of.reservation, of.generation, status).SerializeAsString());
  }

  void SendAnswer(ConnectionId connection, KvFrameHeader header, std::string bytes_of_payload) {
    // Shared with the send's completion, which may come later.
    const auto payload = std::make_shared<std::string>(std::move(bytes_of_payload));
    header.payload_bytes = payload->size();
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload->data()), payload->size());
    std::string encoded = Encode(header, bytes);
    if (corrupt_results) encoded[85] = static_cast<char>(encoded[85] ^ 1);
    transport->Send(connection, encoded, bytes, [payload](const Status&) {});
  }

  const std::function<void(const KvFrameHeader&, absl::Span<const std::byte>)> check_kv_;
  std::unordered_map<uint64_t, LandingFrame> landings_;
  uint64_t last_landing_ = 0;
  std::map<ConnectionId, uint64_t> credit_given_;
};

}  // namespace sluice::prefill
