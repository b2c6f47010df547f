// Between a sequence's pages and the body of a wire frame: the rows of K, [tokens, kv_heads,
// head_dim], and at the next multiple of 16 bytes the rows of V, the gap zero. The wire codec is the store codec here,
// so rows are copied as they lie; a token range may begin and end anywhere in a page. Called by the pool's own thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/status.h"
#include "model/kv_frame.h"
#include "model/kv_pool.h"

namespace sluice {

// Which part of a sequence's KV: tokens [first_token, first_token + tokens) of one layer.
struct KvRange {
  int layer = 0;
  int64_t first_token = 0;
  int64_t tokens = 0;
};

// Bytes of the body of `tokens` tokens of one layer.
size_t BodyBytes(const KvLayout& layout, KvCodec codec, int64_t tokens);

// Writes the body of `range` of the sequence that lies in `pages`. Returns the number of rows (token, kv head) that
// hold a NaN or an infinity: a sender that sees one fails the request. InvalidArgument, naming the value and its bound,
// where range or body do not fit the pool, the pages or each other; the body is then untouched.
StatusOr<int64_t> GatherBody(KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range,
                             absl::Span<std::byte> body);

// The inverse, with the same checks. REQUIRES: the body's CRC was verified.
Status ScatterBody(KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range,
                   absl::Span<const std::byte> body);

// A KV frame's header against what its receiver expects: codec, layout hash, a layer of `layout`, a range within the
// prompt, and the payload's size. Failures name the field with both values (FailedPrecondition for codec and layout,
// else InvalidArgument).
Status CheckKvHeader(const KvFrameHeader& header, const KvLayout& layout, KvCodec wire, uint64_t layout_hash,
                     int64_t prompt_tokens);

}  // namespace sluice
