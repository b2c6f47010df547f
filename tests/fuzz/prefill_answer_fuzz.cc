// What a peer may send to a prefill process: the first byte says how long the header is, the rest is header and
// payload.
#include <algorithm>
#include <cstdlib>

#include "model/handoff.h"
#include "prefill/answer_receiver.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t header_bytes = std::min<size_t>(data[0], size - 1);
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, header_bytes);
  const size_t payload_bytes = size - 1 - header_bytes;
  int answers = 0;
  prefill::AnswerReceiver receiver([&answers](ConnectionId, const auto&) { ++answers; },
                                   [](ConnectionId, const Status&) {});
  const auto landing = receiver.OnMessage({1}, header, payload_bytes);
  if (!landing.ok()) return 0;
  if (!landing->Check(payload_bytes).ok() || payload_bytes > kTransferResultBytesMax) std::abort();
  landing->Copy({reinterpret_cast<const std::byte*>(data) + 1 + header_bytes, payload_bytes});
  receiver.OnLanded({1}, landing->token, absl::OkStatus());
  if (answers != 1) std::abort();
  return 0;
}
