#include "model/transformer_weights.h"

#include <chrono>

#include "kernels/dequantize.h"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {

struct LayerMatrix {
  Weight weight;
  PackedMatrix LayerWeights::*packed;
};
// Of each pair of weights that share a place, a layer has one at most.
constexpr LayerMatrix kLayerMatrices[] = {{Weight::kQuery, &LayerWeights::query},
                                          {Weight::kQueryUp, &LayerWeights::query},
                                          {Weight::kQueryDown, &LayerWeights::query_down},
                                          {Weight::kKey, &LayerWeights::key},
                                          {Weight::kValue, &LayerWeights::value},
                                          {Weight::kLatentDown, &LayerWeights::latent_down},
                                          {Weight::kAttentionOutput, &LayerWeights::attention_output},
                                          {Weight::kGate, &LayerWeights::gate},
                                          {Weight::kUp, &LayerWeights::up},
                                          {Weight::kDown, &LayerWeights::down},
                                          {Weight::kSharedGate, &LayerWeights::gate},
                                          {Weight::kSharedUp, &LayerWeights::up},
                                          {Weight::kSharedDown, &LayerWeights::down},
                                          {Weight::kRouter, &LayerWeights::router}};

struct ExpertMatrix {
  Weight weight;
  PackedMatrix ExpertWeights::*packed;
};
constexpr ExpertMatrix kExpertMatrices[] = {{Weight::kExpertGate, &ExpertWeights::gate},
                                            {Weight::kExpertUp, &ExpertWeights::up},
                                            {Weight::kExpertDown, &ExpertWeights::down}};

struct LayerVector {
  Weight weight;
  const float* LayerWeights::*vector;
};
constexpr LayerVector kLayerVectors[] = {{Weight::kAttentionNorm, &LayerWeights::attention_norm},
                                         {Weight::kMlpNorm, &LayerWeights::mlp_norm},
                                         {Weight::kQueryDownNorm, &LayerWeights::query_down_norm},
                                         {Weight::kLatentNorm, &LayerWeights::latent_norm},
                                         {Weight::kRouterBias, &LayerWeights::router_bias}};

PackOptions OptionsFor(Weight weight, const PackOptions& options) {
  return weight == Weight::kRouter ? PackOptions{.exact = true} : options;
}

size_t VectorsBytes(const ModelConfig& config) {
  int64_t floats = Shape(Weight::kOutputNorm, config).cols;
  for (int i = 0; i < config.layers; ++i) {
    for (const LayerVector& v : kLayerVectors) floats += CountOf(v.weight, config, i) * Shape(v.weight, config).cols;
  }
  return static_cast<size_t>(floats) * sizeof(float);
}

// Packs one tensor; its mapped pages are not needed any more unless they are also the embedding's.
StatusOr<PackedMatrix> PackTensor(const Checkpoint& checkpoint, Weight weight, int layer, int expert,
                                  const PackOptions& options, ThreadPool& pool) {
  SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, checkpoint.Tensor(weight, layer, expert));
  SLUICE_ASSIGN_OR_RETURN(PackedMatrix packed, PackedMatrix::Pack(view, OptionsFor(weight, options), pool));
  if (weight != Weight::kOutput || !checkpoint.config().tied_embeddings) checkpoint.DropResident(view);
  return packed;
}

StatusOr<const float*> LoadVector(const Checkpoint& checkpoint, Weight weight, int layer, float** next) {
  SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, checkpoint.Tensor(weight, layer));
  float* vector = *next;
  DequantizeRow(view, 0, vector);
  checkpoint.DropResident(view);
  *next += view.cols;
  return vector;
}

Status LoadLayer(const Checkpoint& checkpoint, int i, const PackOptions& options, ThreadPool& pool, float** next_vector,
                 LayerWeights& layer) {
  const ModelConfig& config = checkpoint.config();
  for (const LayerVector& v : kLayerVectors) {
    if (CountOf(v.weight, config, i) == 0) continue;
    SLUICE_ASSIGN_OR_RETURN(layer.*v.vector, LoadVector(checkpoint, v.weight, i, next_vector));
  }
  for (const LayerMatrix& m : kLayerMatrices) {
    if (CountOf(m.weight, config, i) == 0) continue;
    SLUICE_ASSIGN_OR_RETURN(layer.*m.packed, PackTensor(checkpoint, m.weight, i, 0, options, pool));
  }
  if (config.mla) {
    SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView up, checkpoint.Tensor(Weight::kLatentUp, i));
    SLUICE_ASSIGN_OR_RETURN(layer.latent_up, LatentWeights::Pack(up, LatentShapeOf(config), options, pool));
    checkpoint.DropResident(up);
  }
  if (!config.sparse(i)) return absl::OkStatus();
  layer.experts.resize(static_cast<size_t>(config.moe->experts));
  for (int e = 0; e < config.moe->experts; ++e) {
    for (const ExpertMatrix& m : kExpertMatrices) {
      SLUICE_ASSIGN_OR_RETURN(layer.experts[static_cast<size_t>(e)].*m.packed,
                              PackTensor(checkpoint, m.weight, i, e, options, pool));
    }
  }
  return absl::OkStatus();
}

// Says how far loading is, at most once a second.
class Progress {
 public:
  explicit Progress(int layers) : layers_(layers) {}
  void AfterLayer(int layer) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    spdlog::info("loading weights: {} of {} layers", layer + 1, layers_);
  }

 private:
  int layers_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Reads a byte of each page: embedding rows are looked up under load, where a fault would stall a step, and the memory
// plan counts them.
void MakeResident(const ConstMatrixView& view) {
  constexpr size_t kPageBytes = 4096;
  const volatile std::byte* bytes = static_cast<const std::byte*>(view.data);
  for (size_t at = 0; at < view.bytes(); at += kPageBytes) static_cast<void>(bytes[at]);
}

}  // namespace

LatentShape LatentShapeOf(const ModelConfig& config) {
  return {.heads = config.heads,
          .latent = config.mla->latent,
          .rope_dim = config.mla->rope_dim,
          .nope_dim = config.mla->nope_dim,
          .value_dim = config.mla->value_dim};
}

StatusOr<TransformerWeights> TransformerWeights::Load(const Checkpoint& checkpoint, const PackOptions& options,
                                                      ThreadPool& pool) {
  const ModelConfig& config = checkpoint.config();
  TransformerWeights weights;
  SLUICE_ASSIGN_OR_RETURN(weights.output, PackTensor(checkpoint, Weight::kOutput, 0, 0, options, pool));
  SLUICE_ASSIGN_OR_RETURN(weights.vectors, Buffer::Create(VectorsBytes(config), /*touch=*/true));
  float* next_vector = weights.vectors.as<float>();
  SLUICE_ASSIGN_OR_RETURN(weights.output_norm, LoadVector(checkpoint, Weight::kOutputNorm, 0, &next_vector));
  Progress progress(config.layers);
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    SLUICE_RETURN_IF_ERROR(
        LoadLayer(checkpoint, i, options, pool, &next_vector, weights.layers[static_cast<size_t>(i)]));
    progress.AfterLayer(i);
  }
  SLUICE_ASSIGN_OR_RETURN(weights.embedding, checkpoint.Tensor(Weight::kTokenEmbedding, 0));
  MakeResident(weights.embedding);
  return weights;
}

StatusOr<TransformerWeights::Sizes> TransformerWeights::Plan(const Checkpoint& checkpoint, const PackOptions& options) {
  const ModelConfig& config = checkpoint.config();
  Sizes sizes;
  sizes.packed_bytes = VectorsBytes(config);
  const auto add = [&](Weight weight, int layer) -> Status {
    for (int expert = 0; expert < CountOf(weight, config, layer); ++expert) {
      SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, checkpoint.Tensor(weight, layer, expert));
      sizes.packed_bytes +=
          weight == Weight::kLatentUp
              ? LatentWeights::PackedBytes(view.type, LatentShapeOf(config), options)
              : PackedMatrix::PackedBytes(view.type, view.rows, view.cols, OptionsFor(weight, options));
    }
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(add(Weight::kOutput, 0));
  for (int i = 0; i < config.layers; ++i) {
    for (const LayerMatrix& m : kLayerMatrices) SLUICE_RETURN_IF_ERROR(add(m.weight, i));
    for (const ExpertMatrix& m : kExpertMatrices) SLUICE_RETURN_IF_ERROR(add(m.weight, i));
    SLUICE_RETURN_IF_ERROR(add(Weight::kLatentUp, i));
  }
  SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView embedding, checkpoint.Tensor(Weight::kTokenEmbedding, 0));
  sizes.mapped_bytes = embedding.bytes();
  return sizes;
}

}  // namespace sluice
