// Any bytes as a frame header, as they are and with a right CRC: decoding never reads beyond them, and what decodes
// encodes to the same bytes.
#include <cstdlib>

#include "model/kv_body.h"
#include "model/kv_frame.h"
#include "tests/fuzz/sealed_header.h"

using namespace sluice;

namespace {

void Decode(std::string_view bytes) {
  (void)VerifyCrc(bytes, absl::Span<const std::byte>());
  auto header = DecodeKvFrameHeader(bytes);
  if (!header.ok()) return;
  const KvLayout layout = {.layers = 4, .kv_heads = 2, .head_dim = 16};
  if (CheckKvHeader(*header, layout, 7, 0, 64).ok() && header->first_token + header->tokens > 64) std::abort();
  if (header->payload_bytes == 0 && Encode(*header, {}).substr(0, 84) != bytes.substr(0, 84)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Decode(bytes);
  Decode(SealedHeader(bytes));
  return 0;
}
