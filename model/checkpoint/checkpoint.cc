#include "model/checkpoint/checkpoint.h"

#include <array>
#include <filesystem>

#include "model/checkpoint/mapped_checkpoint.h"

namespace sluice {

std::string_view Name(Weight weight) {
  static constexpr std::array<std::string_view, kWeightCount> kNames = {
      "token_embedding", "output_norm",      "output",   "attention_norm", "query", "key",
      "value",           "attention_output", "mlp_norm", "gate",           "up",    "down"};
  return kNames[static_cast<size_t>(weight)];
}

bool IsPerLayer(Weight weight) { return weight >= Weight::kAttentionNorm; }

WeightShape Shape(Weight weight, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t heads_width = int64_t{config.heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.kv_heads} * config.head_dim;
  switch (weight) {
    case Weight::kTokenEmbedding:
    case Weight::kOutput:
      return {config.vocab_size, hidden};
    case Weight::kOutputNorm:
    case Weight::kAttentionNorm:
    case Weight::kMlpNorm:
      return {1, hidden};
    case Weight::kQuery:
      return {heads_width, hidden};
    case Weight::kKey:
    case Weight::kValue:
      return {kv_width, hidden};
    case Weight::kAttentionOutput:
      return {hidden, heads_width};
    case Weight::kGate:
    case Weight::kUp:
      return {config.intermediate_size, hidden};
    case Weight::kDown:
      return {hidden, config.intermediate_size};
  }
  return {};
}

StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  SLUICE_ASSIGN_OR_RETURN(CheckpointParts parts, folder ? ReadHuggingFace(path) : ReadGguf(path));
  return MappedCheckpoint::Create(std::move(parts));
}

}  // namespace sluice
