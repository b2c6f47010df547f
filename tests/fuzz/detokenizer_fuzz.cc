// Any bytes, cut into any tokens: what is sent is whole characters, at most three bytes are held, and together it is
// the text with its invalid parts replaced, also when another detokenizer goes on in the middle.
#include <string>

#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace {
// Tokens of one byte each.
class ByteTokenizer final : public sluice::Tokenizer {
 public:
  ByteTokenizer() {
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = std::string(1, static_cast<char>(byte));
  }
  std::vector<sluice::TokenId> Encode(std::string_view, SpecialTokens) const override { return {}; }
  std::string_view Bytes(sluice::TokenId id, bool) const override { return bytes_[id]; }
  bool IsSpecial(sluice::TokenId) const override { return false; }
  int vocab_size() const override { return 256; }
  bool add_bos() const override { return false; }
  sluice::TokenId bos_id() const override { return -1; }

 private:
  std::string bytes_[256];
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ByteTokenizer tokenizer;
  sluice::Detokenizer whole(&tokenizer), first(&tokenizer), second(&tokenizer);
  std::string sent, sent_by_two;
  for (size_t i = 0; i < size; ++i) {
    const std::string piece = whole.Push(data[i]);
    SLUICE_CHECK(sluice::IsValidUtf8(piece) && whole.pending().size() <= 3);
    sent += piece;
    if (i == size / 2) second.set_pending(first.pending());
    sent_by_two += (i < size / 2 ? first : second).Push(data[i]);
  }
  sent += whole.Flush();
  sent_by_two += second.Flush();
  SLUICE_CHECK(sent == sluice::ReplaceInvalid({reinterpret_cast<const char*>(data), size}));
  SLUICE_CHECK(sent == sent_by_two);
  return 0;
}
