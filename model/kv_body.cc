#include "model/kv_body.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice {

namespace {

// Rows on their way from one codec to the other, as f32.
constexpr int kScratchFloats = 8192;
static_assert(kScratchFloats >= kLatentMax + kHeadDimMax);

size_t AlignUp(size_t bytes) { return (bytes + kBodyAlignment - 1) / kBodyAlignment * kBodyAlignment; }

size_t LayerBodyBytes(const KvLayout& layout, KvCodec wire, int64_t tokens) {
  const size_t tensor = TensorBytes(layout, wire, tokens).total();
  return static_cast<size_t>(layout.tensors() - 1) * AlignUp(tensor) + tensor;
}

// Where a tensor of a layer of the range begins in the body.
size_t TensorOffset(const KvLayout& layout, KvCodec wire, int64_t tokens, int layer, int tensor) {
  return static_cast<size_t>(layer) * AlignUp(LayerBodyBytes(layout, wire, tokens)) +
         static_cast<size_t>(tensor) * AlignUp(TensorBytes(layout, wire, tokens).total());
}

Status CheckRange(const KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range, KvCodec wire,
                  size_t body_bytes) {
  const KvPoolOptions& options = pool.options();
  const int layers = options.layout.layers;
  if (range.layer < 0 || range.layers < 1 || range.layer >= layers || range.layers > layers - range.layer)
    return absl::InvalidArgumentError(
        absl::StrCat("KV range: ", range.layers, " layers from layer ", range.layer, " of ", layers));
  const int64_t room = static_cast<int64_t>(pages.size()) * options.page_tokens;
  if (range.first_token < 0 || range.tokens < 1 || range.first_token > room || range.tokens > room - range.first_token)
    return absl::InvalidArgumentError(
        absl::StrCat("KV range: ", range.tokens, " tokens from ", range.first_token, " in pages for ", room));
  SLUICE_RETURN_IF_ERROR(CheckCodec(options.layout, wire));
  const size_t expected = BodyBytes(options.layout, wire, range.layers, range.tokens);
  if (body_bytes != expected)
    return absl::InvalidArgumentError(absl::StrCat("KV body of ", body_bytes, " bytes, expected ", expected));
  for (const PageIndex page : pages) {
    if (page < 0 || page >= pool.pages_total())
      return absl::InvalidArgumentError(absl::StrCat("KV range: page ", page, " of ", pool.pages_total()));
  }
  return absl::OkStatus();
}

// Rows of one tensor that are neighbours in a page, and where they begin among the range's.
struct Run {
  PageIndex page;
  int layer;
  int tensor;
  int64_t slot;   // the first token's, in the page
  int64_t token;  // the first token, counted from the range's
  int64_t tokens;
};

// Calls visit(run) tensor by tensor in the body's order, each tensor's runs in the order of tokens.
template <typename Visit>
void ForEachRun(const KvPoolOptions& options, absl::Span<const PageIndex> pages, const KvRange& range, int layer,
                int tensor, Visit visit) {
  for (int64_t done = 0; done < range.tokens;) {
    const int64_t token = range.first_token + done;
    const int64_t slot = token % options.page_tokens;
    const int64_t count = std::min<int64_t>(options.page_tokens - slot, range.tokens - done);
    visit(Run{.page = pages[static_cast<size_t>(token / options.page_tokens)],
              .layer = range.layer + layer,
              .tensor = tensor,
              .slot = slot,
              .token = done,
              .tokens = count});
    done += count;
  }
}

// Codes and scales of some rows, in a page or in a body. Bytes is std::byte or const std::byte.
template <typename Bytes>
struct Rows {
  Bytes* codes;
  Bytes* scales;
};

template <typename Bytes>
Rows<Bytes> Skip(Rows<Bytes> rows, const KvLayout& layout, KvCodec codec, int64_t tokens) {
  const PlaneBytes skipped = TensorBytes(layout, codec, tokens);
  return {rows.codes + skipped.codes, rows.scales + skipped.scales};
}

template <typename Bytes>
Rows<Bytes> RowsInBody(Bytes* body, const KvLayout& layout, KvCodec wire, const KvRange& range, int layer,
                       const Run& run) {
  Bytes* const begin = body + TensorOffset(layout, wire, range.tokens, layer, run.tensor);
  return Skip<Bytes>({begin, begin + TensorBytes(layout, wire, range.tokens).codes}, layout, wire, run.token);
}

template <typename Bytes>
Rows<Bytes> RowsInPage(const KvPool& pool, const Run& run) {
  const KvPlane plane = pool.Plane(run.page, run.layer, run.tensor);
  return Skip<Bytes>({plane.codes, plane.scales}, pool.options().layout, pool.options().codec, run.slot);
}

// Rows of `run` from one codec to another.
KvCodecCounts Recode(const KvLayout& layout, int64_t tokens, KvCodec from, Rows<const std::byte> in, KvCodec to,
                     Rows<std::byte> out) {
  const KvRowShape shape = layout.row();
  const int64_t rows = tokens * layout.rows_per_token();
  KvCodecCounts counts;
  if (from == to) {
    const PlaneBytes bytes = TensorBytes(layout, from, tokens);
    std::memcpy(out.codes, in.codes, bytes.codes);
    std::memcpy(out.scales, in.scales, bytes.scales);
    counts.nonfinite_rows = Info(from).count_nonfinite(shape, in.codes, in.scales, rows);
    return counts;
  }
  const KvCodecInfo& source = Info(from);
  const KvCodecInfo& target = Info(to);
  std::array<float, kScratchFloats> scratch;
  const int64_t at_once = kScratchFloats / shape.width();
  SLUICE_CHECK(at_once >= 1, "a KV row of ", shape.width(), " channels");
  for (int64_t row = 0; row < rows; row += at_once) {
    const int64_t count = std::min(at_once, rows - row);
    const auto at = static_cast<size_t>(row);
    source.decode(shape, in.codes + at * source.code_bytes(shape), in.scales + at * source.scale_bytes(shape), count,
                  scratch.data(), shape.width());
    counts += target.encode(shape, scratch.data(), count, shape.width(), out.codes + at * target.code_bytes(shape),
                            out.scales + at * target.scale_bytes(shape));
  }
  return counts;
}

}  // namespace

size_t BodyBytes(const KvLayout& layout, KvCodec wire, int layers, int64_t tokens) {
  const size_t layer = LayerBodyBytes(layout, wire, tokens);
  return static_cast<size_t>(layers - 1) * AlignUp(layer) + layer;
}

StatusOr<KvCodecCounts> EncodeBody(const KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range,
                                   KvCodec wire, absl::Span<std::byte> body) {
  SLUICE_RETURN_IF_ERROR(CheckRange(pool, pages, range, wire, body.size()));
  const KvPoolOptions& options = pool.options();
  KvCodecCounts counts;
  size_t written = 0;
  for (int layer = 0; layer < range.layers; ++layer) {
    for (int tensor = 0; tensor < options.layout.tensors(); ++tensor) {
      const size_t begin = TensorOffset(options.layout, wire, range.tokens, layer, tensor);
      std::memset(body.data() + written, 0, begin - written);
      written = begin + TensorBytes(options.layout, wire, range.tokens).total();
      ForEachRun(options, pages, range, layer, tensor, [&](const Run& run) {
        counts += Recode(options.layout, run.tokens, options.codec, RowsInPage<const std::byte>(pool, run), wire,
                         RowsInBody(body.data(), options.layout, wire, range, layer, run));
      });
    }
  }
  return counts;
}

StatusOr<KvCodecCounts> DecodeBody(KvPool& pool, absl::Span<const PageIndex> pages, const KvRange& range, KvCodec wire,
                                   absl::Span<const std::byte> body) {
  SLUICE_RETURN_IF_ERROR(CheckRange(pool, pages, range, wire, body.size()));
  const KvPoolOptions& options = pool.options();
  KvCodecCounts counts;
  for (int layer = 0; layer < range.layers; ++layer) {
    for (int tensor = 0; tensor < options.layout.tensors(); ++tensor) {
      ForEachRun(options, pages, range, layer, tensor, [&](const Run& run) {
        counts +=
            Recode(options.layout, run.tokens, wire, RowsInBody(body.data(), options.layout, wire, range, layer, run),
                   options.codec, RowsInPage<std::byte>(pool, run));
      });
    }
  }
  return counts;
}

StatusOr<std::vector<absl::Span<std::byte>>> BodyPieces(KvPool& pool, absl::Span<const PageIndex> pages,
                                                        const KvRange& range, size_t body_bytes,
                                                        absl::Span<std::byte> gap) {
  const KvPoolOptions& options = pool.options();
  SLUICE_RETURN_IF_ERROR(CheckRange(pool, pages, range, options.codec, body_bytes));
  std::vector<absl::Span<std::byte>> pieces;
  size_t placed = 0;
  const auto add = [&](std::byte* begin, size_t bytes) {
    placed += bytes;
    if (bytes == 0) return;
    if (!pieces.empty() && pieces.back().data() + pieces.back().size() == begin) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + bytes};
    } else {
      pieces.emplace_back(begin, bytes);
    }
  };
  for (int layer = 0; layer < range.layers; ++layer) {
    for (int tensor = 0; tensor < options.layout.tensors(); ++tensor) {
      add(gap.data(), TensorOffset(options.layout, options.codec, range.tokens, layer, tensor) - placed);
      for (const bool scales : {false, true}) {
        ForEachRun(options, pages, range, layer, tensor, [&](const Run& run) {
          const Rows<std::byte> rows = RowsInPage<std::byte>(pool, run);
          const PlaneBytes bytes = TensorBytes(options.layout, options.codec, run.tokens);
          add(scales ? rows.scales : rows.codes, scales ? bytes.scales : bytes.codes);
        });
      }
    }
  }
  return pieces;
}

Status CheckKvHeader(const KvFrameHeader& header, const KvLayout& layout, uint64_t layout_hash, int64_t first_token,
                     int64_t prompt_tokens) {
  if (header.layout_hash != layout_hash)
    return absl::FailedPreconditionError(
        absl::StrCat("KV frame: layout hash ", absl::Hex(header.layout_hash), ", expected ", absl::Hex(layout_hash)));
  SLUICE_RETURN_IF_ERROR(WithContext(CheckCodec(layout, header.codec), "KV frame"));
  if (header.layer + header.layers > layout.layers)
    return absl::InvalidArgumentError(
        absl::StrCat("KV frame: ", header.layers, " layers from layer ", header.layer, " of ", layout.layers));
  if (header.first_token < first_token)
    return absl::InvalidArgumentError(
        absl::StrCat("KV frame: begins at token ", header.first_token, ", KV is awaited from token ", first_token));
  const int64_t end = static_cast<int64_t>(header.first_token) + header.tokens;
  if (end > prompt_tokens)
    return absl::InvalidArgumentError(absl::StrCat("KV frame: ends at token ", end, " of a prompt of ", prompt_tokens));
  const size_t expected = BodyBytes(layout, header.codec, header.layers, header.tokens);
  if (header.payload_bytes != expected)
    return absl::InvalidArgumentError(absl::StrCat("KV frame: payload of ", header.payload_bytes, " bytes, expected ",
                                                   expected, " for ", header.layers, " layers of ", header.tokens,
                                                   " tokens in ", std::string(Name(header.codec))));
  return absl::OkStatus();
}

KvRange RangeOf(const KvFrameHeader& header) {
  return {.layer = header.layer, .layers = header.layers, .first_token = header.first_token, .tokens = header.tokens};
}

}  // namespace sluice
