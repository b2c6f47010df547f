// The model itself on a CPU: one forward pass over an explicit batch. Prefill and decode are two shapes of the same
// batch: a sequence brings many tokens or one. Driven by one thread, which owns the pool of compute threads.
//
// Determinism: a sequence's KV and logits depend on its own tokens and positions, on which of them are a prompt's and
// which generated, the weights, the options and the instruction set only; not on chunking, on what else is in the
// batch, or on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "model/checkpoint/checkpoint.h"
#include "model/kept_slots.h"
#include "model/kv_pool.h"
#include "model/moe_gate.h"
#include "model/prompt_scores.h"

namespace sluice {

struct TransformerOptions {
  int threads = 1;             // compute threads, the caller included
  int batch_tokens_max = 512;  // tokens of one Forward; sizes the scratch memory
  int logit_rows_max = 64;     // rows of logits of one Forward
  // Tokens of one sequence, where pages hold fewer than the model's context: sizes the memory by which attention shares
  // out long sequences. 0: the context.
  int64_t sequence_tokens_max = 0;
  // KV slots of all sequences of one Forward whose steps a cache policy ranks by attention; sizes the scratch memory.
  int64_t ranked_slots_max = 0;
  bool exact = false;  // f32 products with dequantised weights
};

enum class LogitsFor : uint8_t { kNone, kLast, kAll };

// One sequence's share of a step: `tokens` at positions start_position.., whose KV goes into `pages`.
// REQUIRES: KV of all positions before start_position is in `pages`, which have room for all of this step's.
struct SequenceChunk {
  absl::Span<const TokenId> tokens;
  int64_t start_position = 0;
  absl::Span<const PageIndex> pages;
  LogitsFor logits = LogitsFor::kNone;
  // Tokens that the model drew, as against a prompt's. Latent attention absorbs for the former and expands for the
  // latter (see kernels/latent_attention.h), which round differently; other models compute both alike.
  bool generated = false;
  // Under a cache policy: KV goes to the slots it names, and it hears of the step; start_position is its position().
  // Latent attention absorbs then. Of a sequence whose prompt is computed densely: from the first step after it.
  KeptSlots* kept = nullptr;
  // A prompt under a policy that ranks: gets what its tokens' attention was, layer by layer.
  PromptScores* scores = nullptr;

  int64_t first_slot() const { return kept != nullptr ? kept->held() : start_position; }
};

// Rows of logits that `chunk` asks for.
int64_t LogitRows(const SequenceChunk& chunk);

struct Batch {
  std::vector<SequenceChunk> sequences;
  // Called on Forward's thread for each layer in turn, as soon as all of the batch's KV of that layer is in its pages
  // and while most of the layer and all later ones are still to be computed; so it must be quick. May be empty.
  std::function<void(int layer)> on_layer_stored;
  // Likewise when all of the batch's attention of that layer has been computed, and with it the prompts' scores.
  std::function<void(int layer)> on_layer_attended;
};

// For tests: receives the residual stream after each layer, [tokens of the batch, hidden], layer -1 being the embedding
// and layer `layers` the final norm of the rows that have logits; and which experts each token chose, [tokens,
// experts_per_token].
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  virtual void OnHidden(int layer, const float* hidden, int64_t rows) = 0;
  virtual void OnExperts(int /*layer*/, absl::Span<const ExpertWeight> /*chosen*/) {}
};

class Transformer {
 public:
  // Loads and repacks the weights; `checkpoint` must outlive it. Progress goes to the log.
  static StatusOr<std::unique_ptr<Transformer>> Create(const Checkpoint* checkpoint, const TransformerOptions& options);
  ~Transformer();

  // Runs the batch and returns the logits asked for, [rows, vocab], in the order of the batch; valid until the next
  // call. InvalidArgument where the batch breaks a bound of the options or of the model's context, naming both values.
  StatusOr<absl::Span<const float>> Forward(const Batch& batch, KvPool& kv, ForwardObserver* observer = nullptr);

  // What the store codec's encoder saw since Create: rows poisoned or not finite, and values cut. Any thread.
  KvCodecCounts kv_counts() const;

  const ModelConfig& config() const;
  const TransformerOptions& options() const;

  // What Create will take, before it is taken: see memory_plan.h.
  struct Memory {
    size_t weights_bytes = 0;  // repacked
    size_t mapped_bytes = 0;   // used in place from the checkpoint (embedding rows, norms)
    size_t scratch_bytes = 0;
  };
  static StatusOr<Memory> Plan(const Checkpoint& checkpoint, const TransformerOptions& options);

 private:
  struct Impl;
  explicit Transformer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
