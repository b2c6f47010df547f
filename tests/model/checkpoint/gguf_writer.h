// Writes GGUF bytes for tests: well-formed by default, with every field within reach of a test that wants it wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "model/checkpoint/gguf_file.h"

namespace sluice {

template <typename T>
void AppendNumber(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void AppendString(std::string& out, std::string_view text) {
  AppendNumber<uint64_t>(out, text.size());
  out.append(text);
}

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data section; written as metadata only by Uint32("general.alignment", ...)

  void Raw(std::string_view key, GgufType type, std::string_view encoded) {
    AppendString(metadata_, key);
    AppendNumber(metadata_, static_cast<uint32_t>(type));
    metadata_.append(encoded);
    ++metadata_count_;
  }
  void Uint32(std::string_view key, uint32_t value) { Number(key, GgufType::kUint32, value); }
  void Float32(std::string_view key, float value) { Number(key, GgufType::kFloat32, value); }
  void Bool(std::string_view key, bool value) { Number<uint8_t>(key, GgufType::kBool, value); }
  void String(std::string_view key, std::string_view value) {
    std::string encoded;
    AppendString(encoded, value);
    Raw(key, GgufType::kString, encoded);
  }
  void Strings(std::string_view key, const std::vector<std::string>& values) {
    std::string encoded = ArrayHead(GgufType::kString, values.size());
    for (const std::string& value : values) AppendString(encoded, value);
    Raw(key, GgufType::kArray, encoded);
  }
  void Int32s(std::string_view key, const std::vector<int32_t>& values) {
    std::string encoded = ArrayHead(GgufType::kInt32, values.size());
    for (const int32_t value : values) AppendNumber(encoded, value);
    Raw(key, GgufType::kArray, encoded);
  }
  static std::string ArrayHead(GgufType element_type, uint64_t count) {
    std::string encoded;
    AppendNumber(encoded, static_cast<uint32_t>(element_type));
    AppendNumber(encoded, count);
    return encoded;
  }

  // `shape` is outermost first, `bytes` the content. The offset is the next free one unless `offset` says otherwise.
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    uint32_t type = 0;
    std::string bytes;
    int64_t offset = -1;
  };
  std::vector<Tensor> tensors;

  std::string Bytes() const {
    std::string out = "GGUF";
    AppendNumber(out, version);
    AppendNumber<uint64_t>(out, tensors.size());
    AppendNumber<uint64_t>(out, metadata_count_);
    out += metadata_;
    std::string data;
    for (const Tensor& tensor : tensors) {
      data.resize(Aligned(data.size()));
      AppendString(out, tensor.name);
      AppendNumber(out, static_cast<uint32_t>(tensor.shape.size()));
      for (size_t d = tensor.shape.size(); d-- > 0;) AppendNumber(out, static_cast<uint64_t>(tensor.shape[d]));
      AppendNumber(out, tensor.type);
      AppendNumber<uint64_t>(out, tensor.offset >= 0 ? static_cast<uint64_t>(tensor.offset) : data.size());
      data += tensor.bytes;
    }
    out.resize(Aligned(out.size()));
    return out + data;
  }

  static uint32_t TypeNumber(DType type) {
    switch (type) {
      case DType::kF32:
        return 0;
      case DType::kF16:
        return 1;
      case DType::kQ4_0:
        return 2;
      case DType::kQ4_1:
        return 3;
      case DType::kQ8_0:
        return 8;
      case DType::kQ4_K:
        return 12;
      case DType::kQ5_K:
        return 13;
      case DType::kQ6_K:
        return 14;
      case DType::kBf16:
        return 30;
      case DType::kF8E4M3:  // GGUF has no such type
        break;
    }
    return 0;
  }

 private:
  template <typename T>
  void Number(std::string_view key, GgufType type, T value) {
    std::string encoded;
    AppendNumber(encoded, value);
    Raw(key, type, encoded);
  }
  size_t Aligned(size_t size) const { return (size + alignment - 1) / alignment * alignment; }

  std::string metadata_;
  uint64_t metadata_count_ = 0;
};

}  // namespace sluice
