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
constexpr LayerMatrix kLayerMatrices[] = {
    {Weight::kQuery, &LayerWeights::query}, {Weight::kKey, &LayerWeights::key},
    {Weight::kValue, &LayerWeights::value}, {Weight::kAttentionOutput, &LayerWeights::attention_output},
    {Weight::kGate, &LayerWeights::gate},   {Weight::kUp, &LayerWeights::up},
    {Weight::kDown, &LayerWeights::down}};

size_t NormsBytes(const ModelConfig& config) {
  return static_cast<size_t>(2 * config.layers + 1) * static_cast<size_t>(config.hidden_size) * sizeof(float);
}

// Packs one tensor; its mapped pages are not needed any more unless they are also the embedding's.
StatusOr<PackedMatrix> PackTensor(const Checkpoint& checkpoint, Weight weight, int layer, const PackOptions& options,
                                  ThreadPool& pool) {
  SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, checkpoint.Tensor(weight, layer));
  SLUICE_ASSIGN_OR_RETURN(PackedMatrix packed, PackedMatrix::Pack(view, options, pool));
  if (weight != Weight::kOutput || !checkpoint.config().tied_embeddings) checkpoint.DropResident(view);
  return packed;
}

StatusOr<const float*> LoadNorm(const Checkpoint& checkpoint, Weight weight, int layer, float** next) {
  SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, checkpoint.Tensor(weight, layer));
  float* norm = *next;
  DequantizeRow(view.type, view.row(0), view.cols, norm);
  checkpoint.DropResident(view);
  *next += view.cols;
  return norm;
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

StatusOr<TransformerWeights> TransformerWeights::Load(const Checkpoint& checkpoint, const PackOptions& options,
                                                      ThreadPool& pool) {
  const ModelConfig& config = checkpoint.config();
  TransformerWeights weights;
  SLUICE_ASSIGN_OR_RETURN(weights.output, PackTensor(checkpoint, Weight::kOutput, 0, options, pool));
  SLUICE_ASSIGN_OR_RETURN(weights.norms, Buffer::Create(NormsBytes(config), /*touch=*/true));
  float* next_norm = weights.norms.as<float>();
  SLUICE_ASSIGN_OR_RETURN(weights.output_norm, LoadNorm(checkpoint, Weight::kOutputNorm, 0, &next_norm));
  Progress progress(config.layers);
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    SLUICE_ASSIGN_OR_RETURN(layer.attention_norm, LoadNorm(checkpoint, Weight::kAttentionNorm, i, &next_norm));
    SLUICE_ASSIGN_OR_RETURN(layer.mlp_norm, LoadNorm(checkpoint, Weight::kMlpNorm, i, &next_norm));
    for (const LayerMatrix& m : kLayerMatrices) {
      SLUICE_ASSIGN_OR_RETURN(layer.*m.packed, PackTensor(checkpoint, m.weight, i, options, pool));
    }
    progress.AfterLayer(i);
  }
  SLUICE_ASSIGN_OR_RETURN(weights.embedding, checkpoint.Tensor(Weight::kTokenEmbedding, 0));
  MakeResident(weights.embedding);
  return weights;
}

StatusOr<TransformerWeights::Sizes> TransformerWeights::Plan(const Checkpoint& checkpoint, const PackOptions& options) {
  const ModelConfig& config = checkpoint.config();
  Sizes sizes;
  sizes.packed_bytes = NormsBytes(config);
  const auto add = [&](Weight weight, int layer) -> Status {
    SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, checkpoint.Tensor(weight, layer));
    sizes.packed_bytes += PackedMatrix::PackedBytes(view.type, view.rows, view.cols, options);
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(add(Weight::kOutput, 0));
  for (int i = 0; i < config.layers; ++i) {
    for (const LayerMatrix& m : kLayerMatrices) SLUICE_RETURN_IF_ERROR(add(m.weight, i));
  }
  SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView embedding, checkpoint.Tensor(Weight::kTokenEmbedding, 0));
  sizes.mapped_bytes = embedding.bytes();
  return sizes;
}

}  // namespace sluice
