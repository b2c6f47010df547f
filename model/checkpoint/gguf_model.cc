#include "model/checkpoint/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "model/checkpoint/pre_tokenizer.h"

namespace sluice {
namespace {

constexpr std::string_view kRopeFrequencies = "rope_freqs.weight";
constexpr int64_t kTokenTypeControl = 3;
constexpr int64_t kTokenTypeUserDefined = 4;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

StatusOr<int> RequiredInt(const GgufFile& file, std::string_view key, int min, int max) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t value, file.Int(key, min, max));
  return static_cast<int>(value);
}

StatusOr<int> IntOr(const GgufFile& file, std::string_view key, int min, int max, int otherwise) {
  return file.Has(key) ? RequiredInt(file, key, min, max) : StatusOr<int>(otherwise);
}

StatusOr<double> FloatOr(const GgufFile& file, std::string_view key, double otherwise) {
  return file.Has(key) ? file.Float(key) : StatusOr<double>(otherwise);
}

StatusOr<std::string> StringOr(const GgufFile& file, std::string_view key, std::string_view otherwise) {
  if (!file.Has(key)) return std::string(otherwise);
  SLUICE_ASSIGN_OR_RETURN(const std::string_view value, file.String(key));
  return std::string(value);
}

Status ReadSizes(const GgufFile& file, ModelConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(config.layers, RequiredInt(file, "llama.block_count", 1, kLayersMax));
  SLUICE_ASSIGN_OR_RETURN(config.context_tokens_max, RequiredInt(file, "llama.context_length", 1, kContextTokensMax));
  SLUICE_ASSIGN_OR_RETURN(config.hidden_size, RequiredInt(file, "llama.embedding_length", 1, kHiddenSizeMax));
  SLUICE_ASSIGN_OR_RETURN(config.intermediate_size,
                          RequiredInt(file, "llama.feed_forward_length", 1, kHiddenSizeMax * 16));
  SLUICE_ASSIGN_OR_RETURN(config.heads, RequiredInt(file, "llama.attention.head_count", 1, kHeadsMax));
  SLUICE_ASSIGN_OR_RETURN(config.kv_heads, IntOr(file, "llama.attention.head_count_kv", 1, kHeadsMax, config.heads));
  SLUICE_ASSIGN_OR_RETURN(config.head_dim,
                          IntOr(file, "llama.attention.key_length", 1, kHeadDimMax, config.hidden_size / config.heads));
  if (!file.Has("llama.attention.key_length") && config.hidden_size % config.heads != 0) {
    return file.Error("llama.embedding_length (", config.hidden_size,
                      ") is not a multiple of llama.attention.head_count (", config.heads, ")");
  }
  SLUICE_ASSIGN_OR_RETURN(config.rms_norm_eps, file.Float("llama.attention.layer_norm_rms_epsilon"));
  return absl::OkStatus();
}

// What would change the result without changing any tensor's shape.
Status CheckFeatures(const GgufFile& file, const ModelConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(const int value_length,
                          IntOr(file, "llama.attention.value_length", 1, kHeadDimMax, config.head_dim));
  if (value_length != config.head_dim) {
    return file.Error("llama.attention.value_length (", value_length, ") differs from the key length (",
                      config.head_dim, "), which is not supported");
  }
  SLUICE_ASSIGN_OR_RETURN(const int rotated,
                          IntOr(file, "llama.rope.dimension_count", 1, kHeadDimMax, config.head_dim));
  if (rotated != config.head_dim) {
    return file.Error("llama.rope.dimension_count (", rotated, ") differs from the head's ", config.head_dim,
                      " dimensions, partial rotation is not supported");
  }
  SLUICE_ASSIGN_OR_RETURN(const int experts, IntOr(file, "llama.expert_count", 0, 1 << 20, 0));
  if (experts > 0) return file.Error("llama.expert_count is ", experts, ", mixtures of experts are not supported");
  for (const char* key : {"llama.attention.scale", "llama.logit_scale", "llama.embedding_scale", "llama.residual_scale",
                          "llama.attention.sliding_window"}) {
    if (file.Has(key)) return file.Error("metadata ", key, " is not supported");
  }
  return absl::OkStatus();
}

Status ReadYarn(const GgufFile& file, RopeConfig& rope) {
  SLUICE_ASSIGN_OR_RETURN(rope.beta_fast, FloatOr(file, "llama.rope.scaling.yarn_beta_fast", rope.beta_fast));
  SLUICE_ASSIGN_OR_RETURN(rope.beta_slow, FloatOr(file, "llama.rope.scaling.yarn_beta_slow", rope.beta_slow));
  SLUICE_ASSIGN_OR_RETURN(const double attention, FloatOr(file, "llama.rope.scaling.attn_factor", 1.0));
  SLUICE_ASSIGN_OR_RETURN(const double yarn_attention, FloatOr(file, "llama.rope.scaling.yarn_attn_factor", 1.0));
  SLUICE_ASSIGN_OR_RETURN(const double extension, FloatOr(file, "llama.rope.scaling.yarn_ext_factor", 1.0));
  if (extension != 1.0) {
    return file.Error("llama.rope.scaling.yarn_ext_factor is ", extension, ", only 1 is supported");
  }
  // GGUF's factors come on top of YaRN's own 0.1 ln s + 1 (Peng et al. 2023, section 3.4).
  if (attention * yarn_attention != 1.0 && rope.factor > 0) {
    rope.attention_factor = attention * yarn_attention * (0.1 * std::log(std::max(rope.factor, 1.0)) + 1.0);
  }
  return absl::OkStatus();
}

Status ReadRopeScaling(const GgufFile& file, const ModelConfig& config, RopeConfig& rope) {
  const bool has_factor = file.Has("llama.rope.scaling.factor");
  SLUICE_ASSIGN_OR_RETURN(const double old_factor, FloatOr(file, "llama.rope.scale_linear", 1.0));
  SLUICE_ASSIGN_OR_RETURN(rope.factor, FloatOr(file, "llama.rope.scaling.factor", old_factor));
  const std::string_view implied = has_factor || old_factor != 1.0 ? "linear" : "none";
  SLUICE_ASSIGN_OR_RETURN(const std::string type, StringOr(file, "llama.rope.scaling.type", implied));
  if (type == "none") {
    rope.factor = 1.0;
    return absl::OkStatus();
  }
  // Some writers put a factor of 0 where there is no scaling.
  if (rope.factor == 0.0) rope.factor = 1.0;
  if (type == "linear") {
    rope.scaling = rope.factor == 1.0 ? RopeScaling::kNone : RopeScaling::kLinear;
    return absl::OkStatus();
  }
  if (type != "yarn") {
    return file.Error("llama.rope.scaling.type \"", type, "\" is not supported; none, linear and yarn are");
  }
  rope.scaling = RopeScaling::kYarn;
  SLUICE_ASSIGN_OR_RETURN(rope.original_context_tokens, IntOr(file, "llama.rope.scaling.original_context_length", 1,
                                                              kContextTokensMax, config.context_tokens_max));
  return ReadYarn(file, rope);
}

Status ReadRopeFrequencies(const GgufFile& file, const ModelConfig& config, RopeConfig& rope) {
  const StoredTensor* tensor = file.FindTensor(kRopeFrequencies);
  if (tensor == nullptr) return absl::OkStatus();
  const std::vector<int64_t> wanted = {config.head_dim / 2};
  if (tensor->shape != wanted || tensor->type != DType::kF32) {
    return file.Error("tensor ", View(kRopeFrequencies), " is ", tensor->type_name, " ", ShapeText(tensor->shape),
                      ", F32 ", ShapeText(wanted), " is needed");
  }
  rope.frequency_factors.resize(static_cast<size_t>(config.head_dim / 2));
  std::memcpy(rope.frequency_factors.data(), tensor->bytes.data(), tensor->bytes.size());
  return absl::OkStatus();
}

Status ReadVocabularySize(const GgufFile& file, ModelConfig& config) {
  const std::string embedding = GgufTensorName(Weight::kTokenEmbedding, 0, 0);
  const StoredTensor* tensor = file.FindTensor(embedding);
  if (tensor == nullptr) return file.Error("tensor ", embedding, " is missing");
  if (tensor->shape.size() != 2 || tensor->shape[0] > kVocabSizeMax) {
    return file.Error("tensor ", embedding, " has shape ", ShapeText(tensor->shape), ", [1 to ", kVocabSizeMax, ", ",
                      config.hidden_size, "] is needed");
  }
  config.vocab_size = static_cast<int>(tensor->shape[0]);
  SLUICE_ASSIGN_OR_RETURN(const int declared, IntOr(file, "llama.vocab_size", 1, kVocabSizeMax, config.vocab_size));
  if (declared != config.vocab_size) {
    return file.Error("llama.vocab_size is ", declared, " but tensor ", embedding, " has ", config.vocab_size, " rows");
  }
  return absl::OkStatus();
}

StatusOr<std::optional<TokenId>> SpecialId(const GgufFile& file, std::string_view key, const ModelConfig& config) {
  if (!file.Has(key)) return std::optional<TokenId>();
  // Some writers put 2^32 - 1 where there is no such token.
  SLUICE_ASSIGN_OR_RETURN(const int64_t value, file.Int(key, -1, INT64_MAX));
  if (value == -1 || value == int64_t{0xFFFFFFFF}) return std::optional<TokenId>();
  SLUICE_ASSIGN_OR_RETURN(const int64_t id, file.Int(key, 0, config.vocab_size - 1));
  return std::optional<TokenId>(static_cast<TokenId>(id));
}

Status ReadTokens(const GgufFile& file, const ModelConfig& config, TokenizerData& data) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, file.Strings("tokenizer.ggml.tokens"));
  if (tokens.size() != static_cast<size_t>(config.vocab_size)) {
    return file.Error("tokenizer.ggml.tokens has ", tokens.size(), " entries but the embedding has ", config.vocab_size,
                      " rows");
  }
  data.tokens.assign(tokens.begin(), tokens.end());
  if (!file.Has("tokenizer.ggml.token_type")) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> types, file.Ints("tokenizer.ggml.token_type"));
  if (types.size() != tokens.size()) {
    return file.Error("tokenizer.ggml.token_type has ", types.size(), " entries for ", tokens.size(), " tokens");
  }
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] != kTokenTypeControl && types[id] != kTokenTypeUserDefined) continue;
    data.added.push_back(
        {.id = static_cast<TokenId>(id), .text = data.tokens[id], .special = types[id] == kTokenTypeControl});
  }
  return absl::OkStatus();
}

Status ReadMerges(const GgufFile& file, TokenizerData& data) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges, file.Strings("tokenizer.ggml.merges"));
  data.merges.reserve(merges.size());
  for (const std::string_view merge : merges) {
    // Byte-level pieces hold no plain space, so that the first one separates.
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size()) {
      return file.Error("tokenizer.ggml.merges entry ", data.merges.size(), " is not two pieces with a space between");
    }
    data.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return absl::OkStatus();
}

Status ReadByteLevelBpe(const GgufFile& file, TokenizerData& data) {
  if (!file.Has("tokenizer.ggml.pre")) {
    data.unsupported = "the file has no tokenizer.ggml.pre, which says how text is split before merging";
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string_view pre, file.String("tokenizer.ggml.pre"));
  std::optional<PreTokenizer> known = PreTokenizerByGgufName(pre);
  if (!known) {
    data.unsupported = absl::StrCat("tokenizer.ggml.pre \"", View(pre), "\" is not known");
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(ReadMerges(file, data));
  data.kind = TokenizerKind::kByteLevelBpe;
  data.split_patterns = std::move(known->split_patterns);
  data.nfc = known->nfc;
  data.ignore_merges = known->ignore_merges;
  data.add_bos = known->add_bos;
  return absl::OkStatus();
}

}  // namespace

StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view architecture, file.String("general.architecture"));
  if (architecture != "llama") {
    return file.Error("general.architecture \"", View(architecture), "\" is not supported, only \"llama\" is");
  }
  ModelConfig config;
  config.architecture = std::string(architecture);
  SLUICE_ASSIGN_OR_RETURN(config.name, StringOr(file, "general.name", ""));
  SLUICE_RETURN_IF_ERROR(ReadSizes(file, config));
  SLUICE_RETURN_IF_ERROR(CheckFeatures(file, config));
  SLUICE_RETURN_IF_ERROR(ReadVocabularySize(file, config));
  config.tied_embeddings = file.FindTensor(GgufTensorName(Weight::kOutput, 0, 0)) == nullptr;
  // Converters to GGUF reorder the rows of q and k for rotation of neighbours.
  config.rope.pairing = RopePairing::kInterleaved;
  SLUICE_ASSIGN_OR_RETURN(config.rope.theta, FloatOr(file, "llama.rope.freq_base", config.rope.theta));
  SLUICE_RETURN_IF_ERROR(ReadRopeScaling(file, config, config.rope));
  SLUICE_RETURN_IF_ERROR(ReadRopeFrequencies(file, config, config.rope));
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    SLUICE_ASSIGN_OR_RETURN(const std::optional<TokenId> id, SpecialId(file, key, config));
    if (id && std::find(config.eos_ids.begin(), config.eos_ids.end(), *id) == config.eos_ids.end()) {
      config.eos_ids.push_back(*id);
    }
  }
  Status status = Validate(config);
  if (!status.ok()) return file.Error(status.message());
  return config;
}

StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& file, const ModelConfig& config) {
  TokenizerData data;
  SLUICE_ASSIGN_OR_RETURN(data.chat_template, StringOr(file, "tokenizer.chat_template", ""));
  if (!file.Has("tokenizer.ggml.model") || !file.Has("tokenizer.ggml.tokens")) {
    data.unsupported = "the file has no tokenizer";
    return data;
  }
  SLUICE_RETURN_IF_ERROR(ReadTokens(file, config, data));
  SLUICE_ASSIGN_OR_RETURN(data.bos_id, SpecialId(file, "tokenizer.ggml.bos_token_id", config));
  SLUICE_ASSIGN_OR_RETURN(data.eos_id, SpecialId(file, "tokenizer.ggml.eos_token_id", config));
  SLUICE_ASSIGN_OR_RETURN(data.unk_id, SpecialId(file, "tokenizer.ggml.unknown_token_id", config));
  if (data.bos_id) data.bos_text = data.tokens[static_cast<size_t>(*data.bos_id)];
  if (data.eos_id) data.eos_text = data.tokens[static_cast<size_t>(*data.eos_id)];
  SLUICE_ASSIGN_OR_RETURN(const std::string_view model, file.String("tokenizer.ggml.model"));
  if (model == "gpt2") {
    SLUICE_RETURN_IF_ERROR(ReadByteLevelBpe(file, data));
  } else {
    data.unsupported =
        absl::StrCat("tokenizer.ggml.model \"", View(model), "\" is not supported, only \"gpt2\" (byte-level BPE) is");
  }
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    SLUICE_ASSIGN_OR_RETURN(data.add_bos, file.Bool("tokenizer.ggml.add_bos_token"));
  }
  if (!data.bos_id) data.add_bos = false;
  return data;
}

std::string GgufTensorName(Weight weight, int layer, int) {
  switch (weight) {
    case Weight::kTokenEmbedding:
      return "token_embd.weight";
    case Weight::kOutputNorm:
      return "output_norm.weight";
    case Weight::kOutput:
      return "output.weight";
    case Weight::kAttentionNorm:
      return absl::StrCat("blk.", layer, ".attn_norm.weight");
    case Weight::kQuery:
      return absl::StrCat("blk.", layer, ".attn_q.weight");
    case Weight::kKey:
      return absl::StrCat("blk.", layer, ".attn_k.weight");
    case Weight::kValue:
      return absl::StrCat("blk.", layer, ".attn_v.weight");
    case Weight::kAttentionOutput:
      return absl::StrCat("blk.", layer, ".attn_output.weight");
    case Weight::kMlpNorm:
      return absl::StrCat("blk.", layer, ".ffn_norm.weight");
    case Weight::kGate:
      return absl::StrCat("blk.", layer, ".ffn_gate.weight");
    case Weight::kUp:
      return absl::StrCat("blk.", layer, ".ffn_up.weight");
    case Weight::kDown:
      return absl::StrCat("blk.", layer, ".ffn_down.weight");
    default:  // no llama model has it
      return "";
  }
}

}  // namespace sluice
