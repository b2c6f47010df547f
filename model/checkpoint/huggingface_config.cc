#include "model/checkpoint/huggingface_config.h"

#include <algorithm>
#include <filesystem>

#include "model/checkpoint/json_text.h"

namespace sluice {
namespace {

Status RequiredInt(const JsonFields& fields, std::string_view field, int max, int* out) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Int(field, 1, max));
  if (!value) return fields.Error(field, "is missing");
  *out = static_cast<int>(*value);
  return absl::OkStatus();
}

Status OptionalInt(const JsonFields& fields, std::string_view field, int max, int* out) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Int(field, 1, max));
  if (value) *out = static_cast<int>(*value);
  return absl::OkStatus();
}

Status OptionalNumber(const JsonFields& fields, std::string_view field, double* out) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Number(field));
  if (value) *out = *value;
  return absl::OkStatus();
}

// Defaults are those of transformers' LlamaConfig, which leaves out of the file what has its default value.
Status ReadSizes(const JsonFields& fields, ModelConfig& config) {
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "vocab_size", kVocabSizeMax, &config.vocab_size));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "hidden_size", kHiddenSizeMax, &config.hidden_size));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "intermediate_size", kHiddenSizeMax * 16, &config.intermediate_size));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "num_hidden_layers", kLayersMax, &config.layers));
  SLUICE_RETURN_IF_ERROR(RequiredInt(fields, "num_attention_heads", kHeadsMax, &config.heads));
  config.kv_heads = config.heads;
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "num_key_value_heads", kHeadsMax, &config.kv_heads));
  config.head_dim = config.hidden_size / config.heads;
  if (fields.Find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
    return fields.Error("hidden_size", absl::StrCat("(", config.hidden_size,
                                                    ") is not a multiple of num_attention_heads (", config.heads, ")"));
  }
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "head_dim", kHeadDimMax, &config.head_dim));
  config.context_tokens_max = 2048;
  SLUICE_RETURN_IF_ERROR(OptionalInt(fields, "max_position_embeddings", kContextTokensMax, &config.context_tokens_max));
  config.rms_norm_eps = 1e-6;
  SLUICE_RETURN_IF_ERROR(OptionalNumber(fields, "rms_norm_eps", &config.rms_norm_eps));
  SLUICE_ASSIGN_OR_RETURN(const auto tied, fields.Bool("tie_word_embeddings"));
  config.tied_embeddings = tied.value_or(false);
  return absl::OkStatus();
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
  if (fields.Find("quantization_config") != nullptr) {
    return fields.Error("quantization_config", "is present, quantised safetensors are not supported");
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

Status CheckArchitecture(const JsonFields& fields) {
  SLUICE_ASSIGN_OR_RETURN(const auto type, fields.String("model_type"));
  if (!type) return fields.Error("model_type", "is missing");
  if (*type != "llama") {
    return fields.Error("model_type", absl::StrCat("\"", *type, "\" is not supported, only \"llama\" is"));
  }
  const nlohmann::json* architectures = fields.Find("architectures");
  if (architectures == nullptr) return absl::OkStatus();
  const nlohmann::json wanted = nlohmann::json::array({"LlamaForCausalLM"});
  if (*architectures != wanted) {
    return fields.Error("architectures", "is not [\"LlamaForCausalLM\"], which alone is supported for llama");
  }
  return absl::OkStatus();
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
  SLUICE_RETURN_IF_ERROR(CheckArchitecture(fields));
  HuggingFaceConfig result;
  ModelConfig& config = result.model;
  config.architecture = "llama";
  config.name = FolderName(folder);
  SLUICE_RETURN_IF_ERROR(ReadSizes(fields, config));
  SLUICE_RETURN_IF_ERROR(CheckFeatures(fields));
  SLUICE_RETURN_IF_ERROR(ReadRope(fields, config));
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

std::string HuggingFaceTensorName(Weight weight, int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
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
  }
  return "";
}

}  // namespace sluice
