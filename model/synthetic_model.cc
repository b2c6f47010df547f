#include "model/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/rng.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/huggingface_config.h"
#include "model/text/byte_alphabet.h"
#include "model/text/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice {

namespace {

using nlohmann::ordered_json;

constexpr int kBytes = 256;
constexpr int kBeginId = kBytes;
constexpr int kEndId = kBytes + 1;

// What config.json says of the attention, and how deep the model is.
struct Likeness {
  std::string name;
  int layers;
  ordered_json (*attention)();
};

// https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite, config.json.
ordered_json V2LiteAttention() {
  return {{"architectures", {"DeepseekV2ForCausalLM"}},
          {"model_type", "deepseek_v2"},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 16},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"max_position_embeddings", 163840},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 40},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 0.707},
            {"mscale_all_dim", 0.707}}}};
}

const std::vector<Likeness>& Likenesses() {
  static const std::vector<Likeness> likenesses = {{"v2-lite", 27, V2LiteAttention}};
  return likenesses;
}

Status Check(const SyntheticModelOptions& options) {
  struct Bound {
    const char* option;
    int value;
    int min;
    int max;
  };
  const Bound bounds[] = {{"layers", options.layers, 0, kLayersMax},
                          {"hidden", options.hidden_size, 1, kHiddenSizeMax},
                          {"mlp", options.intermediate_size, 1, kHiddenSizeMax},
                          {"vocab", options.vocab_size, kEndId + 1, kVocabSizeMax}};
  for (const Bound& b : bounds) {
    if (b.value >= b.min && b.value <= b.max) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(b.option, " is ", b.value, ", ", b.min, " to ", b.max, " are possible"));
  }
  return absl::OkStatus();
}

StatusOr<const Likeness*> FindLikeness(const std::string& name) {
  for (const Likeness& likeness : Likenesses()) {
    if (likeness.name == name) return &likeness;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no model like \"", name, "\", there are ", absl::StrJoin(SyntheticModelNames(), ", ")));
}

ordered_json ConfigJson(const SyntheticModelOptions& options, const Likeness& likeness) {
  ordered_json config = likeness.attention();
  const int layers = options.layers == 0 ? likeness.layers : options.layers;
  config[kSyntheticField] = true;
  config["hidden_size"] = options.hidden_size;
  config["intermediate_size"] = options.intermediate_size;
  config["num_hidden_layers"] = layers;
  config["first_k_dense_replace"] = layers;  // no experts: an MLP in every layer
  config["vocab_size"] = options.vocab_size;
  config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = false;
  config["torch_dtype"] = "bfloat16";
  config["bos_token_id"] = kBeginId;
  config["eos_token_id"] = kEndId;
  return config;
}

// A token for each byte, begin and end; the ids above stand for nothing.
ordered_json TokenizerJson() {
  ordered_json vocabulary = ordered_json::object();
  for (int byte = 0; byte < kBytes; ++byte) {
    std::string piece;
    AppendUtf8(ByteStandIn(static_cast<unsigned char>(byte)), piece);
    vocabulary[piece] = byte;
  }
  const ordered_json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", kBeginId}, {"content", "<s>"}, {"special", true}},
            {{"id", kEndId}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", ordered_json::array()}}}};
}

ordered_json TokenizerConfigJson() {
  return {{"bos_token", "<s>"},
          {"eos_token", "</s>"},
          {"chat_template",
           "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"}};
}

struct SyntheticTensor {
  std::string name;
  Weight weight;
  WeightShape shape;
};

std::vector<SyntheticTensor> TensorsOf(const ModelConfig& config) {
  std::vector<SyntheticTensor> tensors;
  for (int w = 0; w < kWeightCount; ++w) {
    const auto weight = static_cast<Weight>(w);
    for (int layer = 0; layer < (IsPerLayer(weight) ? config.layers : 1); ++layer) {
      for (int expert = 0; expert < CountOf(weight, config, layer); ++expert) {
        tensors.push_back({HuggingFaceTensorName(weight, layer, expert), weight, Shape(weight, config)});
      }
    }
  }
  return tensors;
}

std::string Header(const std::vector<SyntheticTensor>& tensors) {
  ordered_json header = ordered_json::object();
  int64_t at = 0;
  for (const SyntheticTensor& t : tensors) {
    const int64_t bytes = t.shape.rows * t.shape.cols * 2;
    ordered_json shape = {t.shape.rows, t.shape.cols};
    if (IsVector(t.weight)) shape = ordered_json::array({t.shape.cols});
    header[t.name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// Uniform: norms around 1, embedding rows of unit variance, products that keep the size of their input.
void WriteValues(const SyntheticTensor& tensor, uint64_t key, std::ostream& out) {
  const double center = IsVector(tensor.weight) ? 1.0 : 0.0;
  const double reach = IsVector(tensor.weight) ? 0.2
                       : tensor.weight == Weight::kTokenEmbedding
                           ? std::sqrt(3.0)
                           : std::sqrt(3.0 / static_cast<double>(tensor.shape.cols));
  std::vector<uint16_t> row(static_cast<size_t>(tensor.shape.cols));
  Rng rng(key);
  for (int64_t r = 0; r < tensor.shape.rows; ++r) {
    for (uint16_t& bits : row) bits = F32ToBf16(static_cast<float>(center + (rng.Uniform() * 2 - 1) * reach));
    out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * sizeof(uint16_t)));
  }
}

Status WriteText(const std::string& path, const ordered_json& json) {
  std::ofstream out(path, std::ios::binary);
  out << json.dump(1) << "\n";
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

Status WriteWeights(const std::string& path, const ModelConfig& config, uint64_t seed) {
  const std::vector<SyntheticTensor> tensors = TensorsOf(config);
  const std::string header = Header(tensors);
  std::ofstream out(path, std::ios::binary);
  const uint64_t header_bytes = header.size();
  out.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  out << header;
  for (size_t i = 0; i < tensors.size(); ++i) WriteValues(tensors[i], RandomBits(seed, i), out);
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": cannot be written (is there room?)"));
}

}  // namespace

absl::Span<const std::string> SyntheticModelNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Likeness& likeness : Likenesses()) list.push_back(likeness.name);
    return list;
  }();
  return names;
}

Status WriteSyntheticModel(const SyntheticModelOptions& options, const std::string& folder) {
  SLUICE_RETURN_IF_ERROR(Check(options));
  SLUICE_ASSIGN_OR_RETURN(const Likeness* likeness, FindLikeness(options.like));
  const ordered_json config_json = ConfigJson(options, *likeness);
  SLUICE_ASSIGN_OR_RETURN(const HuggingFaceConfig config, ReadHuggingFaceConfig(config_json.dump(), "", folder));
  std::error_code error;
  if (std::filesystem::exists(folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " is there already"));
  }
  if (!std::filesystem::create_directories(folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": cannot be made: ", error.message()));
  }
  const auto write = [&]() -> Status {
    SLUICE_RETURN_IF_ERROR(WriteText(folder + "/config.json", config_json));
    SLUICE_RETURN_IF_ERROR(WriteText(folder + "/tokenizer.json", TokenizerJson()));
    SLUICE_RETURN_IF_ERROR(WriteText(folder + "/tokenizer_config.json", TokenizerConfigJson()));
    return WriteWeights(folder + "/model.safetensors", config.model, options.seed);
  };
  Status status = write();
  if (!status.ok()) std::filesystem::remove_all(folder, error);
  return status;
}

}  // namespace sluice
