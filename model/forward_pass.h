// One pass of a batch through all layers: the scratch memory of a step and the order of its products. Prefill and
// decode are the same code over rows, one row a token. Internal to the transformer, which has checked the batch.
#pragma once

#include <atomic>
#include <vector>

#include "kernels/attention.h"
#include "kernels/latent_attention.h"
#include "kernels/matmul.h"
#include "model/expert_layer.h"
#include "model/rope_frequencies.h"
#include "model/transformer.h"
#include "model/transformer_weights.h"

namespace sluice {

class ForwardPass {
 public:
  // `weights` and `pool` outlive it.
  static StatusOr<std::unique_ptr<ForwardPass>> Create(const ModelConfig& config, const TransformerOptions& options,
                                                       const TransformerWeights* weights, ThreadPool* pool);
  static size_t Bytes(const ModelConfig& config, const TransformerOptions& options);

  // REQUIRES: the batch is within the options' bounds and its pages hold it. Returns [logit rows, vocab].
  absl::Span<const float> Run(const Batch& batch, KvPool& kv, ForwardObserver* observer);

  KvCodecCounts kv_counts() const { return {nonfinite_rows_.load(), saturated_.load()}; }

 private:
  // A row of the batch: which token, where in its sequence, and where its K and V go.
  struct Row {
    TokenId token;
    int64_t position;
    PageIndex page;
    int32_t slot;  // of the page
    // Under a cache policy instead: the sequence, and which of its step's tokens.
    const SequenceChunk* chunk = nullptr;
    int32_t index = 0;
  };
  // The rows of one sequence.
  struct Part {
    const SequenceChunk* chunk;
    AttentionSequence rows;
  };

  ForwardPass(const ModelConfig& config, const TransformerWeights* weights, ThreadPool* pool);
  Status TakeMemory(const TransformerOptions& options);

  void LayOut(const Batch& batch, int page_tokens);
  void ListSequences();
  AttentionSequence AttentionOf(const Part& part, float** weights);
  bool RunLayers(const Batch& batch, KvPool& kv, ForwardObserver* observer);
  void Embed();
  void ProjectAndStore(int layer, KvPool& kv);
  static PagedKv ViewOf(const KvPool& kv, int layer);
  void Store(const float* x, KvPool& kv, int layer, int tensor, const Row& row);
  void StoreRows(const float* x, int rows, KvPool& kv, int layer, int tensor, PageIndex page, int first_row);
  template <typename F>
  void KeepRows(const F& rows_of);
  void Attend(int layer, KvPool& kv);

  // forward_pass_policy.cc
  void TurnToSinks(int64_t r);
  static int64_t RowsAttended(const Part& part);
  void RankStep(int layer);
  void ScorePrompts(int layer, KvPool& kv);
  void Mlp(int layer, ForwardObserver* observer);

  // forward_pass_latent.cc
  void ProjectAndStoreLatent(int layer, KvPool& kv);
  void AttendLatent(int layer, KvPool& kv);

  void NormAndRound(const float* weight, bool round);
  void RoundRows(const float* rows, int64_t cols, int64_t stride, bool round);

  const ModelConfig config_;
  const TransformerWeights* weights_;
  ThreadPool* pool_;
  const RopeFrequencies rope_;
  const bool interleaved_;
  const int64_t qkv_stride_;
  const int64_t attended_stride_;
  const int64_t mlp_max_;

  // Step state: rows of floats by row of the batch.
  Buffer scratch_;
  float* residual_ = nullptr;  // [rows, hidden]
  float* normed_ = nullptr;    // [rows, hidden]
  float* qkv_ = nullptr;     // [rows, qkv_stride]: queries, then K and V; or the latent, then the query's first product
  float* sink_q_ = nullptr;  // [rows, heads (rotary_dim of latent attention, else head_dim)]: queries for sinks
  float* attention_weights_ = nullptr;  // of the sequences whose steps are ranked: [heads, WeightsStride]
  float* attended_ = nullptr;           // [rows, heads value_dim]
  float* gate_up_ = nullptr;            // [rows, 2 mlp_max]
  float* cos_ = nullptr;                // [rows, rotary_dim]
  float* sin_ = nullptr;                // [rows, rotary_dim]
  float* sink_cos_ = nullptr;           // likewise, of queries that meet sinks
  float* sink_sin_ = nullptr;
  float* router_logits_ = nullptr;  // [rows, experts]
  float* logits_ = nullptr;         // [logit rows, vocab]
  Activations activations_;
  Attention attention_;               // GQA
  LatentAttention latent_attention_;  // MLA
  ExpertLayer experts_;
  std::vector<Row> rows_;
  std::vector<SoftmaxOfRow> softmax_;  // [rows, heads]: of prompts that are scored
  std::vector<Part> parts_;
  // Sequences whose step is ranked, and where attention leaves their weights of a layer.
  struct Ranked {
    KeptSlots* kept;
    AttentionSequence rows;
  };
  std::vector<Ranked> ranked_;
  std::vector<AttentionSequence> sequences_;  // of parts_; in MLA those that expand
  std::vector<AttentionSequence> generated_;  // in MLA those that absorb
  std::atomic<int64_t> nonfinite_rows_ = 0;   // of what was stored
  std::atomic<int64_t> saturated_ = 0;
  int64_t row_count_ = 0;  // rows_ still computed: all of them, then those with logits
};

}  // namespace sluice
