#include "model/kv_codec.h"

#include <algorithm>
#include <cstring>

namespace sluice {

namespace {

constexpr size_t kPlaneAlignment = 16;

size_t PlaneBytes(const KvLayout& layout, KvCodec codec, int64_t tokens) {
  return LayerBytes(layout, codec, tokens) / 2;
}

size_t ValueOffset(size_t plane_bytes) {
  return (plane_bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

Status CheckRange(const KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range, size_t body_bytes) {
  const KvPoolOptions& options = pool.options();
  if (range.layer < 0 || range.layer >= options.layout.layers)
    return absl::InvalidArgumentError(absl::StrCat("KV range: layer ", range.layer, " of ", options.layout.layers));
  const int64_t room = static_cast<int64_t>(pages.size()) * options.page_tokens;
  if (range.first_token < 0 || range.tokens < 1 || range.first_token > room || range.tokens > room - range.first_token)
    return absl::InvalidArgumentError(
        absl::StrCat("KV range: ", range.tokens, " tokens from ", range.first_token, " in pages for ", room));
  const size_t expected = BodyBytes(options.layout, options.codec, range.tokens);
  if (body_bytes != expected)
    return absl::InvalidArgumentError(absl::StrCat("KV body of ", body_bytes, " bytes, expected ", expected));
  for (const PageIndex page : pages) {
    if (page < 0 || page >= pool.pages_total())
      return absl::InvalidArgumentError(absl::StrCat("KV range: page ", page, " of ", pool.pages_total()));
  }
  return absl::OkStatus();
}

// Calls run(page, offset_in_page_bytes, offset_in_plane_bytes, bytes) for each page that the range touches, in order.
template <typename Run>
void ForEachPage(const KvPoolOptions& options, absl::Span<const PageIndex> pages, const KvRange& range, Run run) {
  const size_t token_bytes = PlaneBytes(options.layout, options.codec, 1);
  int64_t done = 0;
  while (done < range.tokens) {
    const int64_t token = range.first_token + done;
    const int64_t slot = token % options.page_tokens;
    const int64_t count = std::min<int64_t>(options.page_tokens - slot, range.tokens - done);
    run(pages[static_cast<size_t>(token / options.page_tokens)], static_cast<size_t>(slot) * token_bytes,
        static_cast<size_t>(done) * token_bytes, static_cast<size_t>(count) * token_bytes);
    done += count;
  }
}

// Rows of `row_elements` elements that hold an element whose exponent is all ones.
template <typename Word>
int64_t CountNonfiniteRows(const std::byte* plane, size_t bytes, size_t row_elements, Word exponent) {
  int64_t rows = 0;
  for (size_t offset = 0; offset < bytes; offset += row_elements * sizeof(Word)) {
    unsigned bad = 0;
    for (size_t i = 0; i < row_elements; ++i) {
      Word word;
      std::memcpy(&word, plane + offset + i * sizeof(Word), sizeof(Word));
      bad |= static_cast<unsigned>((word & exponent) == exponent);
    }
    rows += bad;
  }
  return rows;
}

int64_t NonfiniteRows(KvCodec codec, const std::byte* plane, size_t bytes, int head_dim) {
  const auto row_elements = static_cast<size_t>(head_dim);
  return codec == KvCodec::kF32 ? CountNonfiniteRows<uint32_t>(plane, bytes, row_elements, 0x7F800000u)
                                : CountNonfiniteRows<uint16_t>(plane, bytes, row_elements, 0x7F80u);
}

}  // namespace

size_t BodyBytes(const KvLayout& layout, KvCodec codec, int64_t tokens) {
  const size_t plane_bytes = PlaneBytes(layout, codec, tokens);
  return ValueOffset(plane_bytes) + plane_bytes;
}

StatusOr<int64_t> GatherBody(KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range,
                             absl::Span<std::byte> body) {
  SLUICE_RETURN_IF_ERROR(CheckRange(pool, pages, range, body.size()));
  const KvPoolOptions& options = pool.options();
  const size_t plane_bytes = PlaneBytes(options.layout, options.codec, range.tokens);
  std::byte* const keys = body.data();
  std::byte* const values = body.data() + ValueOffset(plane_bytes);
  ForEachPage(options, pages, range, [&](PageIndex page, size_t in_page, size_t in_plane, size_t bytes) {
    std::memcpy(keys + in_plane, pool.K(page, range.layer) + in_page, bytes);
    std::memcpy(values + in_plane, pool.V(page, range.layer) + in_page, bytes);
  });
  std::memset(keys + plane_bytes, 0, ValueOffset(plane_bytes) - plane_bytes);
  return NonfiniteRows(options.codec, keys, plane_bytes, options.layout.head_dim) +
         NonfiniteRows(options.codec, values, plane_bytes, options.layout.head_dim);
}

Status ScatterBody(KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range,
                   absl::Span<const std::byte> body) {
  SLUICE_RETURN_IF_ERROR(CheckRange(pool, pages, range, body.size()));
  const KvPoolOptions& options = pool.options();
  const std::byte* const keys = body.data();
  const std::byte* const values = keys + ValueOffset(PlaneBytes(options.layout, options.codec, range.tokens));
  ForEachPage(options, pages, range, [&](PageIndex page, size_t in_page, size_t in_plane, size_t bytes) {
    std::memcpy(pool.K(page, range.layer) + in_page, keys + in_plane, bytes);
    std::memcpy(pool.V(page, range.layer) + in_page, values + in_plane, bytes);
  });
  return absl::OkStatus();
}

Status CheckKvHeader(const KvFrameHeader& header, const KvLayout& layout, KvCodec wire, uint64_t layout_hash,
                     int64_t prompt_tokens) {
  if (header.codec != wire)
    return absl::FailedPreconditionError(
        absl::StrCat("KV frame: wire codec ", std::string(Name(header.codec)), ", expected ", std::string(Name(wire))));
  if (header.layout_hash != layout_hash)
    return absl::FailedPreconditionError(
        absl::StrCat("KV frame: layout hash ", absl::Hex(header.layout_hash), ", expected ", absl::Hex(layout_hash)));
  if (header.layer >= layout.layers)
    return absl::InvalidArgumentError(absl::StrCat("KV frame: layer ", header.layer, " of ", layout.layers));
  const int64_t end = static_cast<int64_t>(header.first_token) + header.tokens;
  if (end > prompt_tokens)
    return absl::InvalidArgumentError(absl::StrCat("KV frame: ends at token ", end, " of a prompt of ", prompt_tokens));
  const size_t expected = BodyBytes(layout, wire, header.tokens);
  if (header.payload_bytes != expected)
    return absl::InvalidArgumentError(absl::StrCat("KV frame: payload of ", header.payload_bytes, " bytes, expected ",
                                                   expected, " for ", header.tokens, " tokens"));
  return absl::OkStatus();
}

}  // namespace sluice
