// UTF-8 as bytes that may be broken: one decoder that everything in this folder uses, so that "maximal invalid part"
// means the same to the tokenizer, the detokenizer and the templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t code_point = 0;  // kReplacement where the bytes are no character
  int bytes = 0;            // that it takes; of the maximal invalid part where invalid (Unicode 15, section 3.9)
  bool valid = false;
  bool incomplete = false;  // invalid only because the text ends: more bytes could still make it a character
};

// The first character of `text`. REQUIRES: text is not empty.
Utf8Char FirstChar(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& out);

bool IsAscii(std::string_view text);
bool IsValidUtf8(std::string_view text);

// With each maximal invalid part replaced by U+FFFD.
std::string ReplaceInvalid(std::string_view text);

// How many characters valid text has.
size_t CountChars(std::string_view text);

}  // namespace sluice
