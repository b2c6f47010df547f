// What a peer may send to a prefill process: the first byte says how long the header is, the rest is header and
// payload. The header is offered as it is, and with a right CRC of its own.
#include <algorithm>
#include <cstdlib>

#include "model/handoff.h"
#include "prefill/answer_receiver.h"
#include "tests/fuzz/sealed_header.h"

using namespace sluice;

namespace {

void Offer(std::string_view header, absl::Span<const std::byte> payload) {
  int answers = 0;
  prefill::AnswerReceiver receiver([&answers](ConnectionId, const auto&) { ++answers; },
                                   [](ConnectionId, const Status&) {});
  const auto landing = receiver.OnMessage({1}, header, payload.size());
  if (!landing.ok()) return;
  if (!landing->Check(payload.size()).ok() || payload.size() > kTransferResultBytesMax) std::abort();
  landing->Copy(payload);
  receiver.OnLanded({1}, landing->token, absl::OkStatus());
  if (answers != 1) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t header_bytes = std::min<size_t>(data[0], size - 1);
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, header_bytes);
  const absl::Span<const std::byte> payload(reinterpret_cast<const std::byte*>(data) + 1 + header_bytes,
                                            size - 1 - header_bytes);
  Offer(header, payload);
  Offer(SealedHeader(header), payload);
  return 0;
}
