// One pass of a batch through all layers: the scratch memory of a step and the order of its products. Prefill and
// decode are the same code over rows, one row a token. Internal to the transformer, which has checked the batch.
#pragma once

#include <vector>

#include "kernels/attention.h"
#include "kernels/matmul.h"
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

 private:
  // A row of the batch: which token, where in its sequence, and where its K and V go.
  struct Row {
    TokenId token;
    int64_t position;
    PageIndex page;
    int32_t slot;  // of the page
  };

  ForwardPass(const ModelConfig& config, const TransformerWeights* weights, ThreadPool* pool);

  void LayOut(const Batch& batch, int page_tokens);
  void Embed();
  void ProjectAndStore(int layer, KvPool& kv);
  void KeepLogitRows(const Batch& batch);
  void Attend(int layer, KvPool& kv);
  void Mlp(const LayerWeights& w);

  void NormAndRound(const float* weight, bool round);
  void RoundRows(const float* rows, int64_t cols, int64_t stride, bool round);
  template <typename F>
  void ForRows(const F& body);  // body(row) for every row, on the pool where that pays

  const ModelConfig config_;
  const TransformerWeights* weights_;
  ThreadPool* pool_;
  const RopeFrequencies rope_;
  const int64_t qkv_stride_;
  const int64_t attended_stride_;

  // Step state: rows of floats by row of the batch.
  Buffer scratch_;
  float* residual_ = nullptr;  // [rows, hidden]
  float* normed_ = nullptr;    // [rows, hidden]
  float* qkv_ = nullptr;       // [rows, (heads + 2 kv_heads) head_dim]
  float* attended_ = nullptr;  // [rows, heads head_dim]
  float* gate_up_ = nullptr;   // [rows, 2 intermediate]
  float* cos_ = nullptr;       // [rows, head_dim]
  float* sin_ = nullptr;       // [rows, head_dim]
  float* logits_ = nullptr;    // [logit rows, vocab]
  Activations activations_;
  Attention attention_;
  std::vector<Row> rows_;
  std::vector<AttentionSequence> sequences_;
  int64_t row_count_ = 0;  // rows_ still computed: all of them, then those with logits
};

}  // namespace sluice
