// `sluice models show`: what a checkpoint holds; `sluice models synth`: one with random weights, to measure with.
#include <iomanip>
#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/subcommand.h"
#include "model/checkpoint/checkpoint.h"
#include "model/kv_layout.h"
#include "model/synthetic_model.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::ordered_json;

struct TypeTotal {
  size_t tensors = 0;
  size_t bytes = 0;
};

std::map<std::string, TypeTotal> TotalsByType(const std::vector<TensorInfo>& tensors) {
  std::map<std::string, TypeTotal> totals;
  for (const TensorInfo& tensor : tensors) {
    TypeTotal& total = totals[tensor.type];
    ++total.tensors;
    total.bytes += tensor.bytes;
  }
  return totals;
}

size_t TotalBytes(const std::vector<TensorInfo>& tensors) {
  size_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

std::string ScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
  }
  return "";
}

// By codec, of those that can hold the model's rows.
std::vector<std::pair<std::string, size_t>> KvBytesPerToken(const ModelConfig& config) {
  const KvLayout layout = KvLayout::Of(config);
  std::vector<std::pair<std::string, size_t>> bytes;
  for (const KvCodecInfo& info : KvCodecs()) {
    if (CheckCodec(layout, info.codec).ok()) bytes.emplace_back(info.name, Bytes(layout, info.codec, 1));
  }
  return bytes;
}

std::string Mebibytes(size_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); }

std::string ChoiceName(MoeChoice choice) {
  switch (choice) {
    case MoeChoice::kGreedy:
      return "greedy";
    case MoeChoice::kGroupLimitedGreedy:
      return "group_limited_greedy";
    case MoeChoice::kNoAuxTc:
      return "noaux_tc";
  }
  return "";
}

ordered_json MlaJson(const MlaConfig& mla) {
  return {{"query_rank", mla.query_rank},
          {"latent", mla.latent},
          {"nope_dim", mla.nope_dim},
          {"rope_dim", mla.rope_dim},
          {"value_dim", mla.value_dim}};
}

ordered_json MoeJson(const MoeConfig& moe) {
  return {{"experts", moe.experts},
          {"experts_per_token", moe.experts_per_token},
          {"shared_experts", moe.shared_experts},
          {"intermediate_size", moe.intermediate_size},
          {"dense_layers", moe.dense_layers},
          {"groups", moe.groups},
          {"groups_kept", moe.groups_kept},
          {"choice", ChoiceName(moe.choice)}};
}

ordered_json ConfigJson(const ModelConfig& config) {
  return {{"layers", config.layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"context_tokens_max", config.context_tokens_max},
          {"rms_norm_eps", config.rms_norm_eps},
          {"tied_embeddings", config.tied_embeddings},
          {"rope",
           {{"theta", config.rope.theta},
            {"pairing", std::string(Name(config.rope.pairing))},
            {"scaling", ScalingName(config.rope.scaling)},
            {"factor", config.rope.factor},
            {"has_frequency_factors", !config.rope.frequency_factors.empty()}}},
          {"mla", config.mla ? MlaJson(*config.mla) : ordered_json(nullptr)},
          {"moe", config.moe ? MoeJson(*config.moe) : ordered_json(nullptr)},
          {"eos_ids", config.eos_ids}};
}

ordered_json TokenizerJson(const TokenizerData& data) {
  const bool known = data.kind == TokenizerKind::kByteLevelBpe;
  ordered_json json = {{"kind", known ? ordered_json("byte-level BPE") : ordered_json(nullptr)},
                       {"tokens", data.tokens.size()},
                       {"merges", data.merges.size()},
                       {"has_chat_template", !data.chat_template.empty()}};
  if (!known) json["unsupported"] = data.unsupported;
  return json;
}

ordered_json CheckpointJson(const Checkpoint& checkpoint, const std::string& path) {
  const std::vector<TensorInfo> tensors = checkpoint.tensors();
  const ModelConfig& config = checkpoint.config();
  ordered_json by_type = ordered_json::object();
  for (const auto& [type, total] : TotalsByType(tensors)) {
    by_type[type] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  ordered_json kv = ordered_json::object();
  for (const auto& [codec, bytes] : KvBytesPerToken(config)) kv[codec] = bytes;
  ordered_json list = ordered_json::array();
  for (const TensorInfo& tensor : tensors) {
    list.push_back({{"name", tensor.name}, {"type", tensor.type}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  }
  return {{"path", path},
          {"format", checkpoint.format()},
          {"architecture", config.architecture},
          {"name", config.name},
          {"synthetic", config.synthetic},
          {"model_hash", checkpoint.model_hash()},
          {"config", ConfigJson(config)},
          {"tokenizer", TokenizerJson(checkpoint.tokenizer())},
          {"weights_bytes", TotalBytes(tensors)},
          {"weights_by_type", by_type},
          {"kv_bytes_per_token", kv},
          {"tensors", list}};
}

void PrintTensors(const std::vector<TensorInfo>& tensors, std::ostream& out) {
  for (const TensorInfo& tensor : tensors) {
    out << "  " << std::left << std::setw(44) << tensor.name << std::setw(6) << tensor.type << std::setw(16)
        << absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]") << std::right << std::setw(12) << tensor.bytes
        << "\n";
  }
}

std::string KvHeads(const ModelConfig& config) {
  if (!config.mla) return absl::StrCat(config.kv_heads, " KV heads of ", config.head_dim);
  return absl::StrCat("a latent of ", config.mla->latent, " and a shared key of ", config.mla->rope_dim, " (keys of ",
                      config.head_dim, ", values of ", config.mla->value_dim, ")");
}

std::string Experts(const MoeConfig& moe) {
  return absl::StrCat(moe.experts, " of ", moe.intermediate_size, " from layer ", moe.dense_layers, " on, ",
                      moe.experts_per_token, " a token and ", moe.shared_experts, " shared, chosen by ",
                      ChoiceName(moe.choice));
}

void PrintCheckpoint(const Checkpoint& checkpoint, const std::string& path, std::ostream& out) {
  const std::vector<TensorInfo> tensors = checkpoint.tensors();
  const ModelConfig& config = checkpoint.config();
  const TokenizerData& tokenizer = checkpoint.tokenizer();
  const auto line = [&](const std::string& name, const std::string& value) {
    out << std::left << std::setw(14) << name << value << "\n";
  };
  line("file", absl::StrCat(path, " (", std::string(checkpoint.format()), ")"));
  line("architecture", absl::StrCat(config.architecture, config.name.empty() ? "" : ", ", config.name));
  if (config.synthetic) line("synthetic", "random weights, made to be measured with: its answers mean nothing");
  line("shape", absl::StrCat(config.layers, " layers, hidden ", config.hidden_size, ", intermediate ",
                             config.intermediate_size, ", ", config.heads, " heads, ", KvHeads(config)));
  if (config.moe) line("experts", Experts(*config.moe));
  line("vocabulary", absl::StrCat(config.vocab_size, config.tied_embeddings ? ", head tied to the embedding" : ""));
  line("context", absl::StrCat(config.context_tokens_max, " tokens"));
  line("rope", absl::StrCat("theta ", config.rope.theta, ", pairs ", std::string(Name(config.rope.pairing)),
                            ", scaling ", ScalingName(config.rope.scaling),
                            config.rope.scaling == RopeScaling::kNone ? "" : absl::StrCat(" by ", config.rope.factor),
                            config.rope.frequency_factors.empty() ? "" : ", frequency factors"));
  line("end tokens", absl::StrJoin(config.eos_ids, ", "));
  line("tokenizer", tokenizer.kind == TokenizerKind::kNone
                        ? absl::StrCat("none: ", tokenizer.unsupported)
                        : absl::StrCat("byte-level BPE, ", tokenizer.merges.size(), " merges, ",
                                       tokenizer.chat_template.empty() ? "no" : "with", " chat template"));
  std::vector<std::string> parts;
  for (const auto& [type, total] : TotalsByType(tensors)) {
    parts.push_back(absl::StrCat(type, " ", Mebibytes(total.bytes), " in ", total.tensors));
  }
  line("weights", absl::StrCat(Mebibytes(TotalBytes(tensors)), ": ", absl::StrJoin(parts, ", ")));
  std::vector<std::string> kv;
  for (const auto& [codec, bytes] : KvBytesPerToken(config)) kv.push_back(absl::StrCat(bytes, " in ", codec));
  line("KV bytes", absl::StrCat("a token ", absl::StrJoin(kv, ", ")));
  line("model hash", checkpoint.model_hash());
  out << "tensors\n";
  PrintTensors(tensors, out);
}

class ModelsCommand final : public Subcommand {
 public:
  explicit ModelsCommand(CLI::App* app) : Subcommand(app) {
    app->require_subcommand(1);
    CLI::App* show = app->add_subcommand("show", "Show architecture, shapes, types and sizes of a model");
    show->add_option("PATH", path_, "GGUF file or Hugging Face folder")->required();
    show->add_flag("--json", json_, "As JSON");
    synth_ = app->add_subcommand("synth", "Write a model with random weights, to measure transfer and memory with");
    synth_->add_option("--out", out_, "Folder to make")->required()->type_name("DIR");
    synth_
        ->add_option("--like", synthetic_.like,
                     absl::StrCat("Whose attention: ", absl::StrJoin(SyntheticModelNames(), ", ")))
        ->capture_default_str();
    synth_->add_option("--layers", synthetic_.layers, "0 takes that model's")->capture_default_str();
    synth_->add_option("--hidden", synthetic_.hidden_size, "Channels between layers")->capture_default_str();
    synth_->add_option("--mlp", synthetic_.intermediate_size, "Channels within a layer's MLP")->capture_default_str();
    synth_->add_option("--vocab", synthetic_.vocab_size, "Tokens; 258 of them stand for text")->capture_default_str();
    synth_->add_option("--seed", synthetic_.seed, "The same one writes the same bytes")->capture_default_str();
  }

  Status Run(Streams streams) override {
    if (synth_->parsed()) return WriteSyntheticModel(synthetic_, out_);
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(path_));
    if (json_) {
      streams.out << CheckpointJson(*checkpoint, path_).dump(2, ' ', false, ordered_json::error_handler_t::replace)
                  << "\n";
    } else {
      PrintCheckpoint(*checkpoint, path_, streams.out);
    }
    return absl::OkStatus();
  }

 private:
  std::string path_;
  bool json_ = false;
  CLI::App* synth_ = nullptr;
  SyntheticModelOptions synthetic_;
  std::string out_;
};

}  // namespace

std::unique_ptr<Subcommand> MakeModelsCommand(CLI::App& parent) {
  return std::make_unique<ModelsCommand>(
      parent.add_subcommand("models", "Look at models on disk, or make one to measure with"));
}

}  // namespace sluice
