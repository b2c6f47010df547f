#include "model/checkpoint/mapped_checkpoint.h"

#include <algorithm>
#include <set>

#include "model/checkpoint/model_hash.h"

namespace sluice {
namespace {

// DeepSeek-V3 keeps a scale for each block of an FP8 weight beside it, by which codes are multiplied.
constexpr absl::string_view kScaleSuffix = "_scale_inv";

}  // namespace

StatusOr<std::unique_ptr<Checkpoint>> MappedCheckpoint::Create(CheckpointParts parts) {
  std::unique_ptr<MappedCheckpoint> checkpoint(new MappedCheckpoint(std::move(parts)));
  const CheckpointParts& found = checkpoint->parts_;
  for (const StoredTensor& tensor : found.tensors) {
    if (checkpoint->by_name_.emplace(tensor.name, &tensor).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(found.path, ": tensor ", tensor.name, " stands there twice"));
  }
  SLUICE_RETURN_IF_ERROR(checkpoint->CheckTensors());
  ModelHash hash;
  hash.Add(found.config);
  hash.Add(found.tokenizer);
  // By name, so that a different order of the same tensors, or of their files, is the same model.
  std::vector<const StoredTensor*> sorted;
  for (const StoredTensor& tensor : found.tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const StoredTensor* tensor : sorted) {
    hash.Add(*tensor);
    // One by one, so that reading samples never leaves much of a mapped file resident.
    checkpoint->Drop(tensor->bytes);
  }
  for (const auto& file : found.files) checkpoint->Drop(file->bytes());
  checkpoint->model_hash_ = hash.Hex();
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Status MappedCheckpoint::CheckTensors() const {
  const ModelConfig& config = parts_.config;
  std::set<std::string> used;
  const auto use = [&](Weight weight, int layer, int expert) -> Status {
    SLUICE_ASSIGN_OR_RETURN(const ConstMatrixView view, Tensor(weight, layer, expert));
    const std::string name = parts_.tensor_name(weight, layer, expert);
    used.insert(name);
    if (view.block_scales != nullptr) used.insert(absl::StrCat(name, kScaleSuffix));
    return absl::OkStatus();
  };
  for (int w = 0; w < kWeightCount; ++w) {
    const Weight weight = static_cast<Weight>(w);
    if (weight == Weight::kOutput && config.tied_embeddings) continue;
    const int layers = IsPerLayer(weight) ? config.layers : 1;
    for (int layer = 0; layer < layers; ++layer) {
      const int count = CountOf(weight, config, layer);
      for (int expert = 0; expert < count; ++expert) SLUICE_RETURN_IF_ERROR(use(weight, layer, expert));
    }
  }
  for (const StoredTensor& tensor : parts_.tensors) {
    if (used.count(tensor.name) > 0 || parts_.ignorable(tensor.name, config)) continue;
    return absl::InvalidArgumentError(absl::StrCat(parts_.path, ": tensor ", tensor.name, " is not part of a ",
                                                   config.architecture, " model of ", config.layers,
                                                   " layers; ignoring it would change the result"));
  }
  return absl::OkStatus();
}

std::vector<TensorInfo> MappedCheckpoint::tensors() const {
  std::vector<TensorInfo> infos;
  for (const StoredTensor& tensor : parts_.tensors) {
    infos.push_back({tensor.name, tensor.shape, tensor.type_name, tensor.bytes.size()});
  }
  return infos;
}

StatusOr<ConstMatrixView> MappedCheckpoint::Tensor(Weight weight, int layer, int expert) const {
  if (weight == Weight::kOutput && parts_.config.tied_embeddings) weight = Weight::kTokenEmbedding;
  const std::string name = parts_.tensor_name(weight, layer, expert);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    return absl::NotFoundError(absl::StrCat(parts_.path, ": tensor ", name, " is missing"));
  }
  const StoredTensor& tensor = *found->second;
  const WeightShape wanted = Shape(weight, parts_.config);
  const std::vector<int64_t> shape =
      IsVector(weight) ? std::vector<int64_t>{wanted.cols} : std::vector<int64_t>{wanted.rows, wanted.cols};
  if (tensor.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(parts_.path, ": tensor ", name, " has shape ",
                                                   ShapeText(tensor.shape), ", the configuration asks for ",
                                                   ShapeText(shape)));
  }
  const bool embedding = weight == Weight::kTokenEmbedding || weight == Weight::kOutput;
  if (!tensor.type || (*tensor.type == DType::kF8E4M3 && (embedding || IsVector(weight)))) {
    const bool other_f8 = !tensor.type && tensor.type_name.rfind("F8_", 0) == 0;
    return absl::InvalidArgumentError(absl::StrCat(parts_.path, ": tensor ", name, " is of type ", tensor.type_name,
                                                   ", which cannot be ", tensor.type ? "this weight's" : "a weight's",
                                                   other_f8 ? "; of 8 bits F8_E4M3 is supported" : ""));
  }
  ConstMatrixView view{tensor.bytes.data(), *tensor.type, wanted.rows, wanted.cols,
                       RowBytes(*tensor.type, static_cast<size_t>(wanted.cols))};
  if (view.type == DType::kF8E4M3) {
    SLUICE_ASSIGN_OR_RETURN(view.block_scales, BlockScales(tensor));
  }
  return view;
}

// The scales of an FP8 tensor, one for each block. Their number and type are checked, their values are not.
StatusOr<const float*> MappedCheckpoint::BlockScales(const StoredTensor& tensor) const {
  const std::string name = absl::StrCat(tensor.name, kScaleSuffix);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    return absl::NotFoundError(absl::StrCat(parts_.path, ": tensor ", name, " is missing, ", tensor.name, " is ",
                                            tensor.type_name, " and means nothing without it"));
  }
  const StoredTensor& scales = *found->second;
  const auto blocks = [](int64_t extent) { return (extent + kF8BlockSize - 1) / kF8BlockSize; };
  const std::vector<int64_t> shape = {blocks(tensor.shape[0]), blocks(tensor.shape[1])};
  if (scales.shape != shape || scales.type != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        parts_.path, ": tensor ", name, " is ", scales.type_name, " ", ShapeText(scales.shape), ", blocks of ",
        kF8BlockSize, " of a shape of ", ShapeText(tensor.shape), " need F32 ", ShapeText(shape)));
  }
  return reinterpret_cast<const float*>(scales.bytes.data());
}

void MappedCheckpoint::DropResident(const ConstMatrixView& view) const {
  Drop({static_cast<const std::byte*>(view.data), view.bytes()});
}

void MappedCheckpoint::Drop(absl::Span<const std::byte> bytes) const {
  for (const auto& file : parts_.files) {
    const auto whole = file->bytes();
    if (bytes.data() >= whole.data() && bytes.data() + bytes.size() <= whole.data() + whole.size()) {
      file->DropResident(bytes.data(), bytes.size());
    }
  }
}

}  // namespace sluice
