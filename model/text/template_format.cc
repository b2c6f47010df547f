#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "model/text/template_print.h"
#include "model/text/utf8.h"

namespace sluice::jinja {

namespace {

constexpr int kWidthMax = 1000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// One conversion of a % format: flags, width, precision, letter.
struct Conversion {
  bool left = false, zero = false, plus = false, space = false;
  int width = 0;
  int precision = -1;
  char letter = 0;
};

StatusOr<Conversion> ReadConversion(std::string_view format, size_t& i) {
  Conversion c;
  for (; i < format.size(); ++i) {
    if (format[i] == '-')
      c.left = true;
    else if (format[i] == '0')
      c.zero = true;
    else if (format[i] == '+')
      c.plus = true;
    else if (format[i] == ' ')
      c.space = true;
    else
      break;
  }
  const auto number = [&](int& value) {
    value = 0;
    for (; i < format.size() && IsDigit(format[i]); ++i)
      value = std::min(value * 10 + (format[i] - '0'), kWidthMax + 1);
    return value <= kWidthMax;
  };
  if (!number(c.width)) return Error("a format is too wide");
  if (i < format.size() && format[i] == '.') {
    ++i;
    if (!number(c.precision)) return Error("a format is too precise");
  }
  if (i == format.size()) return Error("a format ends in the middle");
  c.letter = format[i++];
  return c;
}

StatusOr<std::string> Number(const Conversion& c, const Value& value) {
  if (!value.is_number())
    return Error(std::string("%") + c.letter + " needs a number, not " + std::string(TypeName(value)));
  const bool integer = c.letter == 'd' || c.letter == 'i' || c.letter == 'x' || c.letter == 'X' || c.letter == 'o';
  char buffer[512];
  int length = 0;
  bool negative = false;
  if (integer) {
    const double real = value.real();
    if (!value.is_integral() && !(std::fabs(real) < 9e18)) return Error("a number is too large for its format");
    const int64_t number = value.is_integral() ? value.integer() : static_cast<int64_t>(real);
    negative = number < 0;
    const uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    const char* pattern = c.letter == 'x' ? "%lx" : c.letter == 'X' ? "%lX" : c.letter == 'o' ? "%lo" : "%lu";
    length = std::snprintf(buffer, sizeof(buffer), pattern, static_cast<unsigned long>(magnitude));
  } else {
    negative = std::signbit(value.real());
    const char pattern[] = {'%', '.', '*', c.letter, '\0'};
    length = std::snprintf(buffer, sizeof(buffer), pattern, c.precision < 0 ? 6 : c.precision, std::fabs(value.real()));
    if (length >= static_cast<int>(sizeof(buffer))) return Error("a number is too long for its format");
  }
  std::string digits(buffer, length);
  if (integer && static_cast<int>(digits.size()) < c.precision) digits.insert(0, c.precision - digits.size(), '0');
  const std::string sign = negative ? "-" : c.plus ? "+" : c.space ? " " : "";
  const int missing = c.width - static_cast<int>(digits.size() + sign.size());
  if (c.zero && !c.left && missing > 0) digits.insert(0, missing, '0');
  return sign + digits;
}

StatusOr<std::string> Convert(Arena& arena, const Conversion& c, const Value& value) {
  std::string text;
  if (c.letter == 's' || c.letter == 'r') {
    SLUICE_RETURN_IF_ERROR(c.letter == 's' ? PrintStr(arena, value, text) : PrintRepr(arena, value, text));
    std::string_view cut = text;
    size_t bytes = 0;
    for (int i = 0; i < c.precision && bytes < cut.size(); ++i) bytes += FirstChar(cut.substr(bytes)).bytes;
    if (c.precision >= 0) text.resize(bytes);
  } else if (std::string_view("dixXofFeEgG").find(c.letter) != std::string_view::npos) {
    SLUICE_ASSIGN_OR_RETURN(text, Number(c, value));
  } else {
    return Error(std::string("unknown format %") + c.letter);
  }
  const int missing = c.width - static_cast<int>(CountChars(text));
  if (missing > 0) text.insert(c.left ? text.size() : 0, missing, ' ');
  return text;
}

}  // namespace

StatusOr<Value> FormatPercent(Arena& arena, std::string_view format, const std::vector<Value>& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out += format[i++];
      continue;
    }
    ++i;
    SLUICE_ASSIGN_OR_RETURN(const Conversion conversion, ReadConversion(format, i));
    if (conversion.letter == '%') {
      out += '%';
      continue;
    }
    if (next == arguments.size()) return Error("a format needs more arguments");
    SLUICE_ASSIGN_OR_RETURN(const std::string text, Convert(arena, conversion, arguments[next++]));
    SLUICE_RETURN_IF_ERROR(arena.Take(text.size()));
    out += text;
  }
  if (next < arguments.size() && !(next == 0 && arguments[0].is(Kind::kDict))) {
    return Error("a format has fewer places than arguments");
  }
  return arena.NewString(std::move(out));
}

StatusOr<Value> FormatBraces(Arena& arena, std::string_view format, const std::vector<Value>& arguments,
                             const std::vector<std::pair<std::string_view, Value>>& named) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') return Error("a single '}' in a format");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = format.find('}', i);
    if (end == std::string_view::npos) return Error("a single '{' in a format");
    const std::string_view field = format.substr(i + 1, end - i - 1);
    i = end;
    const Value* value = nullptr;
    if (field.empty()) {
      if (next < arguments.size()) value = &arguments[next++];
    } else if (IsDigit(field[0])) {
      size_t index = 0;
      const auto [ptr, error] = std::from_chars(field.data(), field.data() + field.size(), index);
      if (error == std::errc() && ptr == field.data() + field.size() && index < arguments.size())
        value = &arguments[index];
    } else {
      for (const auto& [name, argument] : named) {
        if (name == field) value = &argument;
      }
    }
    if (value == nullptr) return Error("nothing for '{" + std::string(field) + "}' in a format");
    SLUICE_ASSIGN_OR_RETURN(const std::string text, Str(arena, *value));
    SLUICE_RETURN_IF_ERROR(arena.Take(text.size()));
    out += text;
  }
  return arena.NewString(std::move(out));
}

}  // namespace sluice::jinja
