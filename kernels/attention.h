// Causal softmax attention of a batch of sequences over one layer of a paged KV cache. Prefill and decode are the same
// function over rows: a row is one query head of one token.
//
// Goals: a row's bits depend on its own query, its position and the keys and values it sees, and on nothing else in the
// batch; a key that a row does not see is never read for it. So the keys are cut into spans at fixed positions
// (multiples of kSpanKeys), each row sums each span on its own, and spans are merged in ascending order; only which
// thread does a span changes with the batch. The rejected choice is to cut the keys by the number of threads, which is
// simpler and makes the same prompt differ from machine to machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "kernels/codec/codec.h"
#include "kernels/simd_kernels.h"

namespace sluice {

// Rows of page 0, [page_tokens, kv_heads]: their codes and, where the codec has such a plane, their scales.
struct KvRows {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  size_t code_bytes = 0;   // from a row to the next
  size_t scale_bytes = 0;  // likewise
};

// Where one layer of a paged cache lies. K and V may be the same rows: in MLA a value is the first part of its key.
struct PagedKv {
  KvRows k;
  KvRows v;
  size_t page_stride_bytes = 0;  // from a page to the next
  int page_tokens = 0;
  KvCodec codec = KvCodec::kBf16;  // mla-fp8 where a value is its key's latent
};

struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;   // divides heads; query head h reads kv head h / (heads / kv_heads)
  int key_dim = 0;    // even
  int value_dim = 0;  // even
  float scale = 0;    // of q k^T
};

// The weight of a key is exp(score - max) factor.
struct SoftmaxOfRow {
  float max = 0;
  float factor = 0;
};

// Tokens [token, token + tokens) of the batch: one sequence's at positions start_position and on. Positions are those
// of keys in the pages; where a cache policy keeps some keys only, they are its slots, and rope's positions others.
// REQUIRES: K and V of all positions before start_position + tokens are in `pages`.
struct AttentionSequence {
  int64_t token = 0;
  int64_t tokens = 0;
  int64_t start_position = 0;
  const int32_t* pages = nullptr;

  // Where sinks > 0, which wants a single token, the first `sinks` keys meet another query of it: sink_q, [heads,
  // key_dim]. One softmax goes over all keys.
  int64_t sinks = 0;
  const float* sink_q = nullptr;
  // Where set, which wants a single token too: gets its softmax weights, [heads, weights_stride] with a value for each
  // key; what is behind them is scratch. See Attention::WeightsStride.
  float* weights = nullptr;
  int64_t weights_stride = 0;
  // Where set: gets what the weights of each row can be computed from again, [tokens, heads].
  SoftmaxOfRow* softmax = nullptr;
};

// Owns its scratch memory, taken by Create. Driven by one thread.
class Attention {
 public:
  // `tokens_max` bounds the tokens of one Run, `context_tokens_max` the positions.
  static StatusOr<Attention> Create(const AttentionShape& shape, int64_t tokens_max, int64_t context_tokens_max,
                                    int threads);
  static size_t Bytes(const AttentionShape& shape, int64_t tokens_max, int64_t context_tokens_max, int threads);

  // out[t][h] = sum_k softmax_k(scale q[t][h] . K[k][h / group]) V[k][h / group] over the keys k up to t's position.
  // q is [tokens, heads, key_dim] and out [tokens, heads, value_dim], tokens `q_stride` and `out_stride` floats apart;
  // they must not overlap.
  void Run(const PagedKv& kv, absl::Span<const AttentionSequence> sequences, const float* q, int64_t q_stride,
           float* out, int64_t out_stride, ThreadPool& pool);

  // A stride that is enough for the weights of `keys` keys.
  static int64_t WeightsStride(int64_t keys);

  // Adds to columns[l][k] what list l's query heads, rows of tokens [first_token, tokens) of `sequence`, gave to key k:
  // the sum of the mean over these heads. There are `lists` lists of as many kv heads each. The rows' softmax is what
  // Run has told; this is a second pass over K. `columns` is [lists, columns_stride], a multiple of kDimPad.
  void AddColumns(const PagedKv& kv, const AttentionSequence& sequence, int64_t first_token, const float* q,
                  int64_t q_stride, int lists, float* columns, int64_t columns_stride, ThreadPool& pool);

 private:
  struct Item;
  struct Work;
  struct Scratch;
  int64_t ShareOut(const PagedKv& kv, absl::Span<const AttentionSequence> sequences, int threads, Item* items) const;
  int32_t HeadsTogether(int64_t heads_max) const;
  void LoadQueries(const KvCodecInfo& codec, const float* from, int64_t stride, int tokens, int head, float* q) const;
  void LoadItemQueries(const Work& work, const Item& item, bool sinks, float* q) const;
  template <typename F>
  void ForRuns(const PagedKv& kv, const AttentionSequence& sequence, int64_t first_key, int keys, const F& found) const;
  void FindKeys(const PagedKv& kv, const AttentionSequence& sequence, int64_t first_key, int keys,
                const Scratch& s) const;
  PrefetchQueue QueueRows(const PagedKv& kv, bool of_k, bool of_v, const Item& item, int64_t first_key, int keys,
                          PrefetchRange* ranges) const;
  static int Lines(const PrefetchQueue& queue);
  void RunItem(const Work& work, const Item& item, int thread);
  void KeepSpan(const Work& work, const Item& item, int first_row, int rows, int span, const Scratch& s);
  AttentionSpan SpanOf(const PagedKv& kv, int head, int rows, int keys, const Scratch& s) const;
  void AddBlock(const PagedKv& kv, const AttentionSequence& sequence, int64_t token, int tokens, const float* q,
                int64_t q_stride, int head, int64_t first_key, int keys, int list_heads, const Scratch& s,
                float* columns) const;
  void MergePartials(const Work& work, const Item& item, int thread);
  void WriteRows(const Work& work, const Item& item, const Scratch& s) const;
  float* WeightsOf(const Item& item, int row, int64_t key) const;
  float* SpanMaxOf(const Item& item, int row, int64_t span) const;
  void FinishWeights(const Item& item, int row, float max, float factor) const;

  AttentionShape shape_;
  int64_t tokens_max_ = 0;
  int64_t context_tokens_max_ = 0;
  int threads_ = 0;
  Buffer items_;     // [items_max] Item
  Buffer scratch_;   // [threads] one block's worth
  Buffer partials_;  // one span of one row each: max, sum, [value_stride]
};

}  // namespace sluice
