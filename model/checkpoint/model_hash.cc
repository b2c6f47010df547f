#include "model/checkpoint/model_hash.h"

#include <openssl/evp.h>

#include <bit>

#include "absl/strings/escaping.h"

namespace sluice {
namespace {

constexpr size_t kWholeBytesMax = 16384;
constexpr size_t kSamples = 8;
constexpr size_t kSampleBytes = 1024;

}  // namespace

struct ModelHash::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

ModelHash::ModelHash() : context_(std::make_unique<Context>()) {
  SLUICE_CHECK(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) == 1);
  Text("sluice model 2");
}

ModelHash::~ModelHash() = default;

void ModelHash::Bytes(const void* data, size_t bytes) {
  SLUICE_CHECK(EVP_DigestUpdate(context_->digest, data, bytes) == 1);
}

void ModelHash::Number(int64_t value) { Bytes(&value, sizeof(value)); }

void ModelHash::Real(double value) { Number(std::bit_cast<int64_t>(value)); }

void ModelHash::Text(std::string_view text) {
  Number(static_cast<int64_t>(text.size()));
  Bytes(text.data(), text.size());
}

void ModelHash::Add(const ModelConfig& config) {
  Text(config.architecture);
  for (const int value :
       {config.vocab_size, config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim,
        config.intermediate_size, config.context_tokens_max, static_cast<int>(config.tied_embeddings)}) {
    Number(value);
  }
  Real(config.rms_norm_eps);
  const RopeConfig& rope = config.rope;
  for (const int value :
       {static_cast<int>(rope.pairing), static_cast<int>(rope.scaling), rope.original_context_tokens}) {
    Number(value);
  }
  for (const double value :
       {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast, rope.beta_slow}) {
    Real(value);
  }
  for (const std::optional<double>& value : {rope.attention_factor, rope.mscale, rope.mscale_all_dim}) {
    Number(value.has_value());
    Real(value.value_or(0));
  }
  Number(static_cast<int64_t>(rope.frequency_factors.size()));
  for (const float factor : rope.frequency_factors) Real(factor);
  Number(config.mla.has_value());
  const MlaConfig mla = config.mla.value_or(MlaConfig());
  for (const int value : {mla.query_rank, mla.latent, mla.nope_dim, mla.rope_dim, mla.value_dim}) Number(value);
  Number(config.moe.has_value());
  const MoeConfig moe = config.moe.value_or(MoeConfig());
  for (const int value : {moe.experts, moe.experts_per_token, moe.shared_experts, moe.intermediate_size,
                          moe.dense_layers, moe.groups, moe.groups_kept, static_cast<int>(moe.scoring),
                          static_cast<int>(moe.choice), static_cast<int>(moe.normalise)}) {
    Number(value);
  }
  Real(moe.scale);
  Number(static_cast<int64_t>(config.eos_ids.size()));
  for (const TokenId id : config.eos_ids) Number(id);
}

void ModelHash::Add(const TokenizerData& tokenizer) {
  Number(static_cast<int64_t>(tokenizer.kind));
  Number(static_cast<int64_t>(tokenizer.tokens.size()));
  for (const std::string& token : tokenizer.tokens) Text(token);
  Number(static_cast<int64_t>(tokenizer.added.size()));
  for (const AddedToken& added : tokenizer.added) {
    Number(added.id);
    Text(added.text);
    Number(added.special);
  }
}

void ModelHash::Add(const StoredTensor& tensor) {
  Text(tensor.name);
  Text(tensor.type_name);
  Number(static_cast<int64_t>(tensor.shape.size()));
  for (const int64_t extent : tensor.shape) Number(extent);
  Number(static_cast<int64_t>(tensor.bytes.size()));
  if (tensor.bytes.size() <= kWholeBytesMax) {
    Bytes(tensor.bytes.data(), tensor.bytes.size());
    return;
  }
  const size_t last = tensor.bytes.size() - kSampleBytes;
  for (size_t i = 0; i < kSamples; ++i) Bytes(tensor.bytes.data() + last / (kSamples - 1) * i, kSampleBytes);
  Bytes(tensor.bytes.data() + last, kSampleBytes);
}

std::string ModelHash::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  SLUICE_CHECK(EVP_DigestFinal_ex(context_->digest, digest, &length) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

}  // namespace sluice
