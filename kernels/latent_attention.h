// Multi-head latent attention (DeepSeek-V2 report, section 2.1) over one layer of a paged cache, whose rows are a
// latent and behind it the rotated key that all heads share. Two ways to the same result:
//
//   expanded  each head's keys and values are computed from the latents, span by span, and attended to as usual
//   absorbed  each head's query is brought into the latents' space, where all heads attend to the cached rows as they
//             are (one kv head whose value is the first part of its key), and its result is brought back
//
// Absorbing takes 3.4 times the arithmetic for each query and key, but expanding has to be done for each key whether
// one query or many come with it: at V2-Lite's shape, absorbing is cheaper below some 170 queries. They round
// differently; the caller decides which rows take which way, by what the rows are and not by what they come with.
//
// Goals: a row's bits depend on its own query, its position and the rows it sees (see attention.h: spans at fixed
// positions, merged in ascending order); memory does not grow with the length of the context.
#pragma once

#include "kernels/attention.h"
#include "kernels/latent_weights.h"

namespace sluice {

// Owns its scratch memory, taken by Create. Driven by one thread.
class LatentAttention {
 public:
  struct Options {
    LatentShape shape;
    float scale = 0;         // of q k^T
    int64_t tokens_max = 0;  // of one call
    int64_t context_tokens_max = 0;
    int threads = 1;
  };
  static StatusOr<LatentAttention> Create(const Options& options);
  static size_t Bytes(const Options& options);

  // Tokens of the batch by row: queries [tokens, heads, key_dim], of which the last rope_dim channels are rotated, and
  // results [tokens, heads, value_dim]; strides in floats.
  struct Rows {
    const float* q = nullptr;
    int64_t q_stride = 0;
    float* out = nullptr;
    int64_t out_stride = 0;
  };
  // `kv.k` are rows of `latent + rope_dim` channels; `kv.v` is not read.
  void RunExpanded(const PagedKv& kv, const LatentWeights& weights, absl::Span<const AttentionSequence> sequences,
                   const Rows& rows, ThreadPool& pool);
  // A sequence's sink_q is [heads, rope_dim] here: the rest of a query does not depend on where it is. Its weights are
  // RunAbsorbed's only.
  void RunAbsorbed(const PagedKv& kv, const LatentWeights& weights, absl::Span<const AttentionSequence> sequences,
                   const Rows& rows, ThreadPool& pool);

  // Attention::AddColumns for rows that RunExpanded has computed; one list. Keys are expanded once more.
  void AddColumns(const PagedKv& kv, const LatentWeights& weights, const AttentionSequence& sequence,
                  int64_t first_token, const Rows& rows, float* columns, ThreadPool& pool);

 private:
  struct HeadScratch;
  struct Expansion;
  void ReadSpan(const Expansion& e, int64_t first_key, int keys, const HeadScratch& s) const;
  void ExpandKeys(const Expansion& e, int keys, const HeadScratch& s) const;
  void ExpandValues(const Expansion& e, int keys, const HeadScratch& s) const;
  AttentionSpan LoadRows(const Expansion& e, int64_t first_token, int rows, int64_t first_key, int keys,
                         const HeadScratch& s) const;
  void AttendSpan(const Expansion& e, int64_t first_key, int keys, const HeadScratch& s) const;
  void RunHead(const Expansion& e, int thread);
  void RunAbsorbedBlock(const PagedKv& kv, const LatentWeights& weights, int64_t first_row, int64_t tokens,
                        const Rows& rows, ThreadPool& pool);

  Options options_;
  Buffer heads_;  // [threads] HeadScratch
  // [kAbsorbedTokens, heads]: queries of cached() channels, those for sinks, then results of `latent` channels.
  Buffer absorbed_;
  Attention attention_;
  std::vector<AttentionSequence> block_;
};

}  // namespace sluice
