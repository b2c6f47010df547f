// What a cache policy adds to a pass: queries that meet sinks, and who got how much attention.
#include <algorithm>

#include "kernels/rope.h"
#include "model/forward_pass.h"

namespace sluice {

// Before the row's queries are rotated: a second copy of them, rotated to where sinks expect them. In latent attention
// only the part that is rotated.
void ForwardPass::TurnToSinks(int64_t r) {
  const Row& row = rows_[static_cast<size_t>(r)];
  if (row.chunk == nullptr || row.chunk->kept->policy().kind != CachePolicyKind::kSinkWindow) return;
  const int rotary = config_.rotary_dim();
  const int dim = config_.mla ? rotary : config_.head_dim;
  for (int64_t h = 0; h < config_.heads; ++h) {
    const float* q = qkv_ + r * qkv_stride_ + h * config_.head_dim + (config_.mla ? config_.mla->nope_dim : 0);
    float* out = sink_q_ + (r * config_.heads + h) * dim;
    std::copy_n(q, dim, out);
    RopeHead(out, sink_cos_ + r * rotary, sink_sin_ + r * rotary, rotary, interleaved_);
  }
}

// Rows whose attention of the last layer somebody needs: those with logits, and those that tell how tokens rank.
int64_t ForwardPass::RowsAttended(const Part& part) {
  const SequenceChunk& chunk = *part.chunk;
  const auto tokens = static_cast<int64_t>(chunk.tokens.size());
  int64_t rows = LogitRows(chunk);
  if (chunk.kept != nullptr && chunk.kept->policy().ranks_steps()) rows = tokens;
  if (chunk.scores != nullptr) {
    rows = std::max(rows, std::clamp<int64_t>(chunk.start_position + tokens - chunk.scores->first_query(), 0, tokens));
  }
  return rows;
}

// A part as attention sees it. `*weights` is where its weights go, if its step is ranked, and moves behind them.
AttentionSequence ForwardPass::AttentionOf(const Part& part, float** weights) {
  AttentionSequence s = part.rows;
  const SequenceChunk& chunk = *part.chunk;
  if (chunk.scores != nullptr) s.softmax = softmax_.data() + s.token * config_.heads;
  if (chunk.kept == nullptr) return s;
  const CachePolicy& policy = chunk.kept->policy();
  if (policy.kind == CachePolicyKind::kSinkWindow && chunk.start_position > policy.sinks + policy.window) {
    const int64_t dim = config_.mla ? config_.rotary_dim() : config_.head_dim;
    s.sinks = policy.sinks;
    s.sink_q = sink_q_ + s.token * config_.heads * dim;
  }
  if (policy.ranks_steps()) {
    s.weights = *weights;
    s.weights_stride = Attention::WeightsStride(s.start_position + 1);
    *weights += config_.heads * s.weights_stride;
  }
  return s;
}

// Tells the policies of all ranked steps what their tokens' weights of this layer were: means over a list's heads.
void ForwardPass::RankStep(int layer) {
  pool_->ParallelFor(static_cast<int64_t>(ranked_.size()), [&](int64_t i, int) {
    const auto& [kept, s] = ranked_[static_cast<size_t>(i)];
    const int64_t list_heads = config_.heads / kept->lists();
    const int64_t slots = s.start_position + 1;
    for (int64_t list = 0; list < kept->lists(); ++list) {
      float* sum = s.weights + list * list_heads * s.weights_stride;
      for (int64_t h = 1; h < list_heads; ++h) {
        for (int64_t k = 0; k < slots; ++k) sum[k] += sum[h * s.weights_stride + k];
      }
      for (int64_t k = 0; k < slots; ++k) sum[k] /= static_cast<float>(list_heads);
    }
    kept->StepLayer(layer, 1, s.weights, list_heads * s.weights_stride);
  });
}

// Adds to the prompts' scores what the rows of this batch gave to them.
void ForwardPass::ScorePrompts(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  float* no_weights = nullptr;
  for (const Part& part : parts_) {
    PromptScores* scores = part.chunk->scores;
    if (scores == nullptr || part.rows.tokens == 0) continue;
    const AttentionSequence s = AttentionOf(part, &no_weights);
    const int64_t first = std::max<int64_t>(0, scores->first_query() - s.start_position);
    if (first >= s.tokens) continue;
    const PagedKv view = ViewOf(kv, layer);
    if (config_.mla) {
      latent_attention_.AddColumns(view, w.latent_up, s, first, {qkv_, qkv_stride_, attended_, attended_stride_},
                                   scores->layer(layer), *pool_);
    } else {
      attention_.AddColumns(view, s, first, qkv_, qkv_stride_, scores->lists(), scores->layer(layer), scores->stride(),
                            *pool_);
    }
  }
}

}  // namespace sluice
