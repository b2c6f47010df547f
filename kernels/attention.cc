#include "kernels/attention.h"

#include <algorithm>
#include <climits>
#include <limits>

#include "kernels/codec/hadamard.h"
#include "kernels/simd_kernels.h"

namespace sluice {

namespace {

// A block is the rows that share one pass over the keys: enough that widening and transposing a tile costs little
// beside its products, few enough that their scores and sums stay in a second-level cache.
constexpr int kBlockRows = 96;
// Room for partial results: this many single tokens, each at the longest context, can have their spans spread over the
// threads at once. More sequences than that keep the threads busy as they are.
constexpr int kSplitTokens = 4;
// So many items a thread, or one that is late makes the others wait.
constexpr int kItemsPerThread = 4;
// Heads go together while the keys and values of their span are no more than this: they are asked for while the span
// before is computed, and wait in a second-level cache. Rows of all heads have no gaps, which counts for more than that
// all of them stay there.
constexpr size_t kSpanBytes = size_t{1} << 20;

int Group(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
int BlockTokens(const AttentionShape& shape) { return std::max(1, kBlockRows / Group(shape)); }
int BlockRows(const AttentionShape& shape) { return BlockTokens(shape) * Group(shape); }
int Padded(int dim) { return (dim + kDimPad - 1) / kDimPad * kDimPad; }
int KeyStride(const AttentionShape& shape) { return Padded(shape.key_dim); }
int ValueStride(const AttentionShape& shape) { return Padded(shape.value_dim); }
int64_t Spans(int64_t keys) { return (keys + kSpanKeys - 1) / kSpanKeys; }
int64_t PartialFloats(const AttentionShape& shape) {
  return ValueStride(shape) + kDimPad;
}  // max, sum, padding, values

int64_t PartialsMax(const AttentionShape& shape, int64_t context_tokens_max) {
  return kSplitTokens * shape.heads * Spans(context_tokens_max);
}

int64_t ItemsMax(const AttentionShape& shape, int64_t tokens_max, int64_t context_tokens_max) {
  return tokens_max * shape.kv_heads + PartialsMax(shape, context_tokens_max) / Group(shape);
}

}  // namespace

// One thread's scratch, cut from a run of bytes; Layout(null) computes the size.
struct Attention::Scratch {
  float *q, *acc, *span_acc, *scores, *k_tile, *v_tile, *row_scales, *max, *sum, *span_max, *span_sum, *q_scales;
  int32_t *visible, *q_pairs, *q_offsets;
  const void **k_rows, **v_rows, **k_scales, **v_scales;
  PrefetchRange* ranges;
  size_t bytes;

  static Scratch Layout(const AttentionShape& shape, std::byte* base) {
    Scratch s;
    size_t used = 0;
    const auto take = [&](auto*& p, size_t count) {
      p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(base + used);
      used += (count * sizeof(*p) + 63) / 64 * 64;
    };
    const auto rows = static_cast<size_t>(BlockRows(shape));
    const auto key_dims = static_cast<size_t>(KeyStride(shape));
    const auto value_dims = static_cast<size_t>(ValueStride(shape));
    take(s.q, rows * key_dims);
    for (float** p : {&s.acc, &s.span_acc}) take(*p, rows * value_dims);
    for (float** p : {&s.max, &s.sum, &s.span_max, &s.span_sum, &s.q_scales}) take(*p, rows);
    take(s.scores, rows * kSpanKeys);
    take(s.k_tile, kKeyTile * key_dims);
    take(s.v_tile, kValueTile * value_dims);
    take(s.row_scales, std::max<size_t>(kSpanKeys, key_dims / kInt4Group * kKeyTile));
    take(s.visible, rows);
    take(s.q_pairs, rows * key_dims / 2);
    take(s.q_offsets, rows * key_dims / kInt4Group);
    take(s.ranges, 4 * kSpanKeys);
    for (const void*** p : {&s.k_rows, &s.v_rows, &s.k_scales, &s.v_scales}) take(*p, kSpanKeys);
    s.bytes = used;
    return s;
  }
  static size_t Bytes(const AttentionShape& shape) { return Layout(shape, nullptr).bytes; }

  // The running softmax of rows that have seen nothing.
  void Clear(int rows, int dims) const {
    std::fill(max, max + rows, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + rows, 0.0f);
    std::fill(acc, acc + rows * dims, 0.0f);
  }
};

// Rows of `tokens` tokens of one sequence and `heads` kv heads over spans [first_span, first_span + spans). With
// `partial` >= 0 the spans are a part of all, and their results wait in slots partial + row * all_spans + span for the
// merge, rows counted from the first head's on.
struct Attention::Item {
  const AttentionSequence* sequence;
  int64_t first_token;  // of the sequence's
  int64_t partial;
  int32_t tokens;
  int32_t first_head;
  int32_t heads;
  int32_t first_span;
  int32_t spans;
  int32_t all_spans;
};

struct Attention::Work {
  const PagedKv* kv;
  const KvCodecInfo* codec;
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  const SimdKernels* kernels;
};

size_t Attention::Bytes(const AttentionShape& shape, int64_t tokens_max, int64_t context_tokens_max, int threads) {
  return static_cast<size_t>(ItemsMax(shape, tokens_max, context_tokens_max)) * sizeof(Item) +
         Scratch::Bytes(shape) * static_cast<size_t>(threads) +
         static_cast<size_t>(PartialsMax(shape, context_tokens_max) * PartialFloats(shape)) * sizeof(float);
}

StatusOr<Attention> Attention::Create(const AttentionShape& shape, int64_t tokens_max, int64_t context_tokens_max,
                                      int threads) {
  const auto bad = [](int dim) { return dim <= 0 || dim % 2 != 0; };
  if (shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0 || bad(shape.key_dim) || bad(shape.value_dim)) {
    return absl::InvalidArgumentError(absl::StrCat("attention of ", shape.heads, " heads over ", shape.kv_heads,
                                                   " kv heads of ", shape.key_dim, " and ", shape.value_dim,
                                                   " channels"));
  }
  Attention attention;
  attention.shape_ = shape;
  attention.tokens_max_ = tokens_max;
  attention.context_tokens_max_ = context_tokens_max;
  attention.threads_ = threads;
  const auto items = static_cast<size_t>(ItemsMax(shape, tokens_max, context_tokens_max));
  const auto partials = static_cast<size_t>(PartialsMax(shape, context_tokens_max) * PartialFloats(shape));
  SLUICE_ASSIGN_OR_RETURN(attention.items_, Buffer::Create(items * sizeof(Item), /*touch=*/true));
  SLUICE_ASSIGN_OR_RETURN(attention.scratch_,
                          Buffer::Create(Scratch::Bytes(shape) * static_cast<size_t>(threads), /*touch=*/true));
  SLUICE_ASSIGN_OR_RETURN(attention.partials_, Buffer::Create(partials * sizeof(float), /*touch=*/true));
  return attention;
}

void Attention::Run(const PagedKv& kv, absl::Span<const AttentionSequence> sequences, const float* q, int64_t q_stride,
                    float* out, int64_t out_stride, ThreadPool& pool) {
  SLUICE_CHECK(pool.threads() <= threads_, "threads ", pool.threads());
  const KvCodecInfo& codec = Info(kv.codec);
  const bool latent = kv.codec == KvCodec::kMlaFp8;
  const KvRowShape key = {.channels = latent ? shape_.value_dim : shape_.key_dim,
                          .rope = latent ? shape_.key_dim - shape_.value_dim : 0};
  const KvRowShape value = latent ? key : KvRowShape{.channels = shape_.value_dim};
  SLUICE_CHECK(codec.check(key).ok() && codec.check(value).ok(), "KV rows of ", shape_.key_dim, ", ", shape_.value_dim);
  int64_t tokens = 0;
  for (const AttentionSequence& sequence : sequences) {
    tokens += sequence.tokens;
    const int64_t end = sequence.start_position + sequence.tokens;
    SLUICE_CHECK(end <= context_tokens_max_ && tokens <= tokens_max_, "position ", end, ", tokens ", tokens);
  }
  const Work work = {&kv, &codec, q, q_stride, out, out_stride, &ActiveKernels()};
  Item* items = items_.as<Item>();
  const int64_t count = ShareOut(kv, sequences, pool.threads(), items);
  pool.ParallelFor(count, [&](int64_t i, int thread) { RunItem(work, items[i], thread); });
  // What is split is merged once: by its items of span 0, moved to the front.
  const int64_t merges =
      std::partition(items, items + count, [](const Item& i) { return i.partial >= 0 && i.first_span == 0; }) - items;
  if (merges > 0) pool.ParallelFor(merges, [&](int64_t i, int thread) { MergePartials(work, items[i], thread); });
}

// Which work is one item. Heads of one span are neighbours in memory, so they go together where their rows fit the
// scratch memory and their keys a cache; a single block of rows over many spans is cut where that keeps threads busy.
int64_t Attention::ShareOut(const PagedKv& kv, absl::Span<const AttentionSequence> sequences, int threads,
                            Item* items) const {
  const int block_tokens = BlockTokens(shape_);
  const size_t head_bytes = kSpanKeys * (kv.k.code_bytes + kv.k.scale_bytes + kv.v.code_bytes + kv.v.scale_bytes);
  int64_t head_spans = 0;  // over all blocks, if each head were an item
  for (const AttentionSequence& s : sequences) {
    for (int64_t first = 0; first < s.tokens; first += block_tokens)
      head_spans += Spans(s.start_position + std::min(first + block_tokens, s.tokens)) * shape_.kv_heads;
  }
  const int64_t shares = int64_t{kItemsPerThread} * threads;
  const int64_t heads_max = std::min<int64_t>(head_spans / shares, kSpanBytes / head_bytes);
  int64_t count = 0;
  int64_t partials = 0;
  for (const AttentionSequence& s : sequences) {
    const auto tokens_a_block = static_cast<int32_t>(std::min<int64_t>(block_tokens, s.tokens));
    const int32_t heads =
        HeadsTogether(std::min<int64_t>(heads_max, BlockRows(shape_) / (tokens_a_block * Group(shape_))));
    const auto spans = static_cast<int32_t>(Spans(s.start_position + s.tokens));
    const auto spans_max = static_cast<int32_t>(std::max<int64_t>(1, head_spans / heads / shares));
    const int64_t slots = s.tokens * shape_.heads * spans;
    const bool split =
        s.tokens <= block_tokens && spans > spans_max && partials + slots <= PartialsMax(shape_, context_tokens_max_);
    // The later a block, the more keys it has: longest first keeps the threads together at the end.
    for (int64_t first = (s.tokens - 1) / block_tokens * block_tokens; first >= 0; first -= block_tokens) {
      const auto n = static_cast<int32_t>(std::min<int64_t>(block_tokens, s.tokens - first));
      const auto block_spans = static_cast<int32_t>(Spans(s.start_position + first + n));
      const int32_t step = split ? spans_max : block_spans;
      for (int32_t span = 0; span < block_spans; span += step) {
        for (int32_t h = 0; h < shape_.kv_heads; h += heads) {
          const int64_t slot = split ? partials + int64_t{h} * s.tokens * Group(shape_) * spans : -1;
          items[count++] = {&s, first, slot, n, h, heads, span, std::min(step, block_spans - span), block_spans};
        }
      }
    }
    if (split) partials += slots;
  }
  return count;
}

// The largest number of kv heads that is at most `heads_max` and of which there are a whole number.
int32_t Attention::HeadsTogether(int64_t heads_max) const {
  int32_t heads = static_cast<int32_t>(std::clamp<int64_t>(heads_max, 1, shape_.kv_heads));
  while (shape_.kv_heads % heads != 0) --heads;
  return heads;
}

// One head's rows of q, scaled, rotated where the codec is, with zeros behind.
void Attention::LoadQueries(const Work& work, const Item& item, int head, float* q) const {
  const int group = Group(shape_);
  const int dims = KeyStride(shape_);
  const int64_t first_row = item.sequence->token + item.first_token;
  for (int r = 0; r < item.tokens * group; ++r, q += dims) {
    const float* in = work.q + (first_row + r / group) * work.q_stride +
                      static_cast<ptrdiff_t>(head * group + r % group) * shape_.key_dim;
    if (work.codec->rotated) {
      RotateRow(in, shape_.key_dim, q);
      in = q;
    }
    for (int c = 0; c < dims; ++c) q[c] = c < shape_.key_dim ? in[c] * shape_.scale : 0.0f;
  }
}

// Calls found(first, keys, page, slot) for each run of the span's keys that lies in one page: `page` is where the
// page's part begins, `slot` the first key's token of it.
template <typename F>
void Attention::ForRuns(const PagedKv& kv, const AttentionSequence& sequence, int64_t first_key, int keys,
                        const F& found) const {
  for (int k = 0; k < keys;) {
    const int64_t position = first_key + k;
    const auto slot = static_cast<int>(position % kv.page_tokens);
    const int n = std::min(keys - k, kv.page_tokens - slot);
    found(k, n, static_cast<size_t>(sequence.pages[position / kv.page_tokens]) * kv.page_stride_bytes, slot);
    k += n;
  }
}

// Where the span's keys lie: the rows of kv head 0.
void Attention::FindKeys(const PagedKv& kv, const AttentionSequence& sequence, int64_t first_key, int keys,
                         const Scratch& s) const {
  ForRuns(kv, sequence, first_key, keys, [&](int first, int n, size_t page, int slot) {
    auto row = static_cast<size_t>(slot) * static_cast<size_t>(shape_.kv_heads);
    for (int k = first; k < first + n; ++k, row += static_cast<size_t>(shape_.kv_heads)) {
      s.k_rows[k] = kv.k.codes + page + row * kv.k.code_bytes;
      s.v_rows[k] = kv.v.codes + page + row * kv.v.code_bytes;
      s.k_scales[k] = kv.k.scales + page + row * kv.k.scale_bytes;
      s.v_scales[k] = kv.v.scales + page + row * kv.v.scale_bytes;
    }
  });
}

// The memory of the item's heads of a span, in the order of addresses.
PrefetchQueue Attention::QueueSpan(const PagedKv& kv, const Item& item, int64_t first_key, int keys,
                                   PrefetchRange* ranges) const {
  const auto all_heads = static_cast<size_t>(shape_.kv_heads);
  const auto heads = static_cast<size_t>(item.heads);
  PrefetchRange* end = ranges;
  const auto add = [&](const std::byte* first, size_t first_row, size_t rows, size_t row_bytes) {
    const auto* begin = reinterpret_cast<const char*>(first) + first_row * row_bytes;
    if (row_bytes != 0) *end++ = {begin, begin + rows * row_bytes};
  };
  ForRuns(kv, *item.sequence, first_key, keys, [&](int, int n, size_t page, int slot) {
    for (const KvRows* plane : {&kv.k, &kv.v}) {
      if (plane == &kv.v && kv.v.codes == kv.k.codes) return;
      // Codes of a few heads have gaps from token to token; those of all heads do not, and scales are too small to
      // tell.
      const size_t row = static_cast<size_t>(slot) * all_heads;
      const int step = heads == all_heads ? n : 1;
      for (int t = 0; t < n; t += step) {
        add(plane->codes + page, row + static_cast<size_t>(t) * all_heads + static_cast<size_t>(item.first_head),
            static_cast<size_t>(step - 1) * all_heads + heads, plane->code_bytes);
      }
      add(plane->scales + page, row, static_cast<size_t>(n) * all_heads, plane->scale_bytes);
    }
  });
  return {ranges, end, nullptr, nullptr};
}

void Attention::RunItem(const Work& work, const Item& item, int thread) {
  const PagedKv& kv = *work.kv;
  const int key_dims = KeyStride(shape_);
  const int dims = ValueStride(shape_);
  const int rows = item.tokens * Group(shape_);
  const Scratch s = Scratch::Layout(shape_, scratch_.data() + Scratch::Bytes(shape_) * static_cast<size_t>(thread));
  for (int h = 0; h < item.heads; ++h) LoadQueries(work, item, item.first_head + h, s.q + h * rows * key_dims);
  s.Clear(rows * item.heads, dims);

  const int64_t first_position = item.sequence->start_position + item.first_token;
  const auto keys_of = [&](int span) {
    const int64_t left = first_position + item.tokens - int64_t{span} * kSpanKeys;
    return static_cast<int>(std::min<int64_t>(kSpanKeys, left));
  };
  PrefetchQueue ahead = QueueSpan(kv, item, int64_t{item.first_span} * kSpanKeys, keys_of(item.first_span), s.ranges);
  PrefetchLines(ahead, INT_MAX);
  for (int span = item.first_span; span < item.first_span + item.spans; ++span) {
    const int64_t first_key = int64_t{span} * kSpanKeys;
    const int keys = keys_of(span);
    FindKeys(kv, *item.sequence, first_key, keys, s);
    for (int r = 0; r < rows; ++r) {
      s.visible[r] =
          static_cast<int32_t>(std::clamp<int64_t>(first_position + r / Group(shape_) + 1 - first_key, 0, kSpanKeys));
    }
    int lines = 0;
    if (span + 1 < item.first_span + item.spans) {
      ahead = QueueSpan(kv, item, first_key + kSpanKeys, keys_of(span + 1), s.ranges);
      for (const PrefetchRange* r = ahead.next; r != ahead.end; ++r)
        lines += static_cast<int>(r->end - r->begin + 63) / 64;
    }
    for (int h = 0; h < item.heads; ++h) {
      const auto head = static_cast<size_t>(item.first_head + h);
      work.kernels->attend_span({.q = s.q + h * rows * key_dims,
                                 .visible = s.visible,
                                 .rows = rows,
                                 .keys = keys,
                                 .key_dim = shape_.key_dim,
                                 .key_stride = key_dims,
                                 .value_dim = shape_.value_dim,
                                 .value_stride = dims,
                                 .codec = kv.codec,
                                 .k_bytes = static_cast<int>(work.codec->code_bytes({.channels = shape_.key_dim})),
                                 .k_rows = s.k_rows,
                                 .v_rows = s.v_rows,
                                 .k_scales = s.k_scales,
                                 .v_scales = s.v_scales,
                                 .k_offset = head * kv.k.code_bytes,
                                 .v_offset = head * kv.v.code_bytes,
                                 .k_scale_offset = head * kv.k.scale_bytes,
                                 .v_scale_offset = head * kv.v.scale_bytes,
                                 .ahead = &ahead,
                                 .ahead_lines = (lines + item.heads - 1) / item.heads,
                                 .k_tile = s.k_tile,
                                 .v_tile = s.v_tile,
                                 .row_scales = s.row_scales,
                                 .q_pairs = s.q_pairs,
                                 .q_offsets = s.q_offsets,
                                 .q_scales = s.q_scales,
                                 .scores = s.scores,
                                 .max = s.span_max,
                                 .sum = s.span_sum,
                                 .out = s.span_acc});
      KeepSpan(work, item, h * rows, rows, span, s);
    }
  }
  if (item.partial < 0) WriteRows(work, item, s.acc, s.sum);
}

// What a span gave to rows [first_row, first_row + rows) of the item: to its slots, or into the running softmax.
void Attention::KeepSpan(const Work& work, const Item& item, int first_row, int rows, int span, const Scratch& s) {
  const int dims = ValueStride(shape_);
  for (int r = 0; r < rows; ++r) {
    const float* acc = s.span_acc + r * dims;
    const int row = first_row + r;
    if (item.partial >= 0) {
      float* slot =
          partials_.as<float>() + (item.partial + int64_t{row} * item.all_spans + span) * PartialFloats(shape_);
      slot[0] = s.span_max[r];
      slot[1] = s.span_sum[r];
      std::copy(acc, acc + dims, slot + kDimPad);
    } else if (s.visible[r] > 0) {
      work.kernels->merge_span({s.max + row, s.sum + row, s.acc + row * dims, s.span_max[r], s.span_sum[r], acc, dims});
    }
  }
}

void Attention::MergePartials(const Work& work, const Item& item, int thread) {
  const int dims = ValueStride(shape_);
  const int rows = item.tokens * Group(shape_);
  const Scratch s = Scratch::Layout(shape_, scratch_.data() + Scratch::Bytes(shape_) * static_cast<size_t>(thread));
  s.Clear(rows * item.heads, dims);
  for (int r = 0; r < rows * item.heads; ++r) {
    const int64_t position = item.sequence->start_position + item.first_token + r % rows / Group(shape_);
    const float* slots = partials_.as<float>() + (item.partial + int64_t{r} * item.all_spans) * PartialFloats(shape_);
    for (int64_t span = 0; span < Spans(position + 1); ++span) {
      const float* slot = slots + span * PartialFloats(shape_);
      work.kernels->merge_span({s.max + r, s.sum + r, s.acc + r * dims, slot[0], slot[1], slot + kDimPad, dims});
    }
  }
  WriteRows(work, item, s.acc, s.sum);
}

// out = acc / sum, rotated back: the end of both ways.
void Attention::WriteRows(const Work& work, const Item& item, const float* acc, const float* sum) const {
  const int group = Group(shape_);
  const int dims = ValueStride(shape_);
  const int rows = item.tokens * group;
  const int64_t first_row = item.sequence->token + item.first_token;
  for (int r = 0; r < rows * item.heads; ++r) {
    const int token = r % rows / group;
    const int head = (item.first_head + r / rows) * group + r % group;
    float* out = work.out + (first_row + token) * work.out_stride + static_cast<ptrdiff_t>(head) * shape_.value_dim;
    const float scale = 1.0f / sum[r];
    for (int c = 0; c < shape_.value_dim; ++c) out[c] = acc[r * dims + c] * scale;
    if (work.codec->rotated) RotateRow(out, shape_.value_dim, out);
  }
}

}  // namespace sluice
