#include "model/checkpoint/safetensors_file.h"

#include <algorithm>
#include <optional>

#include "model/checkpoint/byte_reader.h"
#include "model/checkpoint/json_text.h"

namespace sluice {
namespace {

constexpr uint64_t kHeaderBytesMax = uint64_t{1} << 25;
constexpr int kRankMax = 8;

struct ElementType {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> type;  // none: known, but no weight is of this type here
};
constexpr ElementType kElementTypes[] = {
    {"F32", 4, DType::kF32},   {"F16", 2, DType::kF16},        {"BF16", 2, DType::kBf16},    {"F64", 8, std::nullopt},
    {"I64", 8, std::nullopt},  {"U64", 8, std::nullopt},       {"I32", 4, std::nullopt},     {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},  {"U16", 2, std::nullopt},       {"I8", 1, std::nullopt},      {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt}, {"F8_E4M3", 1, DType::kF8E4M3}, {"F8_E5M2", 1, std::nullopt},
};

StatusOr<const ElementType*> FindElementType(const JsonFields& entry, std::string& type_name) {
  SLUICE_ASSIGN_OR_RETURN(const auto name, entry.String("dtype"));
  if (!name) return entry.Error("dtype", "is missing");
  type_name = *name;
  for (const ElementType& type : kElementTypes) {
    if (type.name == *name) return &type;
  }
  return entry.Error("dtype", absl::StrCat("\"", *name, "\" is unknown"));
}

// The array of non-negative integers below `field`.
StatusOr<std::vector<int64_t>> Integers(const JsonFields& entry, std::string_view field, size_t count_max) {
  const nlohmann::json* values = entry.Find(field);
  if (values == nullptr || !values->is_array() || values->size() > count_max) {
    return entry.Error(field, absl::StrCat("is not an array of at most ", count_max, " integers"));
  }
  std::vector<int64_t> numbers;
  for (const nlohmann::json& value : *values) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return entry.Error(field, "holds something else than non-negative integers");
    }
    numbers.push_back(value.get<int64_t>());
  }
  return numbers;
}

StatusOr<StoredTensor> ReadEntry(const JsonFields& entry, const std::string& name, absl::Span<const std::byte> data,
                                 uint64_t data_begin) {
  StoredTensor tensor;
  tensor.name = name;
  SLUICE_ASSIGN_OR_RETURN(const ElementType* type, FindElementType(entry, tensor.type_name));
  tensor.type = type->type;
  SLUICE_ASSIGN_OR_RETURN(tensor.shape, Integers(entry, "shape", kRankMax));
  const StatusOr<int64_t> elements = ElementCount(tensor.shape);
  if (!elements.ok()) return WithContext(elements.status(), entry.name());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> range, Integers(entry, "data_offsets", 2));
  if (range.size() != 2) return entry.Error("data_offsets", "needs a begin and an end");
  const uint64_t begin = static_cast<uint64_t>(range[0]);
  const uint64_t end = static_cast<uint64_t>(range[1]);
  if (begin > end || end > data.size()) {
    return entry.Error("data_offsets", absl::StrCat("[", begin, ", ", end, "] is outside the ", data.size(),
                                                    " bytes of data (a truncated file?)"));
  }
  if (static_cast<uint64_t>(*elements) != (end - begin) / type->bytes || (end - begin) % type->bytes != 0) {
    return entry.Error("data_offsets",
                       absl::StrCat("spans ", end - begin, " bytes, shape ", ShapeText(tensor.shape), " of ",
                                    tensor.type_name, " needs ", *elements, " times ", type->bytes));
  }
  if ((data_begin + begin) % type->bytes != 0) {
    return entry.Error("data_offsets", absl::StrCat("begins at byte ", data_begin + begin,
                                                    " of the file, which is not a multiple of the ", type->bytes,
                                                    " bytes of ", tensor.type_name));
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

StatusOr<std::vector<StoredTensor>> ParseSafetensors(absl::Span<const std::byte> bytes, const std::string& name) {
  ByteReader reader(bytes);
  const StatusOr<std::string_view> header = reader.ReadString("the header", kHeaderBytesMax);
  if (!header.ok()) return WithContext(header.status(), name);
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json table, ParseJsonObject(*header, name));
  const absl::Span<const std::byte> data = bytes.subspan(reader.position());
  std::vector<StoredTensor> tensors;
  uint64_t total = 0;
  for (const auto& [tensor_name, entry] : table.items()) {
    if (tensor_name == "__metadata__") continue;
    const std::string context = absl::StrCat(name, ": tensor ", tensor_name);
    if (tensor_name.size() > kTensorNameBytesMax || !entry.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(context, ": the entry is not an object or its name is too long"));
    }
    SLUICE_ASSIGN_OR_RETURN(tensors.emplace_back(),
                            ReadEntry(JsonFields(&entry, context), tensor_name, data, reader.position()));
    total += tensors.back().bytes.size();
  }
  const Status disjoint = CheckDisjoint(tensors);
  if (!disjoint.ok()) return WithContext(disjoint, name);
  if (total != data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the tensors take ", total, " bytes but the data section has ", data.size()));
  }
  return tensors;
}

}  // namespace sluice
