// A checkpoint's tokenizer data that may be hostile: it is refused, or encodes without harm. Lines of the input are
// split patterns, added tokens, tokens and merges by their first character; the last is the text.
#include <string>
#include <string_view>

#include "model/text/byte_alphabet.h"
#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace {
void AddLine(std::string_view line, sluice::TokenizerData& data) {
  if (line.empty()) return;
  const std::string rest(line.substr(1));
  const auto id = static_cast<sluice::TokenId>(data.tokens.size());
  const size_t space = rest.find(' ');
  switch (line[0]) {
    case 'p':
      data.split_patterns.push_back(rest);
      break;
    case 'a':
    case 's':
    case 'l':
    case 'r':
    case 'w':
      data.added.push_back({id, rest, line[0] == 's', line[0] == 'l', line[0] == 'r', line[0] == 'w', line[0] == 'w'});
      data.tokens.push_back(rest);
      break;
    case 't':
      data.tokens.push_back(rest);
      break;
    case 'm':
      if (space != std::string::npos) data.merges.emplace_back(rest.substr(0, space), rest.substr(space + 1));
      break;
    case 'n':
      data.nfc = true;
      break;
    case 'i':
      data.ignore_merges = true;
      break;
    case 'u':
      data.unk_id = static_cast<sluice::TokenId>(rest.size()) - 1;
      break;
    default:
      break;
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size > 2048) return 0;
  std::string_view input(reinterpret_cast<const char*>(bytes), size);
  sluice::TokenizerData data;
  data.kind = sluice::TokenizerKind::kByteLevelBpe;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    sluice::AppendUtf8(sluice::ByteStandIn(static_cast<unsigned char>(byte)), spelling);
    data.tokens.push_back(spelling);
  }
  for (size_t end = input.find('\n'); end != std::string_view::npos; end = input.find('\n')) {
    AddLine(input.substr(0, end), data);
    input.remove_prefix(end + 1);
  }
  const auto tokenizer = sluice::Tokenizer::Create(data);
  if (!tokenizer.ok()) return 0;
  const std::string_view text =
      input.substr(0, 100);  // hostile patterns are slow, which is not what is looked for here
  for (const sluice::TokenId id : (*tokenizer)->Encode(text, sluice::Tokenizer::SpecialTokens::kParse)) {
    SLUICE_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
  }
  return 0;
}
