// The GGUF container, versions 2 and 3, little-endian (ggml's docs/gguf.md): metadata and tensor table over bytes that
// the caller keeps mapped. Parsing checks every count, length, offset and alignment; it interprets no key but
// general.alignment. Immutable after Parse.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"
#include "model/checkpoint/stored_tensor.h"

namespace sluice {

enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};
inline constexpr uint32_t kGgufTypeCount = 13;
std::string_view Name(GgufType type);  // "uint32", "string"

struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array
  uint64_t count = 1;                        // elements of an array
  absl::Span<const std::byte> bytes;         // encoded, without type and count
};

class GgufFile {
 public:
  // `name` stands before every message. `bytes` must outlive the result.
  static StatusOr<GgufFile> Parse(absl::Span<const std::byte> bytes, std::string name);

  uint32_t version() const { return version_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* FindTensor(std::string_view tensor) const;

  bool Has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  // NotFound where the key is missing; InvalidArgument, naming key, type and value, where it holds something else or a
  // number outside [min, max]. Any integer type counts as an integer, both float types as a float.
  StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  StatusOr<double> Float(std::string_view key) const;
  StatusOr<bool> Bool(std::string_view key) const;
  StatusOr<std::string_view> String(std::string_view key) const;
  StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;

  // An error about this file: "NAME: message".
  template <typename... Parts>
  Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", parts...));
  }

 private:
  class Parser;

  StatusOr<const GgufValue*> Find(std::string_view key) const;
  Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::string name_;
  uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace sluice
