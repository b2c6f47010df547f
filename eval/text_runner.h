// Runs texts through a model under cache policies and codecs, and says how well it predicted them. Many run in
// lockstep, so that a step reads the weights once for all of them: what is bounded takes one token a step, and alone it
// would be as slow as one user's decoding.
//
// Driven by one thread, which owns the transformer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "common/cache_policy.h"
#include "common/ids.h"
#include "common/status.h"
#include "model/transformer.h"

namespace sluice {

// A text under one policy and codec.
struct TextRun {
  absl::Span<const TokenId> ids;
  CachePolicy policy;
  KvCodec codec = KvCodec::kF32;
  // So many tokens are computed densely and pruned once; the others go through the cache one by one, as in decode. 0:
  // all of them do.
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;  // so many of the likeliest tokens go on behind the text
  // Neighbours of one number share the computation of a common prompt, and can be compared.
  int64_t group = 0;
  // The run of the group, by its index, whose predictions these are compared with; -1 for none.
  int compared_with = -1;
};

struct TextOutcome {
  CachePolicy policy;
  std::vector<float> nlls;                // -log p, in nats, of each token behind one that went through the cache:
                                          // nlls[i] is of ids[prompt_tokens + 1 + i]
  std::vector<bool> hits;                 // whether that token was the likeliest
  std::vector<TokenId> generated_tokens;  // each the likeliest after what came before
  int64_t compared = 0;                   // predictions
  double kld = 0;                         // the sum over them of the KL divergence from the other run's
  int64_t same_top = 0;                   // and how many had the same likeliest token
};

struct TextRunnerOptions {
  size_t kv_bytes_max = size_t{2} << 30;  // of KV at a time
  // Tells how many tokens of how many have been run, after every step. May be empty.
  std::function<void(int64_t done, int64_t all)> on_progress;
};

class TextRunner {
 public:
  // Of a transformer that a TextRunner drives: how many texts and ranked slots a step may have is bounded by them.
  static TransformerOptions Transformers(int threads, bool exact);

  // The transformer outlives it.
  TextRunner(Transformer* transformer, TextRunnerOptions options)
      : transformer_(transformer), options_(std::move(options)) {}

  const ModelConfig& config() const { return transformer_->config(); }

  // Outcomes in the order of `runs`. InvalidArgument for what the model cannot do (a text beyond its context under a
  // policy that has no positions of its own); ResourceExhausted where a group needs more than the options allow.
  // REQUIRES: runs that others are compared with come before them and all have one codec.
  StatusOr<std::vector<TextOutcome>> Run(absl::Span<const TextRun> runs);

 private:
  // The end of the groups from `begin` on that fit into memory and a batch.
  StatusOr<size_t> WaveEnd(absl::Span<const TextRun> runs, size_t begin) const;

  Transformer* transformer_;
  TextRunnerOptions options_;
};

}  // namespace sluice
