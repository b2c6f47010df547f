#include "model/checkpoint/json_text.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

namespace sluice {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The deepest nesting of brackets outside strings; the text need not be valid.
int Depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// What to show of a value in a message: short ones as they are.
std::string Excerpt(const nlohmann::json& value) {
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name) {
  const int depth = Depth(text);
  if (depth > kJsonDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(name), ": nests ", depth, " levels deep, at most ", kJsonDepthMax, " are allowed"));
  }
  std::set<std::string> keys;
  std::string twice;
  const auto note_keys = [&](int level, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (level == 1 && event == nlohmann::json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys.insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), note_keys, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(View(name), ": not valid JSON"));
  if (!parsed.is_object()) return absl::InvalidArgumentError(absl::StrCat(View(name), ": not a JSON object"));
  if (!twice.empty()) return absl::InvalidArgumentError(absl::StrCat(View(name), ": ", twice, " stands there twice"));
  return parsed;
}

StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": there is no such file"));
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (bytes > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file has ", bytes, " bytes, at most ", bytes_max, " are allowed"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return text;
}

const nlohmann::json* JsonFields::Find(std::string_view field) const {
  const auto found = object_->find(std::string(field));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

Status JsonFields::Error(std::string_view field, std::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", View(field), " ", View(message)));
}

Status JsonFields::WrongType(std::string_view field, const nlohmann::json& value, std::string_view wanted) const {
  return Error(field, absl::StrCat("is ", Excerpt(value), ", ", View(wanted), " is needed"));
}

StatusOr<std::optional<int64_t>> JsonFields::Int(std::string_view field, int64_t min, int64_t max) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::optional<int64_t>();
  if (!value->is_number_integer()) return WrongType(field, *value, "an integer");
  const bool fits = !value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return Error(field, absl::StrCat("is ", Excerpt(*value), ", ", min, " to ", max, " are allowed"));
  }
  return std::optional<int64_t>(value->get<int64_t>());
}

StatusOr<std::optional<double>> JsonFields::Number(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number() || !std::isfinite(value->get<double>())) return WrongType(field, *value, "a number");
  return std::optional<double>(value->get<double>());
}

StatusOr<std::optional<bool>> JsonFields::Bool(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return WrongType(field, *value, "true or false");
  return std::optional<bool>(value->get<bool>());
}

StatusOr<std::optional<std::string>> JsonFields::String(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return WrongType(field, *value, "a string");
  return std::optional<std::string>(value->get<std::string>());
}

StatusOr<std::optional<JsonFields>> JsonFields::Object(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::optional<JsonFields>();
  if (!value->is_object()) return WrongType(field, *value, "an object");
  return std::optional<JsonFields>(JsonFields(value, absl::StrCat(name_, ": ", View(field))));
}

Status RequiredInt(const JsonFields& fields, std::string_view field, int max, int* out) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Int(field, 1, max));
  if (!value) return fields.Error(field, "is missing");
  *out = static_cast<int>(*value);
  return absl::OkStatus();
}

Status OptionalInt(const JsonFields& fields, std::string_view field, int max, int* out) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Int(field, 1, max));
  if (value) *out = static_cast<int>(*value);
  return absl::OkStatus();
}

Status OptionalNumber(const JsonFields& fields, std::string_view field, double* out) {
  SLUICE_ASSIGN_OR_RETURN(const auto value, fields.Number(field));
  if (value) *out = *value;
  return absl::OkStatus();
}

}  // namespace sluice
