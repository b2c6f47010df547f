// The identity of a model, compared by the handshake between processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/checkpoint/config.h"
#include "model/checkpoint/stored_tensor.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

// SHA-256 over every field of the config, the vocabulary, and each tensor's name, type, shape and bytes: all of a small
// tensor, evenly spaced samples with both ends of a large one, since reading whole files of gigabytes would cost more
// than loading them. Each item goes in with its length, so that no two sequences of items look alike.
class ModelHash {
 public:
  ModelHash();
  ~ModelHash();

  void Add(const ModelConfig& config);
  void Add(const TokenizerData& tokenizer);
  void Add(const StoredTensor& tensor);
  std::string Hex();  // ends it

 private:
  void Bytes(const void* data, size_t bytes);
  void Text(std::string_view text);
  void Number(int64_t value);
  void Real(double value);

  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace sluice
