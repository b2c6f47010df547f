#include "model/text/byte_alphabet.h"

#include <array>

#include "model/text/utf8.h"

namespace sluice {

namespace {
constexpr int kStandIns = 0x144;  // the highest stand-in is U+0143

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int16_t, kStandIns> byte_of{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet a;
  for (auto& byte : a.byte_of) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t stand_in = printable ? static_cast<char32_t>(byte) : next++;
    a.of_byte[byte] = stand_in;
    a.byte_of[stand_in] = static_cast<int16_t>(byte);
  }
  return a;
}
constexpr Alphabet kAlphabet = MakeAlphabet();
}  // namespace

char32_t ByteStandIn(unsigned char byte) { return kAlphabet.of_byte[byte]; }

std::optional<std::string> SpelledBytes(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    const Utf8Char c = FirstChar(piece);
    piece.remove_prefix(c.bytes);
    if (!c.valid || c.code_point >= kStandIns || kAlphabet.byte_of[c.code_point] < 0) return std::nullopt;
    out += static_cast<char>(kAlphabet.byte_of[c.code_point]);
  }
  return out;
}

}  // namespace sluice
