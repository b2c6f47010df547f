#include "model/text/template_print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "model/text/template_operators.h"
#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace sluice::jinja {

namespace {
void AppendHex(char32_t c, std::string_view prefix, int digits, std::string& out) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "%0*x", digits, static_cast<unsigned>(c));
  out += prefix;
  out += buffer;
}

void StringRepr(std::string_view text, std::string& out) {
  const bool doubled = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  out += quote;
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    const std::string_view bytes = text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
    switch (c.code_point) {
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      default:
        break;
    }
    if (c.code_point == static_cast<char32_t>(quote)) {
      out += '\\';
      out += quote;
    } else if (IsPrintable(c.code_point)) {
      out += bytes;
    } else if (c.code_point < 0x100) {
      AppendHex(c.code_point, "\\x", 2, out);
    } else if (c.code_point < 0x10000) {
      AppendHex(c.code_point, "\\u", 4, out);
    } else {
      AppendHex(c.code_point, "\\U", 8, out);
    }
  }
  out += quote;
}

void JsonString(std::string_view text, bool ensure_ascii, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    const std::string_view bytes = text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
    switch (c.code_point) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\f':
        out += "\\f";
        continue;
      default:
        break;
    }
    if (c.code_point < 0x20 || (ensure_ascii && c.code_point > 0x7E && c.code_point < 0x10000)) {
      AppendHex(c.code_point, "\\u", 4, out);
    } else if (ensure_ascii && c.code_point >= 0x10000) {
      AppendHex(0xD800 + ((c.code_point - 0x10000) >> 10), "\\u", 4, out);
      AppendHex(0xDC00 + ((c.code_point - 0x10000) & 0x3FF), "\\u", 4, out);
    } else {
      out += bytes;
    }
  }
  out += '"';
}

// Brackets around elements, Python's way.
template <typename Items, typename Print>
Status Bracketed(char open, char close, const Items& items, Print print, std::string& out) {
  out += open;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ", ";
    first = false;
    SLUICE_RETURN_IF_ERROR(print(item));
  }
  out += close;
  return absl::OkStatus();
}
}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

Status PrintRepr(Arena& arena, const Value& value, std::string& out, int depth) {
  if (depth > arena.limits().value_depth) return Error("lists or dicts are nested too deeply");
  const size_t before = out.size();
  const auto inner = [&](const Value& v) { return PrintRepr(arena, v, out, depth + 1); };
  switch (value.kind()) {
    case Kind::kUndefined:
      out += "Undefined";
      break;
    case Kind::kNone:
      out += "None";
      break;
    case Kind::kBool:
      out += value.boolean() ? "True" : "False";
      break;
    case Kind::kInt:
      out += std::to_string(value.integer());
      break;
    case Kind::kFloat:
      out += FloatRepr(value.real());
      break;
    case Kind::kString:
      StringRepr(value.text(), out);
      break;
    case Kind::kList:
      SLUICE_RETURN_IF_ERROR(Bracketed('[', ']', value.items(), inner, out));
      break;
    case Kind::kTuple:
      SLUICE_RETURN_IF_ERROR(Bracketed('(', ')', value.items(), inner, out));
      if (value.items().size() == 1) out.insert(out.size() - 1, ",");
      break;
    case Kind::kDict:
      SLUICE_RETURN_IF_ERROR(Bracketed(
          '{', '}', value.as<Dict>().items,
          [&](const auto& item) -> Status {
            SLUICE_RETURN_IF_ERROR(inner(item.first));
            out += ": ";
            return inner(item.second);
          },
          out));
      break;
    default:
      out += "<";
      out += TypeName(value);
      out += ">";
  }
  // Elements were counted by their own calls; counting them again at each level only makes the bound tighter.
  return arena.Step(1 + (out.size() - before) / 16);
}

Status PrintStr(Arena& arena, const Value& value, std::string& out) {
  if (value.is(Kind::kUndefined)) return absl::OkStatus();
  if (!value.is(Kind::kString)) return PrintRepr(arena, value, out);
  SLUICE_RETURN_IF_ERROR(arena.Step(1 + value.text().size() / 16));
  out += value.text();
  return absl::OkStatus();
}

StatusOr<std::string> Str(Arena& arena, const Value& value) {
  std::string out;
  SLUICE_RETURN_IF_ERROR(PrintStr(arena, value, out));
  return out;
}

namespace {
StatusOr<std::string> JsonKey(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return std::string(key.text());
    case Kind::kInt:
      return std::to_string(key.integer());
    case Kind::kFloat:
      return FloatRepr(key.real());
    case Kind::kBool:
      return std::string(key.boolean() ? "true" : "false");
    case Kind::kNone:
      return std::string("null");
    default:
      return Error("a key of " + std::string(TypeName(key)) + " in JSON");
  }
}

void NewLine(const JsonStyle& style, int depth, std::string& out) {
  if (style.indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(style.indent) * depth, ' ');
}

Status PrintJsonDict(Arena& arena, const Dict& dict, const JsonStyle& style, std::string& out, int depth) {
  std::vector<std::pair<std::string, const Value*>> entries;
  for (const auto& [key, value] : dict.items) {
    SLUICE_ASSIGN_OR_RETURN(std::string name, JsonKey(key));
    entries.emplace_back(std::move(name), &value);
  }
  if (style.sort_keys) {
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  out += '{';
  bool first = true;
  for (const auto& [name, value] : entries) {
    if (!first) out += style.item_separator;
    first = false;
    NewLine(style, depth + 1, out);
    JsonString(name, style.ensure_ascii, out);
    out += style.key_separator;
    SLUICE_RETURN_IF_ERROR(PrintJson(arena, *value, style, out, depth + 1));
  }
  if (!first) NewLine(style, depth, out);
  out += '}';
  return absl::OkStatus();
}

Status PrintJsonList(Arena& arena, const std::vector<Value>& items, const JsonStyle& style, std::string& out,
                     int depth) {
  out += '[';
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += style.item_separator;
    first = false;
    NewLine(style, depth + 1, out);
    SLUICE_RETURN_IF_ERROR(PrintJson(arena, item, style, out, depth + 1));
  }
  if (!first) NewLine(style, depth, out);
  out += ']';
  return absl::OkStatus();
}
}  // namespace

Status PrintJson(Arena& arena, const Value& value, const JsonStyle& style, std::string& out, int depth) {
  if (depth > arena.limits().value_depth) return Error("lists or dicts are nested too deeply");
  if (out.size() > arena.limits().bytes) return Error("the template needs too much memory");
  const size_t before = out.size();
  switch (value.kind()) {
    case Kind::kNone:
      out += "null";
      break;
    case Kind::kBool:
      out += value.boolean() ? "true" : "false";
      break;
    case Kind::kInt:
      out += std::to_string(value.integer());
      break;
    case Kind::kFloat:
      out += std::isnan(value.real())   ? "NaN"
             : std::isinf(value.real()) ? (value.real() < 0 ? "-Infinity" : "Infinity")
                                        : FloatRepr(value.real());
      break;
    case Kind::kString:
      JsonString(value.text(), style.ensure_ascii, out);
      break;
    case Kind::kList:
    case Kind::kTuple:
      SLUICE_RETURN_IF_ERROR(PrintJsonList(arena, value.items(), style, out, depth));
      break;
    case Kind::kDict:
      SLUICE_RETURN_IF_ERROR(PrintJsonDict(arena, value.as<Dict>(), style, out, depth));
      break;
    default:
      return Error("a value of " + std::string(TypeName(value)) + " cannot be JSON");
  }
  return arena.Step(1 + (out.size() - before) / 16);
}

}  // namespace sluice::jinja
