#include "model/checkpoint/huggingface_deepseek.h"

#include "common/dtype.h"

namespace sluice {
namespace {

struct Defaults {
  const char* scoring;
  const char* choice;
  bool normalise;
  double scale;
};

Status ReadMla(const JsonFields& fields, ModelConfig& config) {
  MlaConfig mla;
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "q_lora_rank", kLatentMax, &mla.query_rank));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "kv_lora_rank", kLatentMax, &mla.latent));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "qk_nope_head_dim", kHeadDimMax / 2, &mla.nope_dim));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "qk_rope_head_dim", kHeadDimMax / 2, &mla.rope_dim));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "v_head_dim", kHeadDimMax, &mla.value_dim));
  config.mla = mla;
  // transformers writes head_dim too; it is the rotated part's, and sometimes another's.
  config.head_dim = mla.nope_dim + mla.rope_dim;
  config.kv_heads = config.heads;
  int kv_heads = config.heads;
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "num_key_value_heads", kHeadsMax, &kv_heads));
  if (kv_heads != config.heads) {
    return fields.Error("num_key_value_heads", absl::StrCat("(", kv_heads, ") is not num_attention_heads (",
                                                            config.heads, "), as latent attention has it"));
  }
  return absl::OkStatus();
}

Status ReadScoring(const JsonFields& fields, const Defaults& defaults, MoeConfig& moe) {
  SLUICE_ASSIGN_OR_RETURN(const auto scoring, fields.String("scoring_func"));
  const std::string name = scoring.value_or(defaults.scoring);
  if (name != "softmax" && name != "sigmoid") {
    return fields.Error("scoring_func", absl::StrCat("is \"", name, "\", softmax and sigmoid are supported"));
  }
  moe.scoring = name == "softmax" ? MoeScoring::kSoftmax : MoeScoring::kSigmoid;
  return absl::OkStatus();
}

Status ReadChoice(const JsonFields& fields, const Defaults& defaults, MoeConfig& moe) {
  SLUICE_ASSIGN_OR_RETURN(const auto method, fields.String("topk_method"));
  const std::string name = method.value_or(defaults.choice);
  if (name == "greedy") {
    moe.choice = MoeChoice::kGreedy;
  } else if (name == "group_limited_greedy") {
    moe.choice = MoeChoice::kGroupLimitedGreedy;
  } else if (name == "noaux_tc") {
    moe.choice = MoeChoice::kNoAuxTc;
  } else {
    return fields.Error("topk_method",
                        absl::StrCat("is \"", name, "\", greedy, group_limited_greedy and noaux_tc are supported"));
  }
  // Greedy choice looks at no groups, whatever the file says of them.
  if (moe.choice == MoeChoice::kGreedy) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "n_group", kExpertsMax, &moe.groups));
  return RequiredInt(fields, "topk_group", kExpertsMax, &moe.groups_kept);
}

Status ReadMoe(const JsonFields& fields, const Defaults& defaults, ModelConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(const auto dense, fields.Int("first_k_dense_replace", 0, kLayersMax));
  MoeConfig moe;
  moe.dense_layers = static_cast<int>(dense.value_or(0));
  SLUICE_ASSIGN_OR_RETURN(const auto frequency, fields.Int("moe_layer_freq", 0, kLayersMax));
  if (frequency.value_or(1) != 1) {
    return fields.Error("moe_layer_freq", absl::StrCat("is ", *frequency, ", only 1 is supported"));
  }
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "n_routed_experts", kExpertsMax, &moe.experts));
  if (moe.experts == 0 || moe.dense_layers >= config.layers) return absl::OkStatus();  // no layer is sparse
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "num_experts_per_tok", kExpertsMax, &moe.experts_per_token));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "moe_intermediate_size", kHiddenSizeMax * 16, &moe.intermediate_size));
  SLUICE_ASSIGN_OR_RETURN(const auto shared, fields.Int("n_shared_experts", 0, kExpertsMax));
  moe.shared_experts = static_cast<int>(shared.value_or(0));
  SLUICE_RETURN_IF_ERROR(ReadScoring(fields, defaults, moe));
  SLUICE_RETURN_IF_ERROR(ReadChoice(fields, defaults, moe));
  SLUICE_ASSIGN_OR_RETURN(const auto normalise, fields.Bool("norm_topk_prob"));
  moe.normalise = normalise.value_or(defaults.normalise);
  moe.scale = defaults.scale;
  SLUICE_RETURN_IF_ERROR(OptionalNumber(fields, "routed_scaling_factor", &moe.scale));
  // V2's code normalises or scales, V3's does both. Where there is one expert, V2 has nothing to normalise.
  if (moe.choice != MoeChoice::kNoAuxTc && moe.experts_per_token == 1) moe.normalise = false;
  if (moe.normalise && moe.choice != MoeChoice::kNoAuxTc) moe.scale = 1.0;
  config.moe = moe;
  return absl::OkStatus();
}

// Weights in FP8 with a scale for each block, which is what MappedCheckpoint looks for.
Status CheckQuantization(const JsonFields& fields) {
  SLUICE_ASSIGN_OR_RETURN(const auto quantization, fields.Object("quantization_config"));
  if (!quantization) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto method, quantization->String("quant_method"));
  if (method.value_or("") != "fp8") {
    return quantization->Error("quant_method", absl::StrCat("is \"", method.value_or(""), "\", only fp8 is supported"));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto format, quantization->String("fmt"));
  if (format.value_or("e4m3") != "e4m3") {
    return quantization->Error("fmt", absl::StrCat("is \"", *format, "\", only e4m3 is supported"));
  }
  const nlohmann::json* block = quantization->Find("weight_block_size");
  if (block == nullptr || *block != nlohmann::json::array({kF8BlockSize, kF8BlockSize})) {
    return quantization->Error("weight_block_size",
                               absl::StrCat("is not [", kF8BlockSize, ", ", kF8BlockSize, "], which is needed"));
  }
  return absl::OkStatus();
}

Status Read(const JsonFields& fields, const Defaults& defaults, ModelConfig& config) {
  SLUICE_RETURN_IF_ERROR(ReadMla(fields, config));
  SLUICE_RETURN_IF_ERROR(ReadMoe(fields, defaults, config));
  SLUICE_RETURN_IF_ERROR(CheckQuantization(fields));
  SLUICE_ASSIGN_OR_RETURN(const auto further, fields.Int("num_nextn_predict_layers", 0, kLayersMax));
  config.prediction_layers = static_cast<int>(further.value_or(0));
  return absl::OkStatus();
}

}  // namespace

Status ReadDeepSeekV2(const JsonFields& fields, ModelConfig& config) {
  config.rope.pairing = RopePairing::kInterleaved;
  return Read(fields, {"softmax", "greedy", false, 1.0}, config);
}

Status ReadDeepSeekV3(const JsonFields& fields, ModelConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(const auto interleaved, fields.Bool("rope_interleave"));
  config.rope.pairing = interleaved.value_or(true) ? RopePairing::kInterleaved : RopePairing::kHalf;
  return Read(fields, {"sigmoid", "noaux_tc", true, 2.5}, config);
}

}  // namespace sluice
