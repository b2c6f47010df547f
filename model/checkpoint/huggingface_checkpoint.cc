#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "model/checkpoint/huggingface_config.h"
#include "model/checkpoint/huggingface_tokenizer.h"
#include "model/checkpoint/json_text.h"
#include "model/checkpoint/mapped_checkpoint.h"
#include "model/checkpoint/safetensors_file.h"

namespace sluice {
namespace {

constexpr size_t kConfigBytesMax = size_t{1} << 22;
constexpr size_t kTokenizerBytesMax = size_t{1} << 27;
constexpr size_t kIndexBytesMax = size_t{1} << 26;

// Empty where there is no such file.
StatusOr<std::string> OptionalText(const std::string& path, size_t bytes_max) {
  StatusOr<std::string> text = ReadTextFile(path, bytes_max);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

// Tensor name to file name, from model.safetensors.index.json. File names stay inside the folder.
StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kIndexBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, path));
  const JsonFields fields(&object, path);
  SLUICE_ASSIGN_OR_RETURN(const auto weight_map, fields.Object("weight_map"));
  if (!weight_map) return fields.Error("weight_map", "is missing");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : weight_map->object()->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || !absl::EndsWith(name, ".safetensors")) {
      return fields.Error("weight_map", absl::StrCat("gives tensor ", tensor,
                                                     " something else than the name of a "
                                                     ".safetensors file"));
    }
    files.emplace(tensor, name);
  }
  return files;
}

Status AddFile(const std::string& path, CheckpointParts& parts) {
  SLUICE_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
  SLUICE_ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors, ParseSafetensors(mapped->bytes(), path));
  std::move(tensors.begin(), tensors.end(), std::back_inserter(parts.tensors));
  parts.files.push_back(std::move(mapped));
  return absl::OkStatus();
}

Status AddIndexedFiles(const std::string& folder, const std::string& index_path, CheckpointParts& parts) {
  SLUICE_ASSIGN_OR_RETURN(const auto index, ReadIndex(index_path));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  std::set<std::string> found;
  for (const std::string& name : names) {
    const size_t begin = parts.tensors.size();
    SLUICE_RETURN_IF_ERROR(AddFile(absl::StrCat(folder, "/", name), parts));
    for (size_t i = begin; i < parts.tensors.size(); ++i) {
      const std::string& tensor = parts.tensors[i].name;
      const auto entry = index.find(tensor);
      if (entry == index.end() || entry->second != name) {
        return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor ", tensor, " is in ", name, " but listed ",
                                                       entry == index.end() ? "nowhere" : entry->second));
      }
      found.insert(tensor);
    }
  }
  for (const auto& [tensor, file] : index) {
    if (found.count(tensor) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor ", tensor, " is not in ", file));
  }
  return absl::OkStatus();
}

// Layers behind the model's own predict tokens further ahead; DeepSeek-V3's file has one.
bool IsOfPredictionLayer(std::string_view name, const ModelConfig& config) {
  for (int i = 0; i < config.prediction_layers; ++i) {
    if (name.starts_with(absl::StrCat("model.layers.", config.layers + i, "."))) return true;
  }
  return false;
}

bool Ignorable(std::string_view name, const ModelConfig& config) {
  if (IsOfPredictionLayer(name, config)) return true;
  // Old transformers stored the rotation frequencies, which the configuration fixes.
  if (absl::EndsWith(absl::string_view(name.data(), name.size()), ".rotary_emb.inv_freq")) return true;
  return config.tied_embeddings && name == HuggingFaceTensorName(Weight::kOutput, 0, 0);
}

}  // namespace

StatusOr<CheckpointParts> ReadHuggingFace(const std::string& folder) {
  CheckpointParts parts;
  parts.format = "huggingface";
  parts.path = folder;
  parts.tensor_name = HuggingFaceTensorName;
  parts.ignorable = Ignorable;
  SLUICE_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(folder + "/config.json", kConfigBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const std::string generation_text,
                          OptionalText(folder + "/generation_config.json", kConfigBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const HuggingFaceConfig config, ReadHuggingFaceConfig(config_text, generation_text, folder));
  parts.config = config.model;

  const std::string index_path = folder + "/model.safetensors.index.json";
  if (std::filesystem::exists(index_path)) {
    SLUICE_RETURN_IF_ERROR(AddIndexedFiles(folder, index_path, parts));
  } else {
    SLUICE_RETURN_IF_ERROR(AddFile(folder + "/model.safetensors", parts));
  }

  SLUICE_ASSIGN_OR_RETURN(const std::string tokenizer, OptionalText(folder + "/tokenizer.json", kTokenizerBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const std::string tokenizer_config,
                          OptionalText(folder + "/tokenizer_config.json", kConfigBytesMax));
  SLUICE_ASSIGN_OR_RETURN(const std::string chat_template,
                          OptionalText(folder + "/chat_template.jinja", kConfigBytesMax));
  SLUICE_ASSIGN_OR_RETURN(parts.tokenizer, ReadHuggingFaceTokenizer({tokenizer, tokenizer_config, chat_template},
                                                                    parts.config.vocab_size, config.bos_id, folder));
  return parts;
}

}  // namespace sluice
