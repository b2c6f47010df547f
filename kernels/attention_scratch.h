// How Attention cuts its work and its memory. Internal to attention.cc and attention_columns.cc;
// the sizes also to latent_attention.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/attention.h"

namespace sluice {

// A block is the rows that share one pass over the keys: enough that widening and transposing a tile costs little
// beside its products, few enough that their scores and sums stay in a second-level cache.
inline constexpr int kBlockRows = 96;
// Room for partial results: this many single tokens, each at the longest context, can have their spans spread over the
// threads at once. More sequences than that keep the threads busy as they are.
inline constexpr int kSplitTokens = 4;
// So many items a thread, or one that is late makes the others wait.
inline constexpr int kItemsPerThread = 4;
// Heads go together while the keys and values of their span are no more than this: they are asked for while the span
// before is computed, and wait in a second-level cache. Rows of all heads have no gaps, which counts for more than that
// all of them stay there.
inline constexpr size_t kSpanBytes = size_t{1} << 20;
// While a span is read, no more than this is asked for of the next: an older line is given up for each that comes, and
// those of a span that was read just now are the youngest. Measured with 1 MiB a core.
inline constexpr size_t kAheadBytes = size_t{384} << 10;

inline int Group(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
inline int BlockTokens(const AttentionShape& shape) { return std::max(1, kBlockRows / Group(shape)); }
inline int BlockRows(const AttentionShape& shape) { return BlockTokens(shape) * Group(shape); }
inline int Padded(int dim) { return (dim + kDimPad - 1) / kDimPad * kDimPad; }
inline int KeyStride(const AttentionShape& shape) { return Padded(shape.key_dim); }
inline int ValueStride(const AttentionShape& shape) { return Padded(shape.value_dim); }
inline int64_t Spans(int64_t keys) { return (keys + kSpanKeys - 1) / kSpanKeys; }

// How the keys of a sequence are cut: spans of kSpanKeys from position 0 on, but where sinks meet another query they
// are cut apart from the others.
struct SpanCut {
  int64_t sinks = 0;

  int64_t spans(int64_t keys) const { return Spans(std::min(sinks, keys)) + Spans(std::max<int64_t>(0, keys - sinks)); }
  bool of_sinks(int64_t span) const { return span < Spans(sinks); }
  int64_t first_key(int64_t span) const {
    return of_sinks(span) ? span * kSpanKeys : sinks + (span - Spans(sinks)) * kSpanKeys;
  }
  // Keys of a span of `end` keys.
  int keys(int64_t span, int64_t end) const {
    return static_cast<int>(
        std::min<int64_t>(kSpanKeys, (of_sinks(span) ? std::min(sinks, end) : end) - first_key(span)));
  }
};

// Max, sum, padding, values.
inline int64_t PartialFloats(const AttentionShape& shape) { return ValueStride(shape) + kDimPad; }

inline int64_t PartialsMax(const AttentionShape& shape, int64_t context_tokens_max) {
  return kSplitTokens * shape.heads * Spans(context_tokens_max);
}

inline int64_t ItemsMax(const AttentionShape& shape, int64_t tokens_max, int64_t context_tokens_max) {
  return tokens_max * shape.kv_heads + PartialsMax(shape, context_tokens_max) / Group(shape);
}

// Of a kv head's keys and values of a span.
inline size_t HeadBytes(const PagedKv& kv) {
  return kSpanKeys * (kv.k.code_bytes + kv.k.scale_bytes + kv.v.code_bytes + kv.v.scale_bytes);
}

inline KvRowShape KeyRow(const AttentionShape& shape, KvCodec codec) {
  if (codec != KvCodec::kMlaFp8) return {.channels = shape.key_dim};
  return {.channels = shape.value_dim, .rope = shape.key_dim - shape.value_dim};
}

// One thread's scratch, cut from a run of bytes; Layout(null) computes the size.
struct Attention::Scratch {
  float *q, *acc, *span_acc, *scores, *k_tile, *v_tile, *row_scales, *max, *sum, *span_max, *span_sum, *q_scales;
  int32_t *visible, *q_codes, *q_offsets;
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
    take(s.q_codes, rows * key_dims / 2);
    take(s.q_offsets, rows * ((key_dims + kInt4Group - 1) / kInt4Group));
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

}  // namespace sluice
