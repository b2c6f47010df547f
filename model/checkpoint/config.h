// A model's shape and constants, read from its checkpoint and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace sluice {

enum class RopePairing { kHalf, kInterleaved };  // rotates (i, i + d/2) or (2i, 2i + 1); data of the checkpoint
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopePairing pairing = RopePairing::kHalf;
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                     // linear, llama3, yarn
  int original_context_tokens = 0;         // llama3, yarn
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor;  // yarn: multiplies cos and sin; default mscale ratio, see transformers
  std::optional<double> mscale;            // yarn
  std::optional<double> mscale_all_dim;    // yarn
  std::vector<float> frequency_factors;    // GGUF rope_freqs.weight: divides frequency i; empty is all ones
};

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;
  int vocab_size = 0;
  int hidden_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int intermediate_size = 0;
  int context_tokens_max = 0;
  double rms_norm_eps = 1e-5;
  bool tied_embeddings = false;
  RopeConfig rope;
  std::vector<TokenId> eos_ids;  // where generation ends (generation_config.json and the tokenizer's own)
};

// What is larger is taken for a broken file: sizes computed from values within these limits fit 64 bits.
inline constexpr int kVocabSizeMax = 1 << 22;
inline constexpr int kHiddenSizeMax = 1 << 17;
inline constexpr int kLayersMax = 1024;
inline constexpr int kHeadsMax = 1024;
inline constexpr int kHeadDimMax = 1024;
inline constexpr int kContextTokensMax = 1 << 30;

// Every contradiction at once, with both values: heads not a multiple of kv_heads, odd head_dim, sizes of zero.
Status Validate(const ModelConfig& config);

}  // namespace sluice
