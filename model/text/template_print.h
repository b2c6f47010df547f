// Values as text: Python's str and repr, JSON, and the two ways of formatting.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "model/text/template_value.h"

namespace sluice::jinja {

// Appends to `out`, counting the bytes as work. Undefined is nothing.
Status PrintStr(Arena& arena, const Value& value, std::string& out);
Status PrintRepr(Arena& arena, const Value& value, std::string& out, int depth = 0);
StatusOr<std::string> Str(Arena& arena, const Value& value);

// As Python's json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  int indent = -1;  // -1: on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Status PrintJson(Arena& arena, const Value& value, const JsonStyle& style, std::string& out, int depth = 0);

// format % arguments.
StatusOr<Value> FormatPercent(Arena& arena, std::string_view format, const std::vector<Value>& arguments);
// format.format(arguments, named): {}, {0}, {name}, without attributes and format specifications.
StatusOr<Value> FormatBraces(Arena& arena, std::string_view format, const std::vector<Value>& arguments,
                             const std::vector<std::pair<std::string_view, Value>>& named);

// Python's repr of a float: shortest digits that read back as the same number.
std::string FloatRepr(double value);

}  // namespace sluice::jinja
