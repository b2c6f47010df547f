#include "model/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "model/text/utf8.h"

namespace sluice {

namespace {
utf8proc_category_t Category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

struct Expansion {
  char32_t from;
  std::string_view to;
};
// Unconditional mappings of SpecialCasing.txt to more than one character, without Greek extended.
constexpr Expansion kUpperExpansions[] = {
    {0x00DF, "SS"},
    {0x0149, "\u02BCN"},
    {0x01F0, "J\u030C"},
    {0x0390, "\u0399\u0308\u0301"},
    {0x03B0, "\u03A5\u0308\u0301"},
    {0x0587, "\u0535\u0552"},
    {0x1E96, "H\u0331"},
    {0x1E97, "T\u0308"},
    {0x1E98, "W\u030A"},
    {0x1E99, "Y\u030A"},
    {0x1E9A, "A\u02BE"},
    {0xFB00, "FF"},
    {0xFB01, "FI"},
    {0xFB02, "FL"},
    {0xFB03, "FFI"},
    {0xFB04, "FFL"},
    {0xFB05, "ST"},
    {0xFB06, "ST"},
};
}  // namespace

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPythonSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsAlphabetic(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool IsNumeric(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool IsDecimalDigit(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsWordChar(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsAlphabetic(c) || IsNumeric(c) || category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME || category == UTF8PROC_CATEGORY_PC;
}

bool IsCased(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

bool IsPrintable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == 0x20;
    default:
      return true;
  }
}

std::string Nfc(std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  // utf8proc_decompose orders marks by exchanging neighbours, which is quadratic in the marks of one character and so
  // in what a client sends; decomposing here and sorting each run keeps it near linear.
  std::vector<utf8proc_int32_t> decomposed;
  decomposed.reserve(text.size());
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  size_t run_begin = 0;
  const auto sort_run = [&] {
    std::stable_sort(decomposed.begin() + run_begin, decomposed.end(),
                     [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
  };
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    text.remove_prefix(c.bytes);
    utf8proc_int32_t parts[32];
    int last_boundclass = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts, 32,
                                               UTF8PROC_DECOMPOSE, &last_boundclass);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 32); ++i) {
      if (combining_class(parts[i]) == 0) {
        sort_run();
        run_begin = decomposed.size() + 1;
      }
      decomposed.push_back(parts[i]);
    }
    run_begin = std::min(run_begin, decomposed.size());
  }
  sort_run();
  const auto length = utf8proc_normalize_utf32(decomposed.data(), static_cast<utf8proc_ssize_t>(decomposed.size()),
                                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  std::string out;
  for (utf8proc_ssize_t i = 0; i < length; ++i) AppendUtf8(static_cast<char32_t>(decomposed[i]), out);
  return out;
}

std::string ToUpper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    text.remove_prefix(c.bytes);
    const auto* special = std::find_if(std::begin(kUpperExpansions), std::end(kUpperExpansions),
                                       [&](const Expansion& e) { return e.from == c.code_point; });
    if (special != std::end(kUpperExpansions)) {
      out += special->to;
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c.code_point))), out);
    }
  }
  return out;
}

std::string ToLower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool after_cased = false;
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    text.remove_prefix(c.bytes);
    const bool before_cased = !text.empty() && IsCased(FirstChar(text).code_point);
    if (c.code_point == 0x130) {
      out += "i\u0307";
    } else if (c.code_point == 0x3A3 && after_cased && !before_cased) {
      out += "\u03C2";  // sigma at the end of a word
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point))), out);
    }
    after_cased = IsCased(c.code_point);
  }
  return out;
}

std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    if (!IsPythonSpace(c.code_point)) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!IsPythonSpace(FirstChar(text.substr(begin)).code_point)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace sluice
