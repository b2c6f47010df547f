// GPT-2's printable stand-ins for bytes, in which byte-level vocabularies are spelled ("Ġthe" is " the").
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// The stand-in of a byte: itself where it is printable in Latin-1, else a code point from U+0100 on.
char32_t ByteStandIn(unsigned char byte);

// The bytes that a piece spells; nullopt where a character stands for no byte.
std::optional<std::string> SpelledBytes(std::string_view piece);

}  // namespace sluice
