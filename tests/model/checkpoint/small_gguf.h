// A complete llama GGUF of about 60 KB whose tensors hold zeros, for tests of what is accepted and what is refused.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/gguf_model.h"
#include "tests/model/checkpoint/gguf_writer.h"

namespace sluice {

inline ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 12;
  config.hidden_size = 64;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  return config;
}

inline void AddSmallSizes(GgufWriter& writer) {
  const ModelConfig config = SmallConfig();
  writer.String("general.architecture", "llama");
  writer.String("general.name", "small");
  writer.Uint32("llama.block_count", config.layers);
  writer.Uint32("llama.context_length", 128);
  writer.Uint32("llama.embedding_length", config.hidden_size);
  writer.Uint32("llama.feed_forward_length", config.intermediate_size);
  writer.Uint32("llama.attention.head_count", config.heads);
  writer.Uint32("llama.attention.head_count_kv", config.kv_heads);
  writer.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

inline void AddSmallTokenizer(GgufWriter& writer, const std::string& pre = "gpt-2") {
  writer.String("tokenizer.ggml.model", "gpt2");
  writer.String("tokenizer.ggml.pre", pre);
  writer.Strings("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b", "c", "ab", "abc", "d", "e", "f", "<x>", "Ġ"});
  writer.Int32s("tokenizer.ggml.token_type", {3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1});
  writer.Strings("tokenizer.ggml.merges", {"a b", "ab c"});
  writer.Uint32("tokenizer.ggml.bos_token_id", 0);
  writer.Uint32("tokenizer.ggml.eos_token_id", 1);
  writer.String("tokenizer.chat_template", "{{ messages }}");
}

inline GgufWriter::Tensor ZeroTensor(const std::string& name, std::vector<int64_t> shape, DType type = DType::kF32) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return {name, std::move(shape), GgufWriter::TypeNumber(type),
          std::string(RowBytes(type, static_cast<size_t>(elements)), '\0')};
}

inline void AddSmallTensors(GgufWriter& writer, DType type = DType::kQ8_0) {
  const ModelConfig config = SmallConfig();
  for (int w = 0; w < kWeightCount; ++w) {
    const auto weight = static_cast<Weight>(w);
    const WeightShape shape = Shape(weight, config);
    for (int layer = 0; layer < (IsPerLayer(weight) ? config.layers : 1); ++layer) {
      if (CountOf(weight, config, layer) == 0) continue;
      const std::string name = GgufTensorName(weight, layer, 0);
      writer.tensors.push_back(shape.rows == 1 ? ZeroTensor(name, {shape.cols})
                                               : ZeroTensor(name, {shape.rows, shape.cols}, type));
    }
  }
}

inline GgufWriter SmallGguf() {
  GgufWriter writer;
  AddSmallSizes(writer);
  AddSmallTokenizer(writer);
  AddSmallTensors(writer);
  return writer;
}

// A model of two layers whose first channel of V is 64 `weight` for every token.
inline std::string ModelWithLargeValues(float weight) {
  GgufWriter writer;
  AddSmallSizes(writer);
  AddSmallTokenizer(writer);
  AddSmallTensors(writer, DType::kF32);
  for (GgufWriter::Tensor& tensor : writer.tensors) {
    const bool ones = tensor.name == "token_embd.weight" || tensor.name.find("attn_norm") != std::string::npos;
    const bool values = tensor.name.find("attn_v") != std::string::npos;
    auto* x = reinterpret_cast<float*>(tensor.bytes.data());
    if (ones) std::fill_n(x, tensor.bytes.size() / sizeof(float), 1.0f);
    if (values) std::fill_n(x, SmallConfig().hidden_size, weight);
  }
  return writer.Bytes();
}

}  // namespace sluice
