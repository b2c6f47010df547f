// A model on disk, whatever its format: config, tensors by role, tokenizer data. Read-only and mapped; owned by
// whoever loads the model, for as long as a view into it is used. Thread-safe after opening.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "common/status.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

// Tensors by what they do. Shapes with H hidden, I intermediate, V vocabulary, d head_dim, of MLA and mixtures with the
// names of config.h: see Shape().
enum class Weight : uint8_t {
  kTokenEmbedding,   // [V, H]
  kOutputNorm,       // [H]
  kOutput,           // [V, H]; the embedding itself where tied
  kAttentionNorm,    // [H], per layer from here on
  kQuery,            // [heads d, H]; rows in the checkpoint's own order (see RopePairing)
  kKey,              // [kv_heads d, H]
  kValue,            // [kv_heads d, H]
  kAttentionOutput,  // [H, heads d], in MLA [H, heads value_dim]
  kMlpNorm,          // [H]
  kGate,             // [I, H]
  kUp,               // [I, H]
  kDown,             // [H, I]
  kQueryDown,        // [query_rank, H]; where the query is two products
  kQueryDownNorm,    // [query_rank]
  kQueryUp,          // [heads d, query_rank]; instead of kQuery
  kLatentDown,       // [latent + rope_dim, H]
  kLatentNorm,       // [latent]
  kLatentUp,         // [heads (nope_dim + value_dim), latent]: of each head the key's rows, then the value's
  kRouter,           // [experts, H]
  kRouterBias,       // [experts]
  kSharedGate,       // [shared_experts I, H], I an expert's
  kSharedUp,         // likewise
  kSharedDown,       // [H, shared_experts I]
  kExpertGate,       // [I, H], of each expert
  kExpertUp,         // likewise
  kExpertDown,       // [H, I]
};
inline constexpr int kWeightCount = 26;
std::string_view Name(Weight weight);  // "token_embedding", "query"
bool IsPerLayer(Weight weight);
bool IsVector(Weight weight);
struct WeightShape {
  int64_t rows = 0;  // 1 for vectors
  int64_t cols = 0;
};
WeightShape Shape(Weight weight, const ModelConfig& config);
// How many of it the layer has, or the model where it is not per layer: 0, 1, or one for each expert.
int CountOf(Weight weight, const ModelConfig& config, int layer);

struct TensorInfo {
  std::string name;            // as the file spells it
  std::vector<int64_t> shape;  // outermost first
  std::string type;            // "Q4_1", "BF16"
  size_t bytes = 0;
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerData& tokenizer() const = 0;
  virtual std::string_view format() const = 0;  // "gguf", "huggingface"
  virtual std::vector<TensorInfo> tensors() const = 0;

  // The tensor as [rows, cols] in its own type, mapped. NotFound names the missing tensor, InvalidArgument names both
  // shapes. `layer` is ignored for weights that are not per layer, `expert` for those that no expert has of its own.
  virtual StatusOr<ConstMatrixView> Tensor(Weight weight, int layer, int expert) const = 0;
  StatusOr<ConstMatrixView> Tensor(Weight weight, int layer) const { return Tensor(weight, layer, 0); }

  // Gives the memory behind a view back to the system until it is touched again.
  virtual void DropResident(const ConstMatrixView& view) const = 0;

  // SHA-256, hex, over config, tensor names, types, shapes and a sample of each tensor's bytes. Different where two
  // models are, unless they differ in bytes alone that are not in the sample.
  virtual const std::string& model_hash() const = 0;
};

// Opens a GGUF file or a Hugging Face folder, whichever `path` is, and checks every size, offset and shape before use.
// All tensors of the architecture must be there. Errors are sentences that name the file and the field.
StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path);

}  // namespace sluice
