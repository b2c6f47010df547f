// The part that every checkpoint format shares: mapped files, tensors by name, and the checks of the whole.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/mapped_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/stored_tensor.h"

namespace sluice {

// What a format's reader found. `tensors` point into `files`.
struct CheckpointParts {
  std::string format;
  std::string path;
  std::vector<std::unique_ptr<MappedFile>> files;
  ModelConfig config;
  TokenizerData tokenizer;
  std::vector<StoredTensor> tensors;
  std::string (*tensor_name)(Weight weight, int layer, int expert) = nullptr;
  // Tensors that carry nothing the model needs. Any other unused tensor is an error: it would silently change nothing.
  bool (*ignorable)(std::string_view name, const ModelConfig& config) = nullptr;
};

class MappedCheckpoint final : public Checkpoint {
 public:
  // Checks that every tensor of the architecture is there once, with its shape and a floating-point type.
  static StatusOr<std::unique_ptr<Checkpoint>> Create(CheckpointParts parts);

  const ModelConfig& config() const override { return parts_.config; }
  const TokenizerData& tokenizer() const override { return parts_.tokenizer; }
  std::string_view format() const override { return parts_.format; }
  std::vector<TensorInfo> tensors() const override;
  using Checkpoint::Tensor;
  StatusOr<ConstMatrixView> Tensor(Weight weight, int layer, int expert) const override;
  void DropResident(const ConstMatrixView& view) const override;
  const std::string& model_hash() const override { return model_hash_; }

 private:
  explicit MappedCheckpoint(CheckpointParts parts) : parts_(std::move(parts)) {}
  Status CheckTensors() const;
  StatusOr<const float*> BlockScales(const StoredTensor& tensor) const;
  void Drop(absl::Span<const std::byte> bytes) const;

  CheckpointParts parts_;
  std::unordered_map<std::string_view, const StoredTensor*> by_name_;
  std::string model_hash_;
};

// The two formats.
StatusOr<CheckpointParts> ReadGguf(const std::string& path);
StatusOr<CheckpointParts> ReadHuggingFace(const std::string& folder);

}  // namespace sluice
