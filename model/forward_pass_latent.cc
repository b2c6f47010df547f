// The attention of layers with latents: what differs from grouped-query attention in a pass.
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "model/forward_pass.h"
#include "model/row_parallel.h"

namespace sluice {

namespace {

// Whatever the model's own norms add: DeepseekV2RMSNorm of transformers is made with its default here.
constexpr float kLatentNormEps = 1e-6f;

}  // namespace

// Queries of every row, and its latent and shared key, which go to their slot.
void ForwardPass::ProjectAndStoreLatent(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const MlaConfig& mla = *config_.mla;
  float* latent = qkv_ + int64_t{config_.heads} * config_.head_dim;
  float* query_down = latent + mla.latent + mla.rope_dim;
  const bool two_products = mla.query_rank > 0;
  const PackedMatrix& first = two_products ? w.query_down : w.query;
  NormAndRound(w.attention_norm, first.rounds_activations() || w.latent_down.rounds_activations());
  MatmulGroup({{&first, two_products ? query_down : qkv_, qkv_stride_}, {&w.latent_down, latent, qkv_stride_}},
              activations_, *pool_);
  if (two_products) {
    activations_.Begin(query_down, row_count_, mla.query_rank, qkv_stride_);
    ForRows(row_count_, *pool_, [&](int64_t r) {
      float* row = query_down + r * qkv_stride_;
      RmsNormRow(row, w.query_down_norm, mla.query_rank, kLatentNormEps, row);
      if (w.query.rounds_activations()) activations_.RoundRow(r);
    });
    Matmul(w.query, activations_, qkv_, qkv_stride_, /*accumulate=*/false, *pool_);
  }

  ForRows(row_count_, *pool_, [&](int64_t r) {
    TurnToSinks(r);
    const float* cos = cos_ + r * mla.rope_dim;
    const float* sin = sin_ + r * mla.rope_dim;
    for (int64_t h = 0; h < config_.heads; ++h) {
      RopeHead(qkv_ + r * qkv_stride_ + h * config_.head_dim + mla.nope_dim, cos, sin, mla.rope_dim, interleaved_);
    }
    float* row = latent + r * qkv_stride_;
    RmsNormRow(row, w.latent_norm, mla.latent, kLatentNormEps, row);
    RopeHead(row + mla.latent, cos, sin, mla.rope_dim, interleaved_);
    Store(row, kv, layer, 0, rows_[static_cast<size_t>(r)]);
  });
}

// Tokens of a prompt expand, generated ones absorb: see SequenceChunk.
void ForwardPass::AttendLatent(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const PagedKv view = ViewOf(kv, layer);
  const LatentAttention::Rows rows = {qkv_, qkv_stride_, attended_, attended_stride_};
  latent_attention_.RunExpanded(view, w.latent_up, sequences_, rows, *pool_);
  latent_attention_.RunAbsorbed(view, w.latent_up, generated_, rows, *pool_);
  RoundRows(attended_, attended_stride_, attended_stride_, w.attention_output.rounds_activations());
  Matmul(w.attention_output, activations_, residual_, config_.hidden_size, /*accumulate=*/true, *pool_);
}

}  // namespace sluice
