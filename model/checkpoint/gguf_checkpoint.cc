#include "model/checkpoint/gguf_file.h"
#include "model/checkpoint/gguf_model.h"
#include "model/checkpoint/mapped_checkpoint.h"

namespace sluice {

StatusOr<CheckpointParts> ReadGguf(const std::string& path) {
  CheckpointParts parts;
  parts.format = "gguf";
  parts.path = path;
  SLUICE_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
  SLUICE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(mapped->bytes(), path));
  SLUICE_ASSIGN_OR_RETURN(parts.config, ReadGgufConfig(file));
  SLUICE_ASSIGN_OR_RETURN(parts.tokenizer, ReadGgufTokenizer(file, parts.config));
  parts.tensors = file.tensors();
  parts.tensor_name = GgufTensorName;
  parts.ignorable = [](std::string_view name, const ModelConfig&) { return name == "rope_freqs.weight"; };
  parts.files.push_back(std::move(mapped));
  return parts;
}

}  // namespace sluice
