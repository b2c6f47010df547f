#include "model/checkpoint/gguf_file.h"

#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "model/checkpoint/byte_reader.h"

namespace sluice {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kKeyBytesMax = 65535;
constexpr uint64_t kStringBytesMax = uint64_t{1} << 26;
constexpr uint64_t kMetadataCountMax = 65536;
constexpr uint64_t kTensorCountMax = 65536;
constexpr int64_t kAlignmentMax = int64_t{1} << 20;
constexpr int kArrayDepthMax = 4;

constexpr std::array<std::string_view, kGgufTypeCount> kTypeNames = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                                     "int32",  "float32", "bool",   "string", "array",
                                                                     "uint64", "int64",   "float64"};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Encoded bytes of a value of fixed size; 0 for strings and arrays.
size_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// ggml's numbers of tensor types. Those without a DType are known by name only, for the message.
struct TensorType {
  uint32_t number;
  std::string_view name;
  std::optional<DType> type;
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},      {1, "F16", DType::kF16},       {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},    {6, "Q5_0", std::nullopt},     {7, "Q5_1", std::nullopt},
    {8, "Q8_0", DType::kQ8_0},    {9, "Q8_1", std::nullopt},     {10, "Q2_K", std::nullopt},
    {11, "Q3_K", std::nullopt},   {12, "Q4_K", DType::kQ4_K},    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},   {15, "Q8_K", std::nullopt},    {16, "IQ2_XXS", std::nullopt},
    {17, "IQ2_XS", std::nullopt}, {18, "IQ3_XXS", std::nullopt}, {19, "IQ1_S", std::nullopt},
    {20, "IQ4_NL", std::nullopt}, {21, "IQ3_S", std::nullopt},   {22, "IQ2_S", std::nullopt},
    {23, "IQ4_XS", std::nullopt}, {24, "I8", std::nullopt},      {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},    {27, "I64", std::nullopt},     {28, "F64", std::nullopt},
    {29, "IQ1_M", std::nullopt},  {30, "BF16", DType::kBf16},    {34, "TQ1_0", std::nullopt},
    {35, "TQ2_0", std::nullopt},  {39, "MXFP4", std::nullopt},
};

StatusOr<DType> ParseTensorType(uint32_t number) {
  for (const TensorType& entry : kTensorTypes) {
    if (entry.number != number) continue;
    if (entry.type) return *entry.type;
    return absl::InvalidArgumentError(
        absl::StrCat("type ", View(entry.name), " (", number,
                     ") is not supported; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K"));
  }
  return absl::InvalidArgumentError(absl::StrCat("type ", number, " is unknown"));
}

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// The integer that `bytes` encode; none for other types and for uint64 above int64's range.
std::optional<int64_t> LoadInt(GgufType type, const std::byte* bytes) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(bytes);
    case GgufType::kInt8:
      return Load<int8_t>(bytes);
    case GgufType::kUint16:
      return Load<uint16_t>(bytes);
    case GgufType::kInt16:
      return Load<int16_t>(bytes);
    case GgufType::kUint32:
      return Load<uint32_t>(bytes);
    case GgufType::kInt32:
      return Load<int32_t>(bytes);
    case GgufType::kInt64:
      return Load<int64_t>(bytes);
    case GgufType::kUint64: {
      const uint64_t value = Load<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string_view Name(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }

class GgufFile::Parser {
 public:
  Parser(absl::Span<const std::byte> bytes, GgufFile* file) : bytes_(bytes), reader_(bytes), file_(*file) {}

  Status Run() {
    SLUICE_RETURN_IF_ERROR(Header());
    for (uint64_t i = 0; i < metadata_count_; ++i) SLUICE_RETURN_IF_ERROR(Metadata(i));
    SLUICE_RETURN_IF_ERROR(Alignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const uint64_t offset, TensorEntry(i));
      offsets.push_back(offset);
    }
    return PlaceTensors(offsets);
  }

 private:
  Status Header() {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t magic, reader_.Read<uint32_t>("the magic number"));
    if (magic != kMagic) return absl::InvalidArgumentError("not a GGUF file: it does not begin with \"GGUF\"");
    SLUICE_ASSIGN_OR_RETURN(file_.version_, reader_.Read<uint32_t>("the version"));
    if (file_.version_ == 0x02000000u || file_.version_ == 0x03000000u) {
      return absl::InvalidArgumentError("the file is big-endian, only little-endian GGUF is supported");
    }
    if (file_.version_ != 2 && file_.version_ != 3) {
      return absl::InvalidArgumentError(
          absl::StrCat("GGUF version ", file_.version_, " is not supported, only 2 and 3 are"));
    }
    SLUICE_ASSIGN_OR_RETURN(tensor_count_, reader_.Read<uint64_t>("the tensor count"));
    SLUICE_ASSIGN_OR_RETURN(metadata_count_, reader_.Read<uint64_t>("the metadata count"));
    if (tensor_count_ > kTensorCountMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor count ", tensor_count_, " is above the limit of ", kTensorCountMax));
    }
    if (metadata_count_ > kMetadataCountMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata count ", metadata_count_, " is above the limit of ", kMetadataCountMax));
    }
    return absl::OkStatus();
  }

  Status Metadata(uint64_t index) {
    SLUICE_ASSIGN_OR_RETURN(const std::string_view key,
                            reader_.ReadString(absl::StrCat("metadata key ", index), kKeyBytesMax));
    Status status = MetadataValue(key);
    return status.ok() ? status : WithContext(status, absl::StrCat("metadata ", View(key)));
  }

  Status MetadataValue(std::string_view key) {
    GgufValue value;
    SLUICE_ASSIGN_OR_RETURN(value.type, Type("the type"));
    if (value.type == GgufType::kArray) {
      SLUICE_RETURN_IF_ERROR(ArrayHead(&value.element_type, &value.count));
    }
    const size_t begin = reader_.position();
    if (value.type == GgufType::kArray) {
      SLUICE_RETURN_IF_ERROR(SkipElements(value.element_type, value.count, 1));
    } else {
      SLUICE_RETURN_IF_ERROR(SkipElements(value.type, 1, 0));
    }
    value.bytes = bytes_.subspan(begin, reader_.position() - begin);
    if (!file_.metadata_.emplace(std::string(key), value).second) {
      return absl::InvalidArgumentError("the key stands in the file twice");
    }
    return absl::OkStatus();
  }

  StatusOr<GgufType> Type(std::string_view what) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t type, reader_.Read<uint32_t>(what));
    if (type >= kGgufTypeCount) return absl::InvalidArgumentError(absl::StrCat("value type ", type, " is unknown"));
    return static_cast<GgufType>(type);
  }

  Status ArrayHead(GgufType* element_type, uint64_t* count) {
    SLUICE_ASSIGN_OR_RETURN(*element_type, Type("the element type"));
    SLUICE_ASSIGN_OR_RETURN(*count, reader_.Read<uint64_t>("the element count"));
    return absl::OkStatus();
  }

  // Walks over `count` encoded values. Every element takes at least one byte, so that a count beyond the file ends the
  // loop at the file's end.
  Status SkipElements(GgufType type, uint64_t count, int depth) {
    if (const size_t bytes = FixedBytes(type); bytes > 0) {
      if (count > reader_.remaining() / bytes) {
        return absl::InvalidArgumentError(absl::StrCat("truncated: ", count, " values of ", bytes, " bytes at byte ",
                                                       reader_.position(), ", ", reader_.remaining(),
                                                       " bytes are left"));
      }
      return reader_.Take(count * bytes, "values").status();
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::kString) {
        SLUICE_RETURN_IF_ERROR(reader_.ReadString("a string", kStringBytesMax).status());
        continue;
      }
      if (depth >= kArrayDepthMax) {
        return absl::InvalidArgumentError(absl::StrCat("arrays nest deeper than ", kArrayDepthMax));
      }
      GgufType element_type = GgufType::kUint8;
      uint64_t elements = 0;
      SLUICE_RETURN_IF_ERROR(ArrayHead(&element_type, &elements));
      SLUICE_RETURN_IF_ERROR(SkipElements(element_type, elements, depth + 1));
    }
    return absl::OkStatus();
  }

  Status Alignment() {
    if (!file_.Has("general.alignment")) return absl::OkStatus();
    StatusOr<int64_t> alignment = file_.Int("general.alignment", 8, kAlignmentMax);
    if (!alignment.ok()) return alignment.status();
    if ((*alignment & (*alignment - 1)) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("general.alignment ", *alignment, " is not a power of two"));
    }
    alignment_ = static_cast<uint64_t>(*alignment);
    return absl::OkStatus();
  }

  // Reads one row of the tensor table and returns the tensor's offset in the data section; its bytes are placed later.
  StatusOr<uint64_t> TensorEntry(uint64_t index) {
    StoredTensor tensor;
    SLUICE_ASSIGN_OR_RETURN(const std::string_view name,
                            reader_.ReadString(absl::StrCat("the name of tensor ", index), kTensorNameBytesMax));
    tensor.name = std::string(name);
    StatusOr<uint64_t> offset = TensorLayout(tensor);
    if (!offset.ok()) return WithContext(offset.status(), absl::StrCat("tensor ", tensor.name));
    file_.tensors_.push_back(std::move(tensor));
    return offset;
  }

  StatusOr<uint64_t> TensorLayout(StoredTensor& tensor) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t rank, reader_.Read<uint32_t>("the number of dimensions"));
    if (rank < 1 || rank > kTensorRankMax) {
      return absl::InvalidArgumentError(absl::StrCat(rank, " dimensions, 1 to ", kTensorRankMax, " are supported"));
    }
    tensor.shape.resize(rank);
    for (uint32_t d = rank; d-- > 0;) {
      SLUICE_ASSIGN_OR_RETURN(const uint64_t extent, reader_.Read<uint64_t>("a dimension"));
      tensor.shape[d] = extent > static_cast<uint64_t>(INT64_MAX) ? -1 : static_cast<int64_t>(extent);
    }
    SLUICE_ASSIGN_OR_RETURN(const uint32_t type, reader_.Read<uint32_t>("the type"));
    SLUICE_ASSIGN_OR_RETURN(tensor.type, ParseTensorType(type));
    tensor.type_name = std::string(Traits(*tensor.type).name);
    return reader_.Read<uint64_t>("the offset");
  }

  Status PlaceTensors(const std::vector<uint64_t>& offsets) {
    const uint64_t data_begin = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t data_bytes = data_begin > bytes_.size() ? 0 : bytes_.size() - data_begin;
    for (size_t i = 0; i < offsets.size(); ++i) {
      StoredTensor& tensor = file_.tensors_[i];
      Status status = PlaceTensor(tensor, data_begin, data_bytes, offsets[i]);
      if (!status.ok()) return WithContext(status, absl::StrCat("tensor ", tensor.name));
    }
    return CheckDisjoint(file_.tensors_);
  }

  Status PlaceTensor(StoredTensor& tensor, uint64_t data_begin, uint64_t data_bytes, uint64_t offset) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
    const DTypeTraits& traits = Traits(*tensor.type);
    if (tensor.shape.back() % traits.block_elements != 0) {
      return absl::InvalidArgumentError(absl::StrCat("rows of ", tensor.shape.back(), " elements are not whole ",
                                                     tensor.type_name, " blocks of ", traits.block_elements));
    }
    if (offset % alignment_ != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("offset ", offset, " is not a multiple of the alignment ", alignment_));
    }
    const uint64_t blocks = static_cast<uint64_t>(elements / traits.block_elements);
    const uint64_t block_bytes = static_cast<uint64_t>(traits.block_bytes);
    if (offset > data_bytes || blocks > (data_bytes - offset) / block_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("truncated: ", blocks, " blocks of ", block_bytes,
                                                     " bytes at offset ", offset, " of the data section, which has ",
                                                     data_bytes, " bytes"));
    }
    tensor.bytes = bytes_.subspan(data_begin + offset, blocks * block_bytes);
    return absl::OkStatus();
  }

  absl::Span<const std::byte> bytes_;
  ByteReader reader_;
  GgufFile& file_;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  uint64_t alignment_ = 32;
};

StatusOr<GgufFile> GgufFile::Parse(absl::Span<const std::byte> bytes, std::string name) {
  GgufFile file;
  Status status = Parser(bytes, &file).Run();
  if (!status.ok()) return WithContext(status, name);
  file.name_ = std::move(name);
  return file;
}

const StoredTensor* GgufFile::FindTensor(std::string_view name) const {
  for (const StoredTensor& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

StatusOr<const GgufValue*> GgufFile::Find(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) {
    return absl::NotFoundError(absl::StrCat(name_, ": metadata ", View(key), " is missing"));
  }
  return &found->second;
}

Status GgufFile::WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  const std::string array = value.type == GgufType::kArray ? absl::StrCat(" of ", View(Name(value.element_type))) : "";
  return Error("metadata ", View(key), " is of type ", View(Name(value.type)), array, ", ", View(wanted), " is needed");
}

StatusOr<int64_t> GgufFile::Int(std::string_view key, int64_t min, int64_t max) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  const std::optional<int64_t> number = LoadInt(value->type, value->bytes.data());
  if (!number) return WrongType(key, *value, "an integer");
  if (*number < min || *number > max) {
    return Error("metadata ", View(key), " is ", *number, ", ", min, " to ", max, " are allowed");
  }
  return *number;
}

StatusOr<double> GgufFile::Float(std::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  double number;
  if (value->type == GgufType::kFloat32) {
    number = Load<float>(value->bytes.data());
  } else if (value->type == GgufType::kFloat64) {
    number = Load<double>(value->bytes.data());
  } else {
    return WrongType(key, *value, "a float");
  }
  if (!std::isfinite(number)) return Error("metadata ", View(key), " is ", number, ", a finite number is needed");
  return number;
}

StatusOr<bool> GgufFile::Bool(std::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kBool) return WrongType(key, *value, "a bool");
  const uint8_t byte = Load<uint8_t>(value->bytes.data());
  if (byte > 1)
    return Error("metadata ", View(key), " is a bool of value ", static_cast<int>(byte), ", 0 or 1 is needed");
  return byte == 1;
}

StatusOr<std::string_view> GgufFile::String(std::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kString) return WrongType(key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()) + 8, value->bytes.size() - 8);
}

StatusOr<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return WrongType(key, *value, "an array of strings");
  }
  ByteReader reader(value->bytes);
  std::vector<std::string_view> strings;
  strings.reserve(value->count);  // Parse has walked over that many, of 8 bytes or more each
  for (uint64_t i = 0; i < value->count; ++i) {
    SLUICE_ASSIGN_OR_RETURN(strings.emplace_back(), reader.ReadString("a string", kStringBytesMax));
  }
  return strings;
}

StatusOr<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  const size_t bytes = FixedBytes(value->element_type);
  if (value->type != GgufType::kArray || bytes == 0) return WrongType(key, *value, "an array of integers");
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = LoadInt(value->element_type, value->bytes.data() + i * bytes);
    if (!number) return WrongType(key, *value, "an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace sluice
