#include "kernels/latent_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/attention_scratch.h"

namespace sluice {

namespace {

// Tokens whose queries are in the latents' space at once: enough to share a read of the weights, and V3's 128 heads of
// them stay below 40 MiB.
constexpr int64_t kAbsorbedTokens = 64;

AttentionShape AbsorbedShape(const LatentAttention::Options& o) {
  return {.heads = o.shape.heads,
          .kv_heads = 1,
          .key_dim = o.shape.cached(),
          .value_dim = o.shape.latent,
          .scale = o.scale};
}

int64_t AbsorbedTokens(const LatentAttention::Options& o) { return std::min(kAbsorbedTokens, o.tokens_max); }

size_t AbsorbedBytes(const LatentAttention::Options& o) {
  return static_cast<size_t>(AbsorbedTokens(o) * o.shape.heads * (2 * o.shape.cached() + o.shape.latent)) *
         sizeof(float);
}

}  // namespace

// What one head of one sequence needs: a span's latents, keys and values, its rows' running softmax, and one block of
// rows over the span. Cut from a run of bytes; Layout(null) computes the size.
struct LatentAttention::HeadScratch {
  float *latents, *keys, *values, *acc, *max, *sum;
  float *q, *span_acc, *span_max, *span_sum, *scores, *k_tile, *v_tile;
  int32_t* visible;
  const void** k_rows;
  const void** v_rows;
  size_t bytes;

  static HeadScratch Layout(const Options& o, std::byte* base) {
    HeadScratch s;
    size_t used = 0;
    const auto take = [&](auto*& p, int64_t count) {
      p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(base + used);
      used += (static_cast<size_t>(count) * sizeof(*p) + 63) / 64 * 64;
    };
    const int key_stride = Padded(o.shape.key_dim());
    const int value_stride = Padded(o.shape.value_dim);
    take(s.latents, kSpanKeys * o.shape.cached());
    take(s.keys, kSpanKeys * o.shape.key_dim());
    take(s.values, kSpanKeys * o.shape.value_dim);
    take(s.acc, o.tokens_max * value_stride);
    for (float** p : {&s.max, &s.sum}) take(*p, o.tokens_max);
    take(s.q, kBlockRows * key_stride);
    take(s.span_acc, kBlockRows * value_stride);
    for (float** p : {&s.span_max, &s.span_sum}) take(*p, kBlockRows);
    take(s.scores, kBlockRows * kSpanKeys);
    take(s.k_tile, kKeyTile * key_stride);
    take(s.v_tile, kValueTile * value_stride);
    take(s.visible, kBlockRows);
    take(s.k_rows, kSpanKeys);
    take(s.v_rows, kSpanKeys);
    s.bytes = used;
    return s;
  }
};

// One head of one sequence.
struct LatentAttention::Expansion {
  const PagedKv* kv;
  const LatentWeights* weights;
  const AttentionSequence* sequence;
  const Rows* rows;
  int head;
};

size_t LatentAttention::Bytes(const Options& o) {
  return HeadScratch::Layout(o, nullptr).bytes * static_cast<size_t>(o.threads) + AbsorbedBytes(o) +
         Attention::Bytes(AbsorbedShape(o), AbsorbedTokens(o), o.context_tokens_max, o.threads);
}

StatusOr<LatentAttention> LatentAttention::Create(const Options& o) {
  LatentAttention attention;
  attention.options_ = o;
  const size_t head_bytes = HeadScratch::Layout(o, nullptr).bytes * static_cast<size_t>(o.threads);
  SLUICE_ASSIGN_OR_RETURN(attention.heads_, Buffer::Create(head_bytes, /*touch=*/true));
  SLUICE_ASSIGN_OR_RETURN(attention.absorbed_, Buffer::Create(AbsorbedBytes(o), /*touch=*/true));
  SLUICE_ASSIGN_OR_RETURN(attention.attention_,
                          Attention::Create(AbsorbedShape(o), AbsorbedTokens(o), o.context_tokens_max, o.threads));
  attention.block_.reserve(static_cast<size_t>(AbsorbedTokens(o)));
  return attention;
}

void LatentAttention::RunExpanded(const PagedKv& kv, const LatentWeights& weights,
                                  absl::Span<const AttentionSequence> sequences, const Rows& rows, ThreadPool& pool) {
  SLUICE_CHECK(pool.threads() <= options_.threads, "threads ", pool.threads());
  const int64_t heads = options_.shape.heads;
  // A head's keys and values are computed once for all rows of the sequence, so a head is the smallest share.
  pool.ParallelFor(static_cast<int64_t>(sequences.size()) * heads, [&](int64_t item, int thread) {
    const AttentionSequence& sequence = sequences[static_cast<size_t>(item / heads)];
    SLUICE_CHECK(sequence.tokens <= options_.tokens_max, "tokens ", sequence.tokens);
    RunHead({&kv, &weights, &sequence, &rows, static_cast<int>(item % heads)}, thread);
  });
}

void LatentAttention::RunHead(const Expansion& e, int thread) {
  const size_t bytes = HeadScratch::Layout(options_, nullptr).bytes;
  const HeadScratch s = HeadScratch::Layout(options_, heads_.data() + bytes * static_cast<size_t>(thread));
  const AttentionSequence& sequence = *e.sequence;
  const int value_stride = Padded(options_.shape.value_dim);
  std::fill(s.max, s.max + sequence.tokens, -std::numeric_limits<float>::infinity());
  std::fill(s.sum, s.sum + sequence.tokens, 0.0f);
  std::fill(s.acc, s.acc + sequence.tokens * value_stride, 0.0f);
  const int64_t end = sequence.start_position + sequence.tokens;
  for (int64_t first_key = 0; first_key < end; first_key += kSpanKeys) {
    const auto keys = static_cast<int>(std::min<int64_t>(kSpanKeys, end - first_key));
    ReadSpan(e, first_key, keys, s);
    ExpandKeys(e, keys, s);
    ExpandValues(e, keys, s);
    AttendSpan(e, first_key, keys, s);
  }
  for (int64_t r = 0; r < sequence.tokens; ++r) {
    const float* acc = s.acc + r * value_stride;
    const float scale = 1.0f / s.sum[r];
    float* out = e.rows->out + (sequence.token + r) * e.rows->out_stride + e.head * options_.shape.value_dim;
    for (int c = 0; c < options_.shape.value_dim; ++c) out[c] = acc[c] * scale;
    if (sequence.softmax == nullptr) continue;
    sequence.softmax[r * options_.shape.heads + e.head] = {.max = s.max[r], .factor = scale};
  }
}

// The latents at positions [first_key, first_key + keys), and the rotated part of every head's keys.
void LatentAttention::ReadSpan(const Expansion& e, int64_t first_key, int keys, const HeadScratch& s) const {
  const LatentShape& shape = options_.shape;
  const PagedKv& kv = *e.kv;
  for (int k = 0; k < keys; ++k) {
    const int64_t position = first_key + k;
    const auto page = static_cast<size_t>(e.sequence->pages[position / kv.page_tokens]);
    const auto slot = static_cast<size_t>(position % kv.page_tokens);
    float* latent = s.latents + k * shape.cached();
    const std::byte* codes = kv.k.codes + page * kv.page_stride_bytes + slot * kv.k.code_bytes;
    Info(kv.codec).decode({.channels = shape.latent, .rope = shape.rope_dim}, codes, nullptr, 1, latent,
                          shape.cached());
    std::memcpy(s.keys + k * shape.key_dim() + shape.nope_dim, latent + shape.latent,
                static_cast<size_t>(shape.rope_dim) * sizeof(float));
    s.k_rows[k] = s.keys + k * shape.key_dim();
    s.v_rows[k] = s.values + k * shape.value_dim;
  }
}

void LatentAttention::ExpandKeys(const Expansion& e, int keys, const HeadScratch& s) const {
  const LatentShape& shape = options_.shape;
  MatmulOnThread(e.weights->key[static_cast<size_t>(e.head)], s.latents, shape.cached(), keys, s.keys, shape.key_dim());
}

void LatentAttention::ExpandValues(const Expansion& e, int keys, const HeadScratch& s) const {
  const LatentShape& shape = options_.shape;
  MatmulOnThread(e.weights->value[static_cast<size_t>(e.head)], s.latents, shape.cached(), keys, s.values,
                 shape.value_dim);
}

// The head's queries of `rows` tokens, over the span's expanded keys.
AttentionSpan LatentAttention::LoadRows(const Expansion& e, int64_t first_token, int rows, int64_t first_key, int keys,
                                        const HeadScratch& s) const {
  const AttentionSequence& sequence = *e.sequence;
  const int key_dim = options_.shape.key_dim();
  const int key_stride = Padded(key_dim);
  for (int r = 0; r < rows; ++r) {
    const float* q = e.rows->q + (sequence.token + first_token + r) * e.rows->q_stride + e.head * key_dim;
    for (int c = 0; c < key_stride; ++c) s.q[r * key_stride + c] = c < key_dim ? q[c] * options_.scale : 0.0f;
    s.visible[r] =
        static_cast<int32_t>(std::min<int64_t>(sequence.start_position + first_token + r + 1 - first_key, keys));
  }
  AttentionSpan span = {};
  span.q = s.q;
  span.visible = s.visible;
  span.rows = rows;
  span.keys = keys;
  span.key_dim = key_dim;
  span.key_stride = key_stride;
  span.value_dim = options_.shape.value_dim;
  span.value_stride = Padded(options_.shape.value_dim);
  span.codec = KvCodec::kF32;
  span.k_rows = s.k_rows;
  span.v_rows = s.v_rows;
  span.k_tile = s.k_tile;
  span.v_tile = s.v_tile;
  span.scores = s.scores;
  span.max = s.span_max;
  span.sum = s.span_sum;
  span.out = s.span_acc;
  return span;
}

// All rows that see anything of the span.
void LatentAttention::AttendSpan(const Expansion& e, int64_t first_key, int keys, const HeadScratch& s) const {
  const SimdKernels& kernels = ActiveKernels();
  const AttentionSequence& sequence = *e.sequence;
  const int value_stride = Padded(options_.shape.value_dim);
  const int64_t first_row = std::max<int64_t>(0, first_key - sequence.start_position);
  for (int64_t begin = first_row; begin < sequence.tokens; begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<int64_t>(kBlockRows, sequence.tokens - begin));
    const AttentionSpan span = LoadRows(e, begin, rows, first_key, keys, s);
    kernels.weigh_keys(span);
    kernels.sum_values(span);
    for (int r = 0; r < rows; ++r) {
      const int64_t row = begin + r;
      kernels.merge_span({s.max + row, s.sum + row, s.acc + row * value_stride, s.span_max[r], s.span_sum[r],
                          s.span_acc + r * value_stride, value_stride});
    }
  }
}

void LatentAttention::RunAbsorbed(const PagedKv& kv, const LatentWeights& weights,
                                  absl::Span<const AttentionSequence> sequences, const Rows& rows, ThreadPool& pool) {
  // Blocks of rows that follow each other in the batch; a sequence's may be cut.
  int64_t first_row = 0;
  int64_t tokens = 0;
  block_.clear();
  const auto run = [&] {
    if (tokens > 0) RunAbsorbedBlock(kv, weights, first_row, tokens, rows, pool);
    block_.clear();
    tokens = 0;
  };
  for (const AttentionSequence& s : sequences) {
    for (int64_t done = 0; done < s.tokens;) {
      if (tokens == AbsorbedTokens(options_) || (tokens > 0 && first_row + tokens != s.token + done)) run();
      if (tokens == 0) first_row = s.token + done;
      const int64_t n = std::min(s.tokens - done, AbsorbedTokens(options_) - tokens);
      AttentionSequence part = s;
      part.token = tokens;
      part.tokens = n;
      part.start_position = s.start_position + done;
      block_.push_back(part);
      tokens += n;
      done += n;
    }
  }
  run();
}

void LatentAttention::RunAbsorbedBlock(const PagedKv& kv, const LatentWeights& weights, int64_t first_row,
                                       int64_t tokens, const Rows& rows, ThreadPool& pool) {
  const LatentShape& shape = options_.shape;
  const int64_t query_stride = int64_t{shape.heads} * shape.cached();
  const int64_t result_stride = int64_t{shape.heads} * shape.latent;
  float* queries = absorbed_.as<float>();
  float* sink_queries = queries + AbsorbedTokens(options_) * query_stride;
  float* results = sink_queries + AbsorbedTokens(options_) * query_stride;
  pool.ParallelFor(shape.heads, [&](int64_t h, int) {
    const float* q = rows.q + first_row * rows.q_stride + h * shape.key_dim();
    float* query = queries + h * shape.cached();
    MatmulOnThread(weights.key_across[static_cast<size_t>(h)], q, rows.q_stride, tokens, query, query_stride);
    for (int64_t t = 0; t < tokens; ++t) {
      std::memcpy(query + t * query_stride + shape.latent, q + t * rows.q_stride + shape.nope_dim,
                  static_cast<size_t>(shape.rope_dim) * sizeof(float));
    }
  });
  for (AttentionSequence& s : block_) {
    if (s.sinks == 0) continue;
    float* query = sink_queries + s.token * query_stride;
    std::copy_n(queries + s.token * query_stride, query_stride, query);
    for (int h = 0; h < shape.heads; ++h) {
      std::copy_n(s.sink_q + h * shape.rope_dim, shape.rope_dim, query + h * shape.cached() + shape.latent);
    }
    s.sink_q = query;
  }
  PagedKv values_within = kv;
  values_within.v = kv.k;
  attention_.Run(values_within, block_, queries, query_stride, results, result_stride, pool);
  pool.ParallelFor(shape.heads, [&](int64_t h, int) {
    MatmulOnThread(weights.value[static_cast<size_t>(h)], results + h * shape.latent, result_stride, tokens,
                   rows.out + first_row * rows.out_stride + h * shape.value_dim, rows.out_stride);
  });
}

void LatentAttention::AddColumns(const PagedKv& kv, const LatentWeights& weights, const AttentionSequence& sequence,
                                 int64_t first_token, const Rows& rows, float* columns, ThreadPool& pool) {
  SLUICE_CHECK(pool.threads() <= options_.threads, "threads ", pool.threads());
  const int heads = options_.shape.heads;
  const float share = 1.0f / static_cast<float>(heads);
  const int64_t end = sequence.start_position + sequence.tokens;
  // A share is a span for all heads and rows: see Attention::AddColumns.
  pool.ParallelFor(Spans(end), [&](int64_t span, int thread) {
    const size_t bytes = HeadScratch::Layout(options_, nullptr).bytes;
    const HeadScratch s = HeadScratch::Layout(options_, heads_.data() + bytes * static_cast<size_t>(thread));
    const int64_t first_key = span * kSpanKeys;
    const auto keys = static_cast<int>(std::min<int64_t>(kSpanKeys, end - first_key));
    Expansion e = {&kv, &weights, &sequence, &rows, 0};
    ReadSpan(e, first_key, keys, s);
    for (e.head = 0; e.head < heads; ++e.head) {
      ExpandKeys(e, keys, s);
      int64_t begin = std::max(first_token, first_key - sequence.start_position);
      for (; begin < sequence.tokens; begin += kBlockRows) {
        const auto n = static_cast<int>(std::min<int64_t>(kBlockRows, sequence.tokens - begin));
        const AttentionSpan one = LoadRows(e, begin, n, first_key, keys, s);
        for (int r = 0; r < n; ++r) {
          const SoftmaxOfRow& softmax = sequence.softmax[(begin + r) * heads + e.head];
          s.span_max[r] = softmax.max;
          s.span_sum[r] = softmax.factor * share;
        }
        ActiveKernels().sum_columns(
            {.span = &one, .max = s.span_max, .factors = s.span_sum, .columns = columns + first_key});
      }
    }
  });
}

}  // namespace sluice
