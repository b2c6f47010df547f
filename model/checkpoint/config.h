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

// Multi-head latent attention (DeepSeek-V2 report, section 2.1): keys and values of all heads are products of one
// latent per token, and behind each head's key stands a rotated part that all heads share.
struct MlaConfig {
  int query_rank = 0;  // q_lora_rank; 0 where the query is one product
  int latent = 0;      // kv_lora_rank
  int nope_dim = 0;    // of a head's query and key: the part that is not rotated
  int rope_dim = 0;    // and the part that is
  int value_dim = 0;   // of a head
};

enum class MoeScoring { kSoftmax, kSigmoid };  // of the router's logits, over all experts

// Which experts a token goes to: the best of all; the best of the groups with the best expert; or, with the router's
// bias added, the best of the groups whose two best experts have the largest sum. transformers: topk_method.
enum class MoeChoice { kGreedy, kGroupLimitedGreedy, kNoAuxTc };

// A mixture of experts instead of one MLP, in every layer from dense_layers on.
struct MoeConfig {
  int experts = 0;
  int experts_per_token = 0;
  int shared_experts = 0;     // every token goes to them; stored as one MLP of so many times the size
  int intermediate_size = 0;  // of one expert
  int dense_layers = 0;
  int groups = 1;
  int groups_kept = 1;
  MoeScoring scoring = MoeScoring::kSoftmax;
  MoeChoice choice = MoeChoice::kGreedy;
  bool normalise = false;  // weights of a token's experts sum to 1 before they are scaled
  double scale = 1.0;
};

struct ModelConfig {
  std::string architecture;  // "llama", "deepseek_v2", "deepseek_v3"
  std::string name;
  int vocab_size = 0;
  int hidden_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // of queries and keys; in MLA nope_dim + rope_dim
  int intermediate_size = 0;
  int context_tokens_max = 0;
  double rms_norm_eps = 1e-5;
  bool tied_embeddings = false;
  RopeConfig rope;
  std::optional<MlaConfig> mla;
  std::optional<MoeConfig> moe;
  int prediction_layers = 0;     // further layers in the file that predict later tokens (V3's MTP); not used
  bool synthetic = false;        // random weights, made for measurements
  std::vector<TokenId> eos_ids;  // where generation ends (generation_config.json and the tokenizer's own)

  int rotary_dim() const { return mla ? mla->rope_dim : head_dim; }
  int value_dim() const { return mla ? mla->value_dim : head_dim; }
  bool sparse(int layer) const { return moe.has_value() && layer >= moe->dense_layers; }
  // Of the MLP that every token of the layer goes through; 0 where there is none.
  int mlp_size(int layer) const {
    return sparse(layer) ? moe->shared_experts * moe->intermediate_size : intermediate_size;
  }
};

// What is larger is taken for a broken file: sizes computed from values within these limits fit 64 bits.
inline constexpr int kVocabSizeMax = 1 << 22;
inline constexpr int kHiddenSizeMax = 1 << 17;
inline constexpr int kLayersMax = 1024;
inline constexpr int kHeadsMax = 1024;
inline constexpr int kHeadDimMax = 1024;
inline constexpr int kLatentMax = 1 << 12;  // a row of KV, the shared key behind it, is recoded through 8192 floats
inline constexpr int kExpertsMax = 1024;
inline constexpr int kContextTokensMax = 1 << 30;

// Every contradiction at once, with both values: heads not a multiple of kv_heads, odd head_dim, sizes of zero.
Status Validate(const ModelConfig& config);

}  // namespace sluice
