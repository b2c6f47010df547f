// What the text code needs of the Unicode character database, and nothing of utf8proc's own types.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// The White_Space property: what \s means in the reference tokenizers' patterns.
bool IsWhiteSpace(char32_t c);
// What Python's str.strip and str.split take: White_Space and the four ASCII separators.
bool IsPythonSpace(char32_t c);
bool IsWordChar(char32_t c);    // letters, marks, numbers, connector punctuation: \w
bool IsAlphabetic(char32_t c);  // letters
bool IsNumeric(char32_t c);     // \p{N}
bool IsDecimalDigit(char32_t c);
bool IsCased(char32_t c);
bool IsPrintable(char32_t c);  // as Python's repr sees it

// Normalisation form C. REQUIRES: valid UTF-8. Linear but for sorting the marks of one character.
std::string Nfc(std::string_view text);

// Python's str.upper and str.lower; title case is upper case of a first character. Full mappings where one character
// becomes several (ß to SS), but for Greek with iota subscript.
std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);

// White space (IsPythonSpace) taken off the ends.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);

}  // namespace sluice
