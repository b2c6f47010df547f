#include "model/forward_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/convert.h"
#include "kernels/dequantize.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace sluice {

namespace {

// Below this many rows a parallel region costs more than it saves.
constexpr int64_t kRowsPerItemMin = 4;

AttentionShape ShapeOf(const ModelConfig& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .key_dim = config.head_dim,
          .value_dim = config.head_dim,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)))};
}

int64_t QkvFloats(const ModelConfig& config) { return int64_t{config.heads + 2 * config.kv_heads} * config.head_dim; }

int64_t WidestProduct(const ModelConfig& config) {
  return std::max({config.hidden_size, config.heads * config.head_dim, config.intermediate_size});
}

int64_t ScratchFloats(const ModelConfig& config, const TransformerOptions& options) {
  const int64_t row = int64_t{2} * config.hidden_size + QkvFloats(config) + int64_t{config.heads} * config.head_dim +
                      int64_t{2} * config.intermediate_size + int64_t{2} * config.head_dim;
  return row * options.batch_tokens_max + int64_t{options.logit_rows_max} * config.vocab_size;
}

PagedKv ViewOf(KvPool& kv, int layer) {
  const KvPoolOptions& o = kv.options();
  const DType type = o.codec == KvCodec::kF32 ? DType::kF32 : DType::kBf16;
  const size_t row_bytes = RowBytes(type, static_cast<size_t>(o.layout.head_dim));
  return {.k = kv.Plane(0, layer, 0).codes,
          .v = kv.Plane(0, layer, 1).codes,
          .k_row_bytes = row_bytes,
          .v_row_bytes = row_bytes,
          .page_stride_bytes = LayerBytes(o.layout, o.codec, o.page_tokens),
          .page_tokens = o.page_tokens,
          .type = type};
}

}  // namespace

ForwardPass::ForwardPass(const ModelConfig& config, const TransformerWeights* weights, ThreadPool* pool)
    : config_(config),
      weights_(weights),
      pool_(pool),
      rope_(ComputeRopeFrequencies(config.rope, config.head_dim)),
      qkv_stride_(QkvFloats(config)),
      attended_stride_(int64_t{config.heads} * config.head_dim) {}

size_t ForwardPass::Bytes(const ModelConfig& config, const TransformerOptions& options) {
  return static_cast<size_t>(ScratchFloats(config, options)) * sizeof(float) +
         Activations::Bytes(options.batch_tokens_max, WidestProduct(config)) +
         Attention::Bytes(ShapeOf(config), options.batch_tokens_max, config.context_tokens_max, options.threads);
}

StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::Create(const ModelConfig& config, const TransformerOptions& options,
                                                           const TransformerWeights* weights, ThreadPool* pool) {
  std::unique_ptr<ForwardPass> pass(new ForwardPass(config, weights, pool));
  const int64_t tokens = options.batch_tokens_max;
  SLUICE_ASSIGN_OR_RETURN(
      pass->scratch_,
      Buffer::Create(static_cast<size_t>(ScratchFloats(config, options)) * sizeof(float), /*touch=*/true));
  float* next = pass->scratch_.as<float>();
  const auto take = [&next](int64_t floats) { return std::exchange(next, next + floats); };
  pass->residual_ = take(tokens * config.hidden_size);
  pass->normed_ = take(tokens * config.hidden_size);
  pass->qkv_ = take(tokens * pass->qkv_stride_);
  pass->attended_ = take(tokens * pass->attended_stride_);
  pass->gate_up_ = take(tokens * 2 * config.intermediate_size);
  pass->cos_ = take(tokens * config.head_dim);
  pass->sin_ = take(tokens * config.head_dim);
  pass->logits_ = take(int64_t{options.logit_rows_max} * config.vocab_size);
  SLUICE_ASSIGN_OR_RETURN(pass->activations_, Activations::Create(tokens, WidestProduct(config)));
  SLUICE_ASSIGN_OR_RETURN(pass->attention_,
                          Attention::Create(ShapeOf(config), tokens, config.context_tokens_max, options.threads));
  pass->rows_.reserve(static_cast<size_t>(tokens));
  pass->sequences_.reserve(static_cast<size_t>(tokens));
  return pass;
}

absl::Span<const float> ForwardPass::Run(const Batch& batch, KvPool& kv, ForwardObserver* observer) {
  LayOut(batch, kv.options().page_tokens);
  Embed();
  if (observer != nullptr) observer->OnHidden(-1, residual_, row_count_);
  for (int layer = 0; layer < config_.layers; ++layer) {
    ProjectAndStore(layer, kv);
    // All that the last layer owes the cache is stored now: from here on only rows with logits matter.
    const bool last = layer + 1 == config_.layers;
    if (last && observer == nullptr) KeepLogitRows(batch);
    if (row_count_ == 0) return {};
    Attend(layer, kv);
    Mlp(weights_->layers[static_cast<size_t>(layer)]);
    if (observer == nullptr) continue;
    observer->OnHidden(layer, residual_, row_count_);
    if (last) KeepLogitRows(batch);
  }
  if (row_count_ == 0) return {};
  NormAndRound(weights_->output_norm, weights_->output.rounds_activations());
  if (observer != nullptr) observer->OnHidden(config_.layers, normed_, row_count_);
  Matmul(weights_->output, activations_, logits_, config_.vocab_size, /*accumulate=*/false, *pool_);
  return {logits_, static_cast<size_t>(row_count_ * config_.vocab_size)};
}

void ForwardPass::LayOut(const Batch& batch, int page_tokens) {
  rows_.clear();
  sequences_.clear();
  for (const SequenceChunk& s : batch.sequences) {
    sequences_.push_back({.token = static_cast<int64_t>(rows_.size()),
                          .tokens = static_cast<int64_t>(s.tokens.size()),
                          .start_position = s.start_position,
                          .pages = s.pages.data()});
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      const int64_t position = s.start_position + static_cast<int64_t>(i);
      rows_.push_back({.token = s.tokens[i],
                       .position = position,
                       .page = s.pages[static_cast<size_t>(position / page_tokens)],
                       .slot = static_cast<int32_t>(position % page_tokens)});
    }
  }
  row_count_ = static_cast<int64_t>(rows_.size());
}

void ForwardPass::Embed() {
  const ConstMatrixView& embedding = weights_->embedding;
  const bool interleaved = config_.rope.pairing == RopePairing::kInterleaved;
  ForRows([&](int64_t r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    DequantizeRow(embedding.type, embedding.row(row.token), config_.hidden_size, residual_ + r * config_.hidden_size);
    RopeAngles(rope_.per_pair, rope_.magnitude, static_cast<double>(row.position), interleaved,
               cos_ + r * config_.head_dim, sin_ + r * config_.head_dim);
  });
}

// Queries, keys and values of every row; keys and values go to their slots.
void ForwardPass::ProjectAndStore(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  NormAndRound(w.attention_norm,
               w.query.rounds_activations() || w.key.rounds_activations() || w.value.rounds_activations());
  const int64_t kv_floats = int64_t{config_.kv_heads} * config_.head_dim;
  float* k = qkv_ + attended_stride_;
  float* v = k + kv_floats;
  MatmulGroup({{&w.query, qkv_, qkv_stride_}, {&w.key, k, qkv_stride_}, {&w.value, v, qkv_stride_}}, activations_,
              *pool_);

  const PagedKv view = ViewOf(kv, layer);
  const size_t slot_bytes = RowBytes(view.type, static_cast<size_t>(kv_floats));
  const bool interleaved = config_.rope.pairing == RopePairing::kInterleaved;
  ForRows([&](int64_t r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    for (int h = 0; h < config_.heads + config_.kv_heads; ++h) {
      RopeHead(qkv_ + r * qkv_stride_ + int64_t{h} * config_.head_dim, cos_ + r * config_.head_dim,
               sin_ + r * config_.head_dim, config_.head_dim, interleaved);
    }
    const size_t offset = static_cast<size_t>(row.slot) * slot_bytes;
    ConvertRow(k + r * qkv_stride_, kv_floats, view.type, kv.Plane(row.page, layer, 0).codes + offset);
    ConvertRow(v + r * qkv_stride_, kv_floats, view.type, kv.Plane(row.page, layer, 1).codes + offset);
  });
}

// Moves the rows with logits to the front and forgets the others.
void ForwardPass::KeepLogitRows(const Batch& batch) {
  int64_t kept = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    AttentionSequence& s = sequences_[i];
    const int64_t rows = LogitRows(batch.sequences[i]);
    const int64_t first = s.token + s.tokens - rows;
    std::memmove(residual_ + kept * config_.hidden_size, residual_ + first * config_.hidden_size,
                 static_cast<size_t>(rows * config_.hidden_size) * sizeof(float));
    std::memmove(qkv_ + kept * qkv_stride_, qkv_ + first * qkv_stride_,
                 static_cast<size_t>(rows * qkv_stride_) * sizeof(float));
    s = {.token = kept, .tokens = rows, .start_position = s.start_position + s.tokens - rows, .pages = s.pages};
    kept += rows;
  }
  std::erase_if(sequences_, [](const AttentionSequence& s) { return s.tokens == 0; });
  row_count_ = kept;
}

void ForwardPass::Attend(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  attention_.Run(ViewOf(kv, layer), sequences_, qkv_, qkv_stride_, attended_, attended_stride_, *pool_);
  RoundRows(attended_, attended_stride_, attended_stride_, w.attention_output.rounds_activations());
  Matmul(w.attention_output, activations_, residual_, config_.hidden_size, /*accumulate=*/true, *pool_);
}

void ForwardPass::Mlp(const LayerWeights& w) {
  NormAndRound(w.mlp_norm, w.gate.rounds_activations() || w.up.rounds_activations());
  const int64_t size = config_.intermediate_size;
  MatmulGroup({{&w.gate, gate_up_, 2 * size}, {&w.up, gate_up_ + size, 2 * size}}, activations_, *pool_);
  activations_.Begin(gate_up_, row_count_, size, 2 * size);
  ForRows([&](int64_t r) {
    float* gate = gate_up_ + r * 2 * size;
    SiluMulRow(gate, gate + size, size, gate);
    if (w.down.rounds_activations()) activations_.RoundRow(r);
  });
  Matmul(w.down, activations_, residual_, config_.hidden_size, /*accumulate=*/true, *pool_);
}

void ForwardPass::NormAndRound(const float* weight, bool round) {
  const int64_t size = config_.hidden_size;
  activations_.Begin(normed_, row_count_, size, size);
  ForRows([&](int64_t r) {
    RmsNormRow(residual_ + r * size, weight, size, static_cast<float>(config_.rms_norm_eps), normed_ + r * size);
    if (round) activations_.RoundRow(r);
  });
}

void ForwardPass::RoundRows(const float* rows, int64_t cols, int64_t stride, bool round) {
  activations_.Begin(rows, row_count_, cols, stride);
  if (round) ForRows([&](int64_t r) { activations_.RoundRow(r); });
}

template <typename F>
void ForwardPass::ForRows(const F& body) {
  const int64_t per_item = std::max(kRowsPerItemMin, row_count_ / (pool_->threads() * 4));
  pool_->ParallelFor((row_count_ + per_item - 1) / per_item, [&](int64_t item, int) {
    const int64_t end = std::min(row_count_, (item + 1) * per_item);
    for (int64_t r = item * per_item; r < end; ++r) body(r);
  });
}

}  // namespace sluice
