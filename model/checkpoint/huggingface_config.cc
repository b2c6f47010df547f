#include "model/checkpoint/huggingface_config.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "model/checkpoint/huggingface_deepseek.h"
#include "model/checkpoint/json_text.h"

namespace sluice {
namespace {

// Defaults are those of transformers' configurations, which leave out of the file what has its default value.
Status ReadSizes(const JsonFields& fields, ModelConfig& config) {
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "vocab_size", kVocabSizeMax, &config.vocab_size));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "hidden_size", kHiddenSizeMax, &config.hidden_size));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "intermediate_size", kHiddenSizeMax * 16, &config.intermediate_size));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "num_hidden_layers", kLayersMax, &config.layers));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "num_attention_heads", kHeadsMax, &config.heads));
  config.context_tokens_max = 2048;
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "max_position_embeddings", kContextTokensMax, &config.context_tokens_max));
  config.rms_norm_eps = 1e-6;
  SLUICE_RETURN_IF_ERROR(OptionalNumber(fields, "rms_norm_eps", &config.rms_norm_eps));
  SLUICE_ASSIGN_OR_RETURN(const auto tied, fields.Bool("tie_word_embeddings"));
  config.tied_embeddings = tied.value_or(false);
  SLUICE_ASSIGN_OR_RETURN(const auto synthetic, fields.Bool(kSyntheticField));
  config.synthetic = synthetic.value_or(false);
  return absl::OkStatus();
}

Status ReadHeads(const JsonFields& fields, ModelConfig& config) {
  config.kv_heads = config.heads;
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "num_key_value_heads", kHeadsMax, &config.kv_heads));
  config.head_dim = config.hidden_size / config.heads;
  if (fields.Find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
    return fields.Error("hidden_size", absl::StrCat("(", config.hidden_size,
                                                    ") is not a multiple of num_attention_heads (", config.heads, ")"));
  }
  return OptionalInt(fields, "head_dim", kHeadDimMax, &config.head_dim);
}

// What would change the result without changing any tensor's shape.
Status CheckFeatures(const JsonFields& fields) {
  for (const char* field : {"attention_bias", "mlp_bias"}) {
    SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Bool(field));
    if (value.value_or(false)) return fields.Error(field, "is true, biases are not supported");
  }
  SLUICE_ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  if (activation.value_or("silu") != "silu") {
    return fields.Error("hidden_act", absl::StrCat("is \"", *activation, "\", only \"silu\" is supported"));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto rotated, fields.Number("partial_rotary_factor"));
  if (rotated.value_or(1.0) != 1.0) {
    return fields.Error("partial_rotary_factor", absl::StrCat("is ", *rotated, ", only 1 is supported"));
  }
  return absl::OkStatus();
}

Status ReadYarn(const JsonFields& scaling, RopeConfig& rope) {
  SLUICE_RETURN_IF_ERROR(OptionalNumber(scaling, "beta_fast", &rope.beta_fast));
  SLUICE_RETURN_IF_ERROR(OptionalNumber(scaling, "beta_slow", &rope.beta_slow));
  SLUICE_ASSIGN_OR_RETURN(rope.attention_factor, scaling.Number("attention_factor"));
  SLUICE_ASSIGN_OR_RETURN(rope.mscale, scaling.Number("mscale"));
  SLUICE_ASSIGN_OR_RETURN(rope.mscale_all_dim, scaling.Number("mscale_all_dim"));
  SLUICE_ASSIGN_OR_RETURN(const auto truncate, scaling.Bool("truncate"));
  if (!truncate.value_or(true)) return scaling.Error("truncate", "is false, only true is supported");
  return absl::OkStatus();
}

Status ReadLlama3(const JsonFields& scaling, RopeConfig& rope) {
  SLUICE_RETURN_IF_ERROR(OptionalNumber(scaling, "low_freq_factor", &rope.low_freq_factor));
  SLUICE_RETURN_IF_ERROR(OptionalNumber(scaling, "high_freq_factor", &rope.high_freq_factor));
  if (scaling.Find("original_max_position_embeddings") == nullptr) {
    return scaling.Error("original_max_position_embeddings", "is missing");
  }
  return absl::OkStatus();
}

// `scaling` is rope_parameters or rope_scaling.
Status ReadScaling(const JsonFields& scaling, const ModelConfig& config, RopeConfig& rope) {
  SLUICE_ASSIGN_OR_RETURN(const auto new_name, scaling.String("rope_type"));
  SLUICE_ASSIGN_OR_RETURN(const auto old_name, scaling.String("type"));
  const std::string type = new_name ? *new_name : old_name.value_or("default");
  if (type == "default") return absl::OkStatus();
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
  } else {
    return scaling.Error("rope_type",
                         absl::StrCat("\"", type, "\" is not supported; default, linear, llama3 and yarn are"));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto factor, scaling.Number("factor"));
  if (!factor) return scaling.Error("factor", "is missing");
  rope.factor = *factor;
  if (rope.scaling == RopeScaling::kLinear) return absl::OkStatus();
  rope.original_context_tokens = config.context_tokens_max;
  SLUICE_RETURN_IF_ERROR(
      OptionalInt(scaling, "original_max_position_embeddings", kContextTokensMax, &rope.original_context_tokens));
  return rope.scaling == RopeScaling::kLlama3 ? ReadLlama3(scaling, rope) : ReadYarn(scaling, rope);
}

Status ReadRope(const JsonFields& fields, ModelConfig& config) {
  config.rope.pairing = RopePairing::kHalf;
  SLUICE_RETURN_IF_ERROR(OptionalNumber(fields, "rope_theta", &config.rope.theta));
  SLUICE_ASSIGN_OR_RETURN(const auto parameters, fields.Object("rope_parameters"));
  if (parameters) {
    SLUICE_RETURN_IF_ERROR(OptionalNumber(*parameters, "rope_theta", &config.rope.theta));
    SLUICE_ASSIGN_OR_RETURN(const auto rotated, parameters->Number("partial_rotary_factor"));
    if (rotated.value_or(1.0) != 1.0) {
      return parameters->Error("partial_rotary_factor", absl::StrCat("is ", *rotated, ", only 1 is supported"));
    }
    return ReadScaling(*parameters, config, config.rope);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto scaling, fields.Object("rope_scaling"));
  return scaling ? ReadScaling(*scaling, config, config.rope) : absl::OkStatus();
}

// eos_token_id: absent, one id, or a list of them.
Status AddEosIds(const JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* value = fields.Find("eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= config.vocab_size) {
      return fields.Error("eos_token_id", absl::StrCat("is not a token id or a list of ids below vocab_size (",
                                                       config.vocab_size, ")"));
    }
    const TokenId token = static_cast<TokenId>(id.get<int64_t>());
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), token) == config.eos_ids.end()) {
      config.eos_ids.push_back(token);
    }
  }
  return absl::OkStatus();
}

struct Architecture {
  std::string_view type;
  std::string_view name;
  Status (*read)(const JsonFields& fields, ModelConfig& config);  // heads, and what other architectures do not have
};

Status ReadLlama(const JsonFields& fields, ModelConfig& config) {
  if (fields.Find("quantization_config") != nullptr) {
    return fields.Error("quantization_config", "is present, quantised safetensors of a llama are not supported");
  }
  return ReadHeads(fields, config);
}

constexpr Architecture kArchitectures[] = {{"llama", "LlamaForCausalLM", ReadLlama},
                                           {"deepseek_v2", "DeepseekV2ForCausalLM", ReadDeepSeekV2},
                                           {"deepseek_v3", "DeepseekV3ForCausalLM", ReadDeepSeekV3}};

StatusOr<const Architecture*> FindArchitecture(const JsonFields& fields) {
  SLUICE_ASSIGN_OR_RETURN(const auto type, fields.String("model_type"));
  if (!type) return fields.Error("model_type", "is missing");
  const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                  [&type](const Architecture& a) { return a.type == *type; });
  if (found == std::end(kArchitectures)) {
    const auto append = [](std::string* out, const Architecture& a) { out->append(a.type); };
    return fields.Error("model_type", absl::StrCat("\"", *type, "\" is not supported, there are ",
                                                   absl::StrJoin(kArchitectures, ", ", append)));
  }
  const nlohmann::json* architectures = fields.Find("architectures");
  if (architectures != nullptr && *architectures != nlohmann::json::array({std::string(found->name)})) {
    return fields.Error("architectures", absl::StrCat("is not [\"", std::string(found->name),
                                                      "\"], which alone is supported for ", *type));
  }
  return found;
}

// config.json's own _name_or_path is where its author had it on disk.
std::string FolderName(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path.filename() : path.parent_path().filename();
}

}  // namespace

StatusOr<HuggingFaceConfig> ReadHuggingFaceConfig(std::string_view config_text, std::string_view generation_text,
                                                  const std::string& folder) {
  const std::string config_name = absl::StrCat(folder, "/config.json");
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(config_text, config_name));
  const JsonFields fields(&object, config_name);
  SLUICE_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(fields));
  HuggingFaceConfig result;
  ModelConfig& config = result.model;
  config.architecture = std::string(architecture->type);
  config.name = FolderName(folder);
  SLUICE_RETURN_IF_ERROR(ReadSizes(fields, config));
  SLUICE_RETURN_IF_ERROR(CheckFeatures(fields));
  SLUICE_RETURN_IF_ERROR(ReadRope(fields, config));
  SLUICE_RETURN_IF_ERROR(architecture->read(fields, config));
  SLUICE_RETURN_IF_ERROR(AddEosIds(fields, config));
  SLUICE_ASSIGN_OR_RETURN(const auto bos_id, fields.Int("bos_token_id", 0, config.vocab_size - 1));
  if (bos_id) result.bos_id = static_cast<TokenId>(*bos_id);
  if (!generation_text.empty()) {
    const std::string generation_name = absl::StrCat(folder, "/generation_config.json");
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json generation, ParseJsonObject(generation_text, generation_name));
    SLUICE_RETURN_IF_ERROR(AddEosIds(JsonFields(&generation, generation_name), config));
  }
  Status status = Validate(config);
  if (!status.ok()) return WithContext(status, config_name);
  return result;
}

std::string HuggingFaceTensorName(Weight weight, int layer, int expert) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const auto of_expert = [&](const char* name) { return absl::StrCat(prefix, "mlp.experts.", expert, name); };
  switch (weight) {
    case Weight::kTokenEmbedding:
      return "model.embed_tokens.weight";
    case Weight::kOutputNorm:
      return "model.norm.weight";
    case Weight::kOutput:
      return "lm_head.weight";
    case Weight::kAttentionNorm:
      return prefix + "input_layernorm.weight";
    case Weight::kQuery:
      return prefix + "self_attn.q_proj.weight";
    case Weight::kKey:
      return prefix + "self_attn.k_proj.weight";
    case Weight::kValue:
      return prefix + "self_attn.v_proj.weight";
    case Weight::kAttentionOutput:
      return prefix + "self_attn.o_proj.weight";
    case Weight::kMlpNorm:
      return prefix + "post_attention_layernorm.weight";
    case Weight::kGate:
      return prefix + "mlp.gate_proj.weight";
    case Weight::kUp:
      return prefix + "mlp.up_proj.weight";
    case Weight::kDown:
      return prefix + "mlp.down_proj.weight";
    case Weight::kQueryDown:
      return prefix + "self_attn.q_a_proj.weight";
    case Weight::kQueryDownNorm:
      return prefix + "self_attn.q_a_layernorm.weight";
    case Weight::kQueryUp:
      return prefix + "self_attn.q_b_proj.weight";
    case Weight::kLatentDown:
      return prefix + "self_attn.kv_a_proj_with_mqa.weight";
    case Weight::kLatentNorm:
      return prefix + "self_attn.kv_a_layernorm.weight";
    case Weight::kLatentUp:
      return prefix + "self_attn.kv_b_proj.weight";
    case Weight::kRouter:
      return prefix + "mlp.gate.weight";
    case Weight::kRouterBias:
      return prefix + "mlp.gate.e_score_correction_bias";
    case Weight::kSharedGate:
      return prefix + "mlp.shared_experts.gate_proj.weight";
    case Weight::kSharedUp:
      return prefix + "mlp.shared_experts.up_proj.weight";
    case Weight::kSharedDown:
      return prefix + "mlp.shared_experts.down_proj.weight";
    case Weight::kExpertGate:
      return of_expert(".gate_proj.weight");
    case Weight::kExpertUp:
      return of_expert(".up_proj.weight");
    case Weight::kExpertDown:
      return of_expert(".down_proj.weight");
  }
  return "";
}

}  // namespace sluice
