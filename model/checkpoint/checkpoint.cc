#include "model/checkpoint/checkpoint.h"

#include <array>
#include <filesystem>

#include "model/checkpoint/mapped_checkpoint.h"

namespace sluice {

std::string_view Name(Weight weight) {
  static constexpr std::array<std::string_view, kWeightCount> kNames = {
      "token_embedding", "output_norm",      "output",      "attention_norm", "query",       "key",
      "value",           "attention_output", "mlp_norm",    "gate",           "up",          "down",
      "query_down",      "query_down_norm",  "query_up",    "latent_down",    "latent_norm", "latent_up",
      "router",          "router_bias",      "shared_gate", "shared_up",      "shared_down", "expert_gate",
      "expert_up",       "expert_down"};
  return kNames[static_cast<size_t>(weight)];
}

bool IsPerLayer(Weight weight) { return weight >= Weight::kAttentionNorm; }

bool IsVector(Weight weight) {
  switch (weight) {
    case Weight::kOutputNorm:
    case Weight::kAttentionNorm:
    case Weight::kMlpNorm:
    case Weight::kQueryDownNorm:
    case Weight::kLatentNorm:
    case Weight::kRouterBias:
      return true;
    default:
      return false;
  }
}

WeightShape Shape(Weight weight, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.heads;
  const int64_t kv_width = int64_t{config.kv_heads} * config.head_dim;
  const MlaConfig mla = config.mla.value_or(MlaConfig());
  const MoeConfig moe = config.moe.value_or(MoeConfig());
  const int64_t shared = int64_t{moe.shared_experts} * moe.intermediate_size;
  switch (weight) {
    case Weight::kTokenEmbedding:
    case Weight::kOutput:
      return {config.vocab_size, hidden};
    case Weight::kOutputNorm:
    case Weight::kAttentionNorm:
    case Weight::kMlpNorm:
      return {1, hidden};
    case Weight::kQuery:
      return {heads * config.head_dim, hidden};
    case Weight::kKey:
    case Weight::kValue:
      return {kv_width, hidden};
    case Weight::kAttentionOutput:
      return {hidden, heads * config.value_dim()};
    case Weight::kGate:
    case Weight::kUp:
      return {config.intermediate_size, hidden};
    case Weight::kDown:
      return {hidden, config.intermediate_size};
    case Weight::kQueryDown:
      return {mla.query_rank, hidden};
    case Weight::kQueryDownNorm:
      return {1, mla.query_rank};
    case Weight::kQueryUp:
      return {heads * config.head_dim, mla.query_rank};
    case Weight::kLatentDown:
      return {mla.latent + mla.rope_dim, hidden};
    case Weight::kLatentNorm:
      return {1, mla.latent};
    case Weight::kLatentUp:
      return {heads * (mla.nope_dim + mla.value_dim), mla.latent};
    case Weight::kRouter:
      return {moe.experts, hidden};
    case Weight::kRouterBias:
      return {1, moe.experts};
    case Weight::kSharedGate:
    case Weight::kSharedUp:
      return {shared, hidden};
    case Weight::kSharedDown:
      return {hidden, shared};
    case Weight::kExpertGate:
    case Weight::kExpertUp:
      return {moe.intermediate_size, hidden};
    case Weight::kExpertDown:
      return {hidden, moe.intermediate_size};
  }
  return {};
}

int CountOf(Weight weight, const ModelConfig& config, int layer) {
  const bool mla = config.mla.has_value();
  const bool two_queries = mla && config.mla->query_rank > 0;
  const bool sparse = config.sparse(layer);
  switch (weight) {
    case Weight::kTokenEmbedding:
    case Weight::kOutputNorm:
    case Weight::kOutput:
    case Weight::kAttentionNorm:
    case Weight::kAttentionOutput:
    case Weight::kMlpNorm:
      return 1;
    case Weight::kQuery:
      return two_queries ? 0 : 1;
    case Weight::kKey:
    case Weight::kValue:
      return mla ? 0 : 1;
    case Weight::kGate:
    case Weight::kUp:
    case Weight::kDown:
      return sparse ? 0 : 1;
    case Weight::kQueryDown:
    case Weight::kQueryDownNorm:
    case Weight::kQueryUp:
      return two_queries ? 1 : 0;
    case Weight::kLatentDown:
    case Weight::kLatentNorm:
    case Weight::kLatentUp:
      return mla ? 1 : 0;
    case Weight::kRouter:
      return sparse ? 1 : 0;
    case Weight::kRouterBias:
      return sparse && config.moe->choice == MoeChoice::kNoAuxTc ? 1 : 0;
    case Weight::kSharedGate:
    case Weight::kSharedUp:
    case Weight::kSharedDown:
      return sparse && config.moe->shared_experts > 0 ? 1 : 0;
    case Weight::kExpertGate:
    case Weight::kExpertUp:
    case Weight::kExpertDown:
      return sparse ? config.moe->experts : 0;
  }
  return 0;
}

StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  SLUICE_ASSIGN_OR_RETURN(CheckpointParts parts, folder ? ReadHuggingFace(path) : ReadGguf(path));
  return MappedCheckpoint::Create(std::move(parts));
}

}  // namespace sluice
