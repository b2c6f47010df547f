// JSON that came from outside: bounded in size and depth before it is parsed, and read field by field with messages
// that name file, field and what was found.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

inline constexpr int kJsonDepthMax = 32;

// `name` stands before every message. InvalidArgument where it is not one JSON object, nests deeper than kJsonDepthMax,
// or holds a key of its outermost object twice.
StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name);

// The file's content; InvalidArgument where it is larger than `bytes_max`, NotFound where there is none.
StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

// A view of one object. A field that is absent or null counts as absent.
class JsonFields {
 public:
  // Both must outlive this. `name` is the file, with the path of fields down to the object if it is not the outermost.
  JsonFields(const nlohmann::json* object, std::string name) : object_(object), name_(std::move(name)) {}

  const nlohmann::json* Find(std::string_view field) const;  // null where absent

  // InvalidArgument where present and of another type, or outside [min, max].
  StatusOr<std::optional<int64_t>> Int(std::string_view field, int64_t min, int64_t max) const;
  StatusOr<std::optional<double>> Number(std::string_view field) const;
  StatusOr<std::optional<bool>> Bool(std::string_view field) const;
  StatusOr<std::optional<std::string>> String(std::string_view field) const;
  // The object below `field`; none where absent.
  StatusOr<std::optional<JsonFields>> Object(std::string_view field) const;

  // "NAME: FIELD MESSAGE"
  Status Error(std::string_view field, std::string_view message) const;
  const std::string& name() const { return name_; }
  const nlohmann::json* object() const { return object_; }

 private:
  Status WrongType(std::string_view field, const nlohmann::json& value, std::string_view wanted) const;

  const nlohmann::json* object_;
  std::string name_;
};

// The same into a variable: errors where the field must be there and is not, leaves the variable alone where it may be
// absent and is.
Status RequiredInt(const JsonFields& fields, std::string_view field, int max, int* out);  // 1 to max
Status OptionalInt(const JsonFields& fields, std::string_view field, int max, int* out);
Status OptionalNumber(const JsonFields& fields, std::string_view field, double* out);

}  // namespace sluice
