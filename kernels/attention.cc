#include "kernels/attention.h"

#include <algorithm>
#include <climits>
#include <cmath>

#include "kernels/attention_scratch.h"
#include "kernels/codec/hadamard.h"

namespace sluice {

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
  const KvRowShape key = KeyRow(shape_, kv.codec);
  const KvRowShape value = kv.codec == KvCodec::kMlaFp8 ? key : KvRowShape{.channels = shape_.value_dim};
  SLUICE_CHECK(codec.check(key).ok() && codec.check(value).ok(), "KV rows of ", shape_.key_dim, ", ", shape_.value_dim);
  int64_t tokens = 0;
  for (const AttentionSequence& sequence : sequences) {
    tokens += sequence.tokens;
    const int64_t end = sequence.start_position + sequence.tokens;
    SLUICE_CHECK(end <= context_tokens_max_ && tokens <= tokens_max_, "position ", end, ", tokens ", tokens);
    SLUICE_CHECK(sequence.tokens == 1 || (sequence.sinks == 0 && sequence.weights == nullptr), "tokens ",
                 sequence.tokens);
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
  int64_t head_spans = 0;  // over all blocks, if each head were an item
  for (const AttentionSequence& s : sequences) {
    for (int64_t first = 0; first < s.tokens; first += block_tokens)
      head_spans +=
          SpanCut{s.sinks}.spans(s.start_position + std::min(first + block_tokens, s.tokens)) * shape_.kv_heads;
  }
  const int64_t shares = int64_t{kItemsPerThread} * threads;
  const int64_t heads_max = std::min<int64_t>(head_spans / shares, kSpanBytes / HeadBytes(kv));
  int64_t count = 0;
  int64_t partials = 0;
  for (const AttentionSequence& s : sequences) {
    const auto tokens_a_block = static_cast<int32_t>(std::min<int64_t>(block_tokens, s.tokens));
    const int32_t heads =
        HeadsTogether(std::min<int64_t>(heads_max, BlockRows(shape_) / (tokens_a_block * Group(shape_))));
    const SpanCut cut = {s.sinks};
    const auto spans = static_cast<int32_t>(cut.spans(s.start_position + s.tokens));
    const auto spans_max = static_cast<int32_t>(std::max<int64_t>(1, head_spans / heads / shares));
    const int64_t slots = s.tokens * shape_.heads * spans;
    const bool split =
        s.tokens <= block_tokens && spans > spans_max && partials + slots <= PartialsMax(shape_, context_tokens_max_);
    // The later a block, the more keys it has: longest first keeps the threads together at the end.
    for (int64_t first = (s.tokens - 1) / block_tokens * block_tokens; first >= 0; first -= block_tokens) {
      const auto n = static_cast<int32_t>(std::min<int64_t>(block_tokens, s.tokens - first));
      const auto block_spans = static_cast<int32_t>(cut.spans(s.start_position + first + n));
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

// One kv head's rows of q, [tokens, group], scaled, rotated where the codec is, with zeros behind.
void Attention::LoadQueries(const KvCodecInfo& codec, const float* from, int64_t stride, int tokens, int head,
                            float* q) const {
  const int group = Group(shape_);
  const int dims = KeyStride(shape_);
  for (int r = 0; r < tokens * group; ++r, q += dims) {
    const float* in = from + r / group * stride + static_cast<ptrdiff_t>(head * group + r % group) * shape_.key_dim;
    if (codec.rotated) {
      RotateRow(in, shape_.key_dim, q);
      in = q;
    }
    for (int c = 0; c < dims; ++c) q[c] = c < shape_.key_dim ? in[c] * shape_.scale : 0.0f;
  }
}

// The queries of an item's heads that meet sinks or that meet the others.
void Attention::LoadItemQueries(const Work& work, const Item& item, bool sinks, float* q) const {
  const AttentionSequence& sequence = *item.sequence;
  const float* from = sinks ? sequence.sink_q : work.q + (sequence.token + item.first_token) * work.q_stride;
  const int rows = item.tokens * Group(shape_);
  for (int h = 0; h < item.heads; ++h, q += rows * KeyStride(shape_)) {
    LoadQueries(*work.codec, from, work.q_stride, item.tokens, item.first_head + h, q);
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

// The memory of the item's heads of a span, of K, of V or of both, in the order of addresses.
PrefetchQueue Attention::QueueRows(const PagedKv& kv, bool of_k, bool of_v, const Item& item, int64_t first_key,
                                   int keys, PrefetchRange* ranges) const {
  const auto all_heads = static_cast<size_t>(shape_.kv_heads);
  const auto heads = static_cast<size_t>(item.heads);
  PrefetchRange* end = ranges;
  const auto add = [&](const std::byte* first, size_t first_row, size_t rows, size_t row_bytes) {
    const auto* begin = reinterpret_cast<const char*>(first) + first_row * row_bytes;
    if (row_bytes != 0) *end++ = {begin, begin + rows * row_bytes};
  };
  ForRuns(kv, *item.sequence, first_key, keys, [&](int, int n, size_t page, int slot) {
    for (const KvRows* plane : {&kv.k, &kv.v}) {
      if (!(plane == &kv.k ? of_k : of_v)) continue;
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
  return {ranges, end, nullptr, nullptr, 0};
}

int Attention::Lines(const PrefetchQueue& queue) {
  int lines = 0;
  for (const PrefetchRange* r = queue.next; r != queue.end; ++r) lines += static_cast<int>(r->end - r->begin + 63) / 64;
  return lines;
}

// A kernel's view of the keys that FindKeys found, for a kv head and the queries at the front of the scratch.
AttentionSpan Attention::SpanOf(const PagedKv& kv, int head, int rows, int keys, const Scratch& s) const {
  const auto h = static_cast<size_t>(head);
  return {.q = s.q,
          .visible = s.visible,
          .rows = rows,
          .keys = keys,
          .key_dim = shape_.key_dim,
          .key_stride = KeyStride(shape_),
          .value_dim = shape_.value_dim,
          .value_stride = ValueStride(shape_),
          .codec = kv.codec,
          .k_bytes = static_cast<int>(Info(kv.codec).code_bytes({.channels = shape_.key_dim})),
          .k_rows = s.k_rows,
          .v_rows = s.v_rows,
          .k_scales = s.k_scales,
          .v_scales = s.v_scales,
          .k_offset = h * kv.k.code_bytes,
          .v_offset = h * kv.v.code_bytes,
          .k_scale_offset = h * kv.k.scale_bytes,
          .v_scale_offset = h * kv.v.scale_bytes,
          .ahead = nullptr,
          .ahead_lines = 0,
          .k_tile = s.k_tile,
          .v_tile = s.v_tile,
          .row_scales = s.row_scales,
          .q_codes = s.q_codes,
          .q_offsets = s.q_offsets,
          .q_scales = s.q_scales,
          .scores = s.scores,
          .max = s.span_max,
          .sum = s.span_sum,
          .out = s.span_acc,
          .weights = nullptr,
          .weights_stride = 0};
}

void Attention::RunItem(const Work& work, const Item& item, int thread) {
  const PagedKv& kv = *work.kv;
  const AttentionSequence& sequence = *item.sequence;
  const int key_dims = KeyStride(shape_);
  const int dims = ValueStride(shape_);
  const int rows = item.tokens * Group(shape_);
  const Scratch s = Scratch::Layout(shape_, scratch_.data() + Scratch::Bytes(shape_) * static_cast<size_t>(thread));
  s.Clear(rows * item.heads, dims);

  const SpanCut cut = {sequence.sinks};
  const int64_t first_position = sequence.start_position + item.first_token;
  const int64_t end = first_position + item.tokens;
  const bool values_within = kv.v.codes == kv.k.codes;  // of the keys
  // Where two spans do not stay in a second-level cache, a plane of one and a plane of the next do.
  const bool by_plane = !values_within && static_cast<size_t>(item.heads) * HeadBytes(kv) > kAheadBytes;
  const int last_span = item.first_span + item.spans - 1;
  PrefetchQueue ahead = {};
  const auto queue = [&](bool of_k, bool of_v, int span) {
    ahead = {};
    if (span > last_span) return 0;
    ahead = QueueRows(kv, of_k, of_v, item, cut.first_key(span), cut.keys(span, end), s.ranges);
    return Lines(ahead);
  };
  queue(true, !by_plane && !values_within, item.first_span);
  PrefetchLines(ahead, INT_MAX);
  for (int span = item.first_span; span <= last_span; ++span) {
    if (span == item.first_span || cut.of_sinks(span) != cut.of_sinks(span - 1)) {
      LoadItemQueries(work, item, cut.of_sinks(span), s.q);
    }
    const int64_t first_key = cut.first_key(span);
    const int keys = cut.keys(span, end);
    FindKeys(kv, sequence, first_key, keys, s);
    for (int r = 0; r < rows; ++r) {
      s.visible[r] =
          static_cast<int32_t>(std::clamp<int64_t>(first_position + r / Group(shape_) + 1 - first_key, 0, keys));
    }
    const auto for_heads = [&](int lines, void (*run)(const AttentionSpan&), const auto& then) {
      for (int h = 0; h < item.heads; ++h) {
        AttentionSpan one = SpanOf(kv, item.first_head + h, rows, keys, s);
        one.q = s.q + h * rows * key_dims;
        one.scores += h * rows * kSpanKeys;
        one.max += h * rows;
        one.sum += h * rows;
        one.ahead = &ahead;
        one.ahead_lines = (lines + item.heads - 1) / item.heads;
        one.weights = WeightsOf(item, h * rows, first_key);
        one.weights_stride = sequence.weights_stride;
        run(one);
        then(h);
      }
    };
    const auto keep = [&](int h) { KeepSpan(work, item, h * rows, rows, span, s); };
    if (by_plane) {
      for_heads(queue(false, true, span), work.kernels->weigh_keys, [](int) {});
      for_heads(queue(true, false, span + 1), work.kernels->sum_values, keep);
    } else {
      const int half = (queue(true, !values_within, span + 1) + 1) / 2;
      for_heads(half, work.kernels->weigh_keys, [](int) {});
      for_heads(half, work.kernels->sum_values, keep);
    }
  }
  if (item.partial < 0) WriteRows(work, item, s);
}

// Where weights of the item's row `row` from key `key` on go, if they are wanted.
float* Attention::WeightsOf(const Item& item, int row, int64_t key) const {
  const AttentionSequence& sequence = *item.sequence;
  if (sequence.weights == nullptr) return nullptr;
  return sequence.weights + (int64_t{item.first_head} * Group(shape_) + row) * sequence.weights_stride + key;
}

// What a span gave to rows [first_row, first_row + rows) of the item: to its slots, or into the running softmax.
void Attention::KeepSpan(const Work& work, const Item& item, int first_row, int rows, int span, const Scratch& s) {
  const int dims = ValueStride(shape_);
  for (int r = 0; r < rows; ++r) {
    const float* acc = s.span_acc + r * dims;
    const int row = first_row + r;
    if (item.sequence->weights != nullptr) *SpanMaxOf(item, row, span) = s.span_max[row];
    if (item.partial >= 0) {
      float* slot =
          partials_.as<float>() + (item.partial + int64_t{row} * item.all_spans + span) * PartialFloats(shape_);
      slot[0] = s.span_max[row];
      slot[1] = s.span_sum[row];
      std::copy(acc, acc + dims, slot + kDimPad);
    } else if (s.visible[r] > 0) {
      work.kernels->merge_span(
          {s.max + row, s.sum + row, s.acc + row * dims, s.span_max[row], s.span_sum[row], acc, dims});
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
    for (int64_t span = 0; span < SpanCut{item.sequence->sinks}.spans(position + 1); ++span) {
      const float* slot = slots + span * PartialFloats(shape_);
      work.kernels->merge_span({s.max + r, s.sum + r, s.acc + r * dims, slot[0], slot[1], slot + kDimPad, dims});
    }
  }
  WriteRows(work, item, s);
}

// out = acc / sum, rotated back, and what else is wanted of the rows' softmax: the end of both ways.
void Attention::WriteRows(const Work& work, const Item& item, const Scratch& s) const {
  const int group = Group(shape_);
  const int dims = ValueStride(shape_);
  const int rows = item.tokens * group;
  const int64_t first_row = item.sequence->token + item.first_token;
  for (int r = 0; r < rows * item.heads; ++r) {
    const int token = r % rows / group;
    const int head = (item.first_head + r / rows) * group + r % group;
    float* out = work.out + (first_row + token) * work.out_stride + static_cast<ptrdiff_t>(head) * shape_.value_dim;
    const float scale = 1.0f / s.sum[r];
    for (int c = 0; c < shape_.value_dim; ++c) out[c] = s.acc[r * dims + c] * scale;
    if (work.codec->rotated) RotateRow(out, shape_.value_dim, out);
    const AttentionSequence& sequence = *item.sequence;
    if (sequence.softmax != nullptr) {
      sequence.softmax[(item.first_token + token) * shape_.heads + head] = {.max = s.max[r], .factor = scale};
    }
    if (sequence.weights != nullptr) FinishWeights(item, r, s.max[r], scale);
  }
}

// The largest score of a span, kept behind the row's weights until the largest of all is known.
float* Attention::SpanMaxOf(const Item& item, int row, int64_t span) const {
  const int64_t keys = item.sequence->start_position + 1;
  return WeightsOf(item, row, (keys + kDimPad - 1) / kDimPad * kDimPad + span);
}

int64_t Attention::WeightsStride(int64_t keys) {
  // Sinks that are cut apart make a span more, and one that is not whole.
  return (keys + kDimPad - 1) / kDimPad * kDimPad + Spans(keys) + 1;
}

// From exp(score - the span's max) to softmax weights.
void Attention::FinishWeights(const Item& item, int row, float max, float factor) const {
  const SpanCut cut = {item.sequence->sinks};
  const int64_t end = item.sequence->start_position + 1;
  for (int64_t span = 0; span < cut.spans(end); ++span) {
    float* weights = WeightsOf(item, row, cut.first_key(span));
    const float scale = std::exp(*SpanMaxOf(item, row, span) - max) * factor;
    for (int k = 0; k < cut.keys(span, end); ++k) weights[k] *= scale;
  }
}

}  // namespace sluice
