// How much attention each key got: the second pass over K of prompts under a policy that ranks by it.
#include "kernels/attention_scratch.h"

namespace sluice {

void Attention::AddColumns(const PagedKv& kv, const AttentionSequence& sequence, int64_t first_token, const float* q,
                           int64_t q_stride, int lists, float* columns, int64_t columns_stride, ThreadPool& pool) {
  SLUICE_CHECK(pool.threads() <= threads_, "threads ", pool.threads());
  const int64_t end = sequence.start_position + sequence.tokens;
  const int list_heads = shape_.kv_heads / lists;
  // A share is one span for all rows, so each column is one thread's, and its sum has one order.
  pool.ParallelFor(Spans(end), [&](int64_t share, int thread) {
    const int64_t first_key = share * kSpanKeys;
    const auto keys = static_cast<int>(std::min<int64_t>(kSpanKeys, end - first_key));
    const Scratch s = Scratch::Layout(shape_, scratch_.data() + Scratch::Bytes(shape_) * static_cast<size_t>(thread));
    FindKeys(kv, sequence, first_key, keys, s);
    // Rows before see nothing of the span.
    int64_t token = std::max(first_token, first_key - sequence.start_position);
    for (; token < sequence.tokens; token += BlockTokens(shape_)) {
      const auto tokens = static_cast<int>(std::min<int64_t>(BlockTokens(shape_), sequence.tokens - token));
      for (int head = 0; head < shape_.kv_heads; ++head) {
        float* of_list = columns + head / list_heads * columns_stride + first_key;
        AddBlock(kv, sequence, token, tokens, q, q_stride, head, first_key, keys, list_heads, s, of_list);
      }
    }
  });
}

// The rows of a kv head and of `tokens` tokens, over one span.
void Attention::AddBlock(const PagedKv& kv, const AttentionSequence& sequence, int64_t token, int tokens,
                         const float* q, int64_t q_stride, int head, int64_t first_key, int keys, int list_heads,
                         const Scratch& s, float* columns) const {
  const int group = Group(shape_);
  const float share = 1.0f / static_cast<float>(list_heads * group);
  LoadQueries(Info(kv.codec), q + (sequence.token + token) * q_stride, q_stride, tokens, head, s.q);
  for (int r = 0; r < tokens * group; ++r) {
    const int64_t position = sequence.start_position + token + r / group;
    s.visible[r] = static_cast<int32_t>(std::min<int64_t>(keys, position + 1 - first_key));
    const SoftmaxOfRow& softmax = sequence.softmax[(token + r / group) * shape_.heads + head * group + r % group];
    s.max[r] = softmax.max;
    s.sum[r] = softmax.factor * share;
  }
  const AttentionSpan span = SpanOf(kv, head, tokens * group, keys, s);
  ActiveKernels().sum_columns({.span = &span, .max = s.max, .factors = s.sum, .columns = columns});
}

}  // namespace sluice
