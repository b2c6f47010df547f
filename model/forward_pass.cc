#include "model/forward_pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/activation.h"
#include "kernels/dequantize.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "model/kept_tokens.h"
#include "model/row_parallel.h"

namespace sluice {

namespace {

AttentionShape ShapeOf(const ModelConfig& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .key_dim = config.head_dim,
          .value_dim = config.head_dim,
          .scale = static_cast<float>(AttentionScale(config))};
}

// Positions of a sequence.
int64_t PositionsMax(const ModelConfig& config, const TransformerOptions& options) {
  const int64_t context = config.context_tokens_max;
  return options.sequence_tokens_max > 0 ? std::min(options.sequence_tokens_max, context) : context;
}

LatentAttention::Options LatentOptionsOf(const ModelConfig& config, const TransformerOptions& options) {
  return {.shape = LatentShapeOf(config),
          .scale = static_cast<float>(AttentionScale(config)),
          .tokens_max = options.batch_tokens_max,
          .context_tokens_max = PositionsMax(config, options),
          .threads = options.threads};
}

int64_t QkvFloats(const ModelConfig& config) {
  const int64_t query = int64_t{config.heads} * config.head_dim;
  if (config.mla) return query + config.mla->latent + config.mla->rope_dim + config.mla->query_rank;
  return query + int64_t{2} * config.kv_heads * config.head_dim;
}

int64_t AttendedFloats(const ModelConfig& config) { return int64_t{config.heads} * config.value_dim(); }

// Of the MLPs that all tokens of a layer go through.
int64_t WidestMlp(const ModelConfig& config) {
  int size = 0;
  for (int i = 0; i < config.layers; ++i) size = std::max(size, config.mlp_size(i));
  return size;
}

int64_t Experts(const ModelConfig& config) { return config.moe ? config.moe->experts : 0; }

int64_t WidestProduct(const ModelConfig& config) {
  return std::max({int64_t{config.hidden_size}, AttendedFloats(config), WidestMlp(config),
                   int64_t{config.mla ? config.mla->query_rank : 0},
                   int64_t{config.moe ? config.moe->intermediate_size : 0}});
}

// What is rotated of a row's queries.
int64_t SinkFloats(const ModelConfig& config) {
  return int64_t{config.heads} * (config.mla ? config.mla->rope_dim : config.head_dim);
}

// For any sequences that have so many slots altogether.
int64_t WeightsFloats(const ModelConfig& config, const TransformerOptions& options) {
  if (options.ranked_slots_max == 0) return 0;
  return config.heads *
         (Attention::WeightsStride(options.ranked_slots_max) + options.batch_tokens_max * Attention::WeightsStride(1));
}

int64_t ScratchFloats(const ModelConfig& config, const TransformerOptions& options) {
  const int64_t row = int64_t{2} * config.hidden_size + QkvFloats(config) + SinkFloats(config) +
                      AttendedFloats(config) + 2 * WidestMlp(config) + int64_t{4} * config.rotary_dim() +
                      Experts(config);
  return row * options.batch_tokens_max + int64_t{options.logit_rows_max} * config.vocab_size +
         WeightsFloats(config, options);
}

}  // namespace

ForwardPass::ForwardPass(const ModelConfig& config, const TransformerWeights* weights, ThreadPool* pool)
    : config_(config),
      weights_(weights),
      pool_(pool),
      rope_(ComputeRopeFrequencies(config.rope, config.rotary_dim())),
      interleaved_(config.rope.pairing == RopePairing::kInterleaved),
      qkv_stride_(QkvFloats(config)),
      attended_stride_(AttendedFloats(config)),
      mlp_max_(WidestMlp(config)) {}

size_t ForwardPass::Bytes(const ModelConfig& config, const TransformerOptions& options) {
  size_t bytes = static_cast<size_t>(ScratchFloats(config, options)) * sizeof(float) +
                 static_cast<size_t>(options.batch_tokens_max * config.heads) * sizeof(SoftmaxOfRow) +
                 Activations::Bytes(options.batch_tokens_max, WidestProduct(config));
  bytes += config.mla ? LatentAttention::Bytes(LatentOptionsOf(config, options))
                      : Attention::Bytes(ShapeOf(config), options.batch_tokens_max, PositionsMax(config, options),
                                         options.threads);
  if (config.moe) bytes += ExpertLayer::Bytes(*config.moe, config.hidden_size, options.batch_tokens_max);
  return bytes;
}

StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::Create(const ModelConfig& config, const TransformerOptions& options,
                                                           const TransformerWeights* weights, ThreadPool* pool) {
  std::unique_ptr<ForwardPass> pass(new ForwardPass(config, weights, pool));
  SLUICE_RETURN_IF_ERROR(pass->TakeMemory(options));
  return pass;
}

Status ForwardPass::TakeMemory(const TransformerOptions& options) {
  const int64_t tokens = options.batch_tokens_max;
  SLUICE_ASSIGN_OR_RETURN(scratch_, Buffer::Create(static_cast<size_t>(ScratchFloats(config_, options)) * sizeof(float),
                                                   /*touch=*/true));
  float* next = scratch_.as<float>();
  const auto take = [&next](int64_t floats) { return std::exchange(next, next + floats); };
  residual_ = take(tokens * config_.hidden_size);
  normed_ = take(tokens * config_.hidden_size);
  qkv_ = take(tokens * qkv_stride_);
  sink_q_ = take(tokens * SinkFloats(config_));
  attention_weights_ = take(WeightsFloats(config_, options));
  attended_ = take(tokens * attended_stride_);
  gate_up_ = take(tokens * 2 * mlp_max_);
  cos_ = take(tokens * config_.rotary_dim());
  sin_ = take(tokens * config_.rotary_dim());
  sink_cos_ = take(tokens * config_.rotary_dim());
  sink_sin_ = take(tokens * config_.rotary_dim());
  router_logits_ = take(tokens * Experts(config_));
  logits_ = take(int64_t{options.logit_rows_max} * config_.vocab_size);
  SLUICE_ASSIGN_OR_RETURN(activations_, Activations::Create(tokens, WidestProduct(config_)));
  if (config_.mla) {
    SLUICE_ASSIGN_OR_RETURN(latent_attention_, LatentAttention::Create(LatentOptionsOf(config_, options)));
  } else {
    SLUICE_ASSIGN_OR_RETURN(
        attention_, Attention::Create(ShapeOf(config_), tokens, PositionsMax(config_, options), options.threads));
  }
  if (config_.moe) {
    SLUICE_ASSIGN_OR_RETURN(experts_, ExpertLayer::Create(*config_.moe, config_.hidden_size, tokens));
  }
  rows_.reserve(static_cast<size_t>(tokens));
  softmax_.resize(static_cast<size_t>(tokens * config_.heads));
  parts_.reserve(static_cast<size_t>(tokens));
  sequences_.reserve(static_cast<size_t>(tokens));
  generated_.reserve(static_cast<size_t>(tokens));
  return absl::OkStatus();
}

absl::Span<const float> ForwardPass::Run(const Batch& batch, KvPool& kv, ForwardObserver* observer) {
  LayOut(batch, kv.options().page_tokens);
  const bool rows_left = RunLayers(batch, kv, observer);
  for (const SequenceChunk& s : batch.sequences) {
    if (s.kept != nullptr) s.kept->FinishStep(static_cast<int64_t>(s.tokens.size()));
  }
  if (!rows_left) return {};
  NormAndRound(weights_->output_norm, weights_->output.rounds_activations());
  if (observer != nullptr) observer->OnHidden(config_.layers, normed_, row_count_);
  Matmul(weights_->output, activations_, logits_, config_.vocab_size, /*accumulate=*/false, *pool_);
  return {logits_, static_cast<size_t>(row_count_ * config_.vocab_size)};
}

// Whether any rows have logits.
bool ForwardPass::RunLayers(const Batch& batch, KvPool& kv, ForwardObserver* observer) {
  const auto logit_rows = [](const Part& part) { return LogitRows(*part.chunk); };
  Embed();
  if (observer != nullptr) observer->OnHidden(-1, residual_, row_count_);
  for (int layer = 0; layer < config_.layers; ++layer) {
    config_.mla ? ProjectAndStoreLatent(layer, kv) : ProjectAndStore(layer, kv);
    if (batch.on_layer_stored) batch.on_layer_stored(layer);
    // All that the last layer owes the cache is stored now: from here on only rows with logits matter, and those whose
    // attention somebody wants to know.
    const bool last = layer + 1 == config_.layers;
    if (last && observer == nullptr) KeepRows(RowsAttended);
    if (row_count_ > 0) config_.mla ? AttendLatent(layer, kv) : Attend(layer, kv);
    RankStep(layer);
    ScorePrompts(layer, kv);
    if (batch.on_layer_attended) batch.on_layer_attended(layer);
    if (last && observer == nullptr) KeepRows(logit_rows);
    if (row_count_ == 0) return false;
    Mlp(layer, observer);
    if (observer == nullptr) continue;
    observer->OnHidden(layer, residual_, row_count_);
    if (last) KeepRows(logit_rows);
  }
  return row_count_ > 0;
}

void ForwardPass::LayOut(const Batch& batch, int page_tokens) {
  rows_.clear();
  parts_.clear();
  for (const SequenceChunk& s : batch.sequences) {
    parts_.push_back({&s,
                      {.token = static_cast<int64_t>(rows_.size()),
                       .tokens = static_cast<int64_t>(s.tokens.size()),
                       .start_position = s.first_slot(),
                       .pages = s.pages.data()}});
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      const int64_t position = s.start_position + static_cast<int64_t>(i);
      if (s.kept != nullptr) {
        rows_.push_back({.token = s.tokens[i],
                         .position = position,
                         .page = 0,
                         .slot = 0,
                         .chunk = &s,
                         .index = static_cast<int32_t>(i)});
        continue;
      }
      rows_.push_back({.token = s.tokens[i],
                       .position = position,
                       .page = s.pages[static_cast<size_t>(position / page_tokens)],
                       .slot = static_cast<int32_t>(position % page_tokens)});
    }
  }
  row_count_ = static_cast<int64_t>(rows_.size());
  ListSequences();
}

// What attention is asked for.
void ForwardPass::ListSequences() {
  sequences_.clear();
  generated_.clear();
  ranked_.clear();
  float* weights = attention_weights_;
  for (const Part& part : parts_) {
    if (part.rows.tokens == 0) continue;
    const bool absorbs = config_.mla && (part.chunk->generated || part.chunk->kept != nullptr);
    const AttentionSequence rows = AttentionOf(part, &weights);
    (absorbs ? generated_ : sequences_).push_back(rows);
    if (rows.weights != nullptr) ranked_.push_back({part.chunk->kept, rows});
  }
}

void ForwardPass::Embed() {
  const ConstMatrixView& embedding = weights_->embedding;
  const int rotary = config_.rotary_dim();
  ForRows(row_count_, *pool_, [&](int64_t r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    DequantizeRow(embedding, row.token, residual_ + r * config_.hidden_size);
    RopeAngles(rope_.per_pair, rope_.magnitude, static_cast<double>(row.position), interleaved_, cos_ + r * rotary,
               sin_ + r * rotary);
    const CachePolicy* policy = row.chunk != nullptr ? &row.chunk->kept->policy() : nullptr;
    if (policy == nullptr || policy->kind != CachePolicyKind::kSinkWindow) return;
    RopeAngles(rope_.per_pair, rope_.magnitude, static_cast<double>(SinkQueryPosition(*policy, row.position)),
               interleaved_, sink_cos_ + r * rotary, sink_sin_ + r * rotary);
  });
}

// K and V of one layer, or the latents twice.
PagedKv ForwardPass::ViewOf(const KvPool& kv, int layer) {
  const KvPoolOptions& o = kv.options();
  const auto rows = [&](int tensor) {
    const KvPlane plane = kv.Plane(0, layer, tensor);
    return KvRows{.codes = plane.codes,
                  .scales = plane.scales,
                  .code_bytes = Info(o.codec).code_bytes(o.layout.row()),
                  .scale_bytes = Info(o.codec).scale_bytes(o.layout.row())};
  };
  return {.k = rows(0),
          .v = rows(o.layout.tensors() - 1),
          .page_stride_bytes = LayerBytes(o.layout, o.codec, o.page_tokens),
          .page_tokens = o.page_tokens,
          .codec = o.codec};
}

// Queries, keys and values of every row; keys and values go to their slots.
void ForwardPass::ProjectAndStore(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  NormAndRound(w.attention_norm,
               w.query.rounds_activations() || w.key.rounds_activations() || w.value.rounds_activations());
  const int64_t kv_floats = int64_t{config_.kv_heads} * config_.head_dim;
  float* k = qkv_ + int64_t{config_.heads} * config_.head_dim;
  float* v = k + kv_floats;
  MatmulGroup({{&w.query, qkv_, qkv_stride_}, {&w.key, k, qkv_stride_}, {&w.value, v, qkv_stride_}}, activations_,
              *pool_);

  ForRows(row_count_, *pool_, [&](int64_t r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    TurnToSinks(r);
    for (int h = 0; h < config_.heads + config_.kv_heads; ++h) {
      RopeHead(qkv_ + r * qkv_stride_ + int64_t{h} * config_.head_dim, cos_ + r * config_.head_dim,
               sin_ + r * config_.head_dim, config_.head_dim, interleaved_);
    }
    Store(k + r * qkv_stride_, kv, layer, 0, row);
    Store(v + r * qkv_stride_, kv, layer, 1, row);
  });
}

// A token's rows of one tensor to their slot, in the store codec; under a cache policy those of each list to its own.
void ForwardPass::Store(const float* x, KvPool& kv, int layer, int tensor, const Row& row) {
  const KvPoolOptions& o = kv.options();
  const int rows = o.layout.rows_per_token();
  if (row.chunk == nullptr) return StoreRows(x, rows, kv, layer, tensor, row.page, row.slot * rows);
  const KeptSlots& kept = *row.chunk->kept;
  const int list_rows = rows / kept.lists();
  for (int list = 0; list < kept.lists(); ++list) {
    const int32_t slot = kept.SlotFor(layer, list, row.index);
    StoreRows(x + list * list_rows * o.layout.row().width(), list_rows, kv, layer, tensor,
              row.chunk->pages[static_cast<size_t>(slot / o.page_tokens)],
              slot % o.page_tokens * rows + list * list_rows);
  }
}

void ForwardPass::StoreRows(const float* x, int rows, KvPool& kv, int layer, int tensor, PageIndex page,
                            int first_row) {
  const KvCodecInfo& codec = Info(kv.options().codec);
  const KvRowShape shape = kv.options().layout.row();
  const KvPlane plane = kv.Plane(page, layer, tensor);
  const auto first = static_cast<size_t>(first_row);
  const KvCodecCounts counts =
      codec.encode(shape, x, rows, shape.width(), plane.codes + first * codec.code_bytes(shape),
                   plane.scales + first * codec.scale_bytes(shape));
  if (counts.nonfinite_rows > 0) nonfinite_rows_.fetch_add(counts.nonfinite_rows, std::memory_order_relaxed);
  if (counts.saturated > 0) saturated_.fetch_add(counts.saturated, std::memory_order_relaxed);
}

// Moves the last rows_of(part) rows of each part to the front and forgets the others.
template <typename F>
void ForwardPass::KeepRows(const F& rows_of) {
  int64_t kept = 0;
  for (Part& part : parts_) {
    AttentionSequence& s = part.rows;
    const int64_t rows = rows_of(part);
    const int64_t first = s.token + s.tokens - rows;
    const auto move = [&](float* x, int64_t stride) {
      std::memmove(x + kept * stride, x + first * stride, static_cast<size_t>(rows * stride) * sizeof(float));
    };
    move(residual_, config_.hidden_size);
    move(qkv_, qkv_stride_);
    move(sink_q_, SinkFloats(config_));
    s = {.token = kept, .tokens = rows, .start_position = s.start_position + s.tokens - rows, .pages = s.pages};
    kept += rows;
  }
  row_count_ = kept;
  ListSequences();
}

void ForwardPass::Attend(int layer, KvPool& kv) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  attention_.Run(ViewOf(kv, layer), sequences_, qkv_, qkv_stride_, attended_, attended_stride_, *pool_);
  RoundRows(attended_, attended_stride_, attended_stride_, w.attention_output.rounds_activations());
  Matmul(w.attention_output, activations_, residual_, config_.hidden_size, /*accumulate=*/true, *pool_);
}

// The MLP of all rows, and in sparse layers each row's experts.
void ForwardPass::Mlp(int layer, ForwardObserver* observer) {
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const bool sparse = config_.sparse(layer);
  // Experts gather rows of their own and round those; what is rounded here is for the others.
  NormAndRound(w.mlp_norm, w.gate.rounds_activations() || w.up.rounds_activations());
  if (sparse) Matmul(w.router, activations_, router_logits_, Experts(config_), /*accumulate=*/false, *pool_);
  const int64_t size = config_.mlp_size(layer);
  if (size > 0) {
    MatmulGroup({{&w.gate, gate_up_, 2 * size}, {&w.up, gate_up_ + size, 2 * size}}, activations_, *pool_);
    activations_.Begin(gate_up_, row_count_, size, 2 * size);
    ForRows(row_count_, *pool_, [&](int64_t r) {
      float* gate = gate_up_ + r * 2 * size;
      SiluMulRow(gate, gate + size, size, gate);
      if (w.down.rounds_activations()) activations_.RoundRow(r);
    });
    Matmul(w.down, activations_, residual_, config_.hidden_size, /*accumulate=*/true, *pool_);
  }
  if (!sparse) return;
  const absl::Span<const ExpertWeight> chosen =
      experts_.Run(w, router_logits_, normed_, residual_, row_count_, activations_, *pool_);
  if (observer != nullptr) observer->OnExperts(layer, chosen);
}

void ForwardPass::NormAndRound(const float* weight, bool round) {
  const int64_t size = config_.hidden_size;
  activations_.Begin(normed_, row_count_, size, size);
  ForRows(row_count_, *pool_, [&](int64_t r) {
    RmsNormRow(residual_ + r * size, weight, size, static_cast<float>(config_.rms_norm_eps), normed_ + r * size);
    if (round) activations_.RoundRow(r);
  });
}

void ForwardPass::RoundRows(const float* rows, int64_t cols, int64_t stride, bool round) {
  activations_.Begin(rows, row_count_, cols, stride);
  if (round) ForRows(row_count_, *pool_, [&](int64_t r) { activations_.RoundRow(r); });
}

}  // namespace sluice
