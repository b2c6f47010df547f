// What a peer may send to a decode process: a hello, and frames with any header and payload. The first byte chooses:
// bit 0 takes all as a hello; bit 1 gives a header that decodes a right CRC, so that what lies behind the check is
// reached.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "decode/kv_receiver.h"
#include "model/handoff.h"
#include "model/kv_body.h"
#include "spdlog/spdlog.h"

using namespace sluice;
using namespace sluice::decode;

namespace {

constexpr KvLayout kLayout{.layers = 2, .kv_heads = 1, .head_dim = 16};
constexpr int kPromptTokens = 8;

class NoTransport final : public Transport {
 public:
  std::string address() const override { return ""; }
  ConnectionId Connect(const std::string&, std::string, absl::Duration,
                       std::function<void(StatusOr<std::string>)>) override {
    return {};
  }
  void Send(ConnectionId, std::string, absl::Span<const std::byte>, std::function<void(Status)> done) override {
    done(absl::OkStatus());
  }
  void Close(ConnectionId) override {}
  TransportCounters counters() const override { return {}; }
};

void CheckArrival(const Arrival& arrival) {
  const KvFrameHeader& header = arrival.header;
  if (header.reservation != ReservationId{1} || header.generation != Tenure{1}) std::abort();
  if (header.kind == FrameKind::kKv && header.first_token + header.tokens > kPromptTokens) std::abort();
  if (header.kind == FrameKind::kKv &&
      arrival.body.bytes().size() != BodyBytes(kLayout, header.codec, header.layers, header.tokens))
    std::abort();
}

void SendFrame(KvReceiver& receiver, std::string header, absl::Span<const std::byte> payload) {
  const auto landing = receiver.OnMessage({1}, header, payload.size());
  if (!landing.ok() || landing->drop) return;
  if (!landing->Check(payload.size()).ok()) std::abort();
  landing->Copy(payload);
  receiver.OnLanded({1}, landing->token, absl::OkStatus());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  spdlog::set_level(spdlog::level::off);
  static const auto staging = *Staging::Create(4096);
  static DecodeMetrics metrics;
  NoTransport transport;
  const proto::Hello hello = MakeHello("decode", Epoch{1}, "model", ToProto(kLayout), KvCodec::kBf16, {KvCodec::kBf16});
  {
    KvReceiver receiver({.hello = hello, .layout = kLayout}, staging.get(), &metrics, [](ReceiverEvent event) {
      if (const auto* arrival = std::get_if<Arrival>(&event)) CheckArrival(*arrival);
    });
    receiver.Start(&transport);
    receiver.Open({RequestId{1}, ReservationId{1}, Tenure{1}, kPromptTokens, 512});
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    if ((data[0] & 1) != 0) {
      (void)receiver.OnHello({1}, rest);
      return 0;
    }
    std::string header(rest.substr(0, kKvFrameHeaderBytes));
    const std::string_view payload = rest.substr(header.size());
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload.data()), payload.size());
    if (auto decoded = DecodeKvFrameHeader(header); decoded.ok() && (data[0] & 2) != 0) {
      decoded->payload_bytes = bytes.size();
      header = Encode(*decoded, bytes);
    }
    SendFrame(receiver, header, bytes);
    SendFrame(receiver, header, bytes);
    receiver.OnClosed({1}, absl::UnavailableError("the end"));
  }
  if (staging->bytes_free() != staging->bytes_total()) std::abort();
  return 0;
}
