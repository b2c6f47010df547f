// What a peer may send to a decode process: a hello, and frames with any header and payload. The first byte chooses:
// bit 0 takes all as a hello; bit 1 gives a header that decodes a right CRC over the payload, so that what lies behind
// the check is reached; bit 2 leaves the header's own CRC as it is.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "decode/kv_receiver.h"
#include "model/handoff.h"
#include "model/kv_body.h"
#include "model/kv_pool.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/sealed_header.h"

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

// Two pages of the transfer between two that are somebody else's.
constexpr int kPageTokens = 4;
constexpr int kPages = 4;
constexpr std::byte kOthers{0x5c};

absl::Span<std::byte> Part(KvPool& pool, PageIndex page, int layer) {
  return {pool.Plane(page, layer, 0).codes, LayerBytes(kLayout, pool.options().codec, kPageTokens)};
}

void FillOthers(KvPool& pool) {
  for (const PageIndex page : {0, 3}) {
    for (int layer = 0; layer < kLayout.layers; ++layer) std::ranges::fill(Part(pool, page, layer), kOthers);
  }
}

void CheckOthers(KvPool& pool) {
  for (const PageIndex page : {0, 3}) {
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      if (!std::ranges::all_of(Part(pool, page, layer), [](std::byte byte) { return byte == kOthers; })) std::abort();
    }
  }
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
  static const auto pool =
      *KvPool::Create({.layout = kLayout, .codec = KvCodec::kBf16, .page_tokens = kPageTokens, .pages = kPages});
  static DecodeMetrics metrics;
  FillOthers(*pool);
  NoTransport transport;
  const proto::Hello hello =
      MakeHello("decode", Epoch{1}, "model", ToProto(kLayout), KvCodec::kBf16, WireCodecs(kLayout));
  {
    KvReceiver receiver({.hello = hello, .connections_max = 1, .credit_bytes = 2000}, pool.get(), staging.get(),
                        &metrics, [](const ReceiverEvent&) {});
    receiver.Start(&transport);
    receiver.Open({.key = {ReservationId{1}, Tenure{1}},
                   .handoff = {.request = RequestId{1}, .prompt_tokens = kPromptTokens, .vocab_size = 100},
                   .pages = {1, 2}});
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    if ((data[0] & 1) != 0) {
      (void)receiver.OnHello({1}, rest);
      return 0;
    }
    const proto::Hello theirs =
        MakeHello("prefill", Epoch{2}, "model", ToProto(kLayout), KvCodec::kBf16, WireCodecs(kLayout));
    if (!receiver.OnHello({1}, theirs.SerializeAsString()).ok()) std::abort();
    std::string header(rest.substr(0, kKvFrameHeaderBytes));
    const std::string_view payload = rest.substr(header.size());
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload.data()), payload.size());
    if ((data[0] & 4) == 0) header = SealedHeader(header);
    if (auto decoded = DecodeKvFrameHeader(header); decoded.ok() && (data[0] & 2) != 0) {
      decoded->payload_bytes = bytes.size();
      header = Encode(*decoded, bytes);
    }
    SendFrame(receiver, header, bytes);
    SendFrame(receiver, header, bytes);
    if (auto decoded = DecodeKvFrameHeader(header); decoded.ok() && decoded->number == 1) {  // the same range again
      ++decoded->number;
      if (decoded->payload_bytes == bytes.size()) SendFrame(receiver, Encode(*decoded, bytes), bytes);
    }
    (void)receiver.TakeProgress();
    receiver.OnClosed({1}, absl::UnavailableError("the end"));
    if (!receiver.Close(ReservationId{1}, absl::CancelledError("the end"))) std::abort();
  }
  CheckOthers(*pool);
  if (staging->bytes_free() != staging->bytes_total()) std::abort();
  return 0;
}
