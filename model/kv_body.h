// Between a sequence's pages and the body of a wire frame (KV of some consecutive layers and some tokens):
//   for each layer, at a multiple of 16 bytes: for each tensor (K, then V; or the latents), likewise: codes, scales
// with zeros in the gaps. The wire codec may differ from the pool's; where it is the same, bytes are copied as they lie
// and bodies can also land in the pages directly (BodyPieces). A token range may begin and end anywhere in a page.
// Pure functions on the pool's memory: any thread, as long as nobody writes the rows that are read or reads those that
// are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"
#include "model/kv_frame.h"
#include "model/kv_pool.h"

namespace sluice {

// Which part of a sequence's KV: tokens [first_token, first_token + tokens) of layers [layer, layer + layers).
struct KvRange {
  int layer = 0;
  int layers = 1;
  int64_t first_token = 0;
  int64_t tokens = 0;
};

// Bytes of the body of `tokens` tokens of `layers` layers.
size_t BodyBytes(const KvLayout& layout, KvCodec wire, int layers, int64_t tokens);

// Writes the body of `range` of the sequence that lies in `pages`. A sender fails the request where the counts name
// nonfinite rows. InvalidArgument, naming the value and its bound, where range or body do not fit the pool, the pages
// or each other; the body is then untouched.
StatusOr<KvCodecCounts> EncodeBody(const KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range,
                                   KvCodec wire, absl::Span<std::byte> body);

// The inverse, with the same checks. REQUIRES: the body's CRC was verified.
StatusOr<KvCodecCounts> DecodeBody(KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range, KvCodec wire,
                                   absl::Span<const std::byte> body);

// Where the bytes of a body in the pool's own codec lie in the pages, in the body's order; neighbours are joined. Gaps
// go to `gap`, 16 bytes that nobody reads. The same checks; `body_bytes` is the body's size.
StatusOr<std::vector<absl::Span<std::byte>>> BodyPieces(KvPool& pool, absl::Span<const PageIndex> pages,
                                                        const KvRange& range, size_t body_bytes,
                                                        absl::Span<std::byte> gap);
inline constexpr size_t kBodyAlignment = 16;

// A KV frame's header against what its receiver expects: layout hash, layers of `layout`, a range within
// [first_token, prompt_tokens), and the payload's size. Failures name the field with both values (FailedPrecondition
// for the layout, else InvalidArgument).
Status CheckKvHeader(const KvFrameHeader& header, const KvLayout& layout, uint64_t layout_hash, int64_t first_token,
                     int64_t prompt_tokens);
// The range of a KV or resend frame.
KvRange RangeOf(const KvFrameHeader& header);

}  // namespace sluice
