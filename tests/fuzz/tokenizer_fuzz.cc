// Any bytes through the tokenizers of each style: what they encode decodes to the same text, invalid parts replaced.
#include <vector>

#include "model/text/utf8.h"
#include "tests/model/text/small_tokenizers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::Tokenizer;
  struct Style {
    std::unique_ptr<Tokenizer> tokenizer;
    bool keeps_text;  // no normaliser, no added token that takes white space
  };
  static const std::vector<Style> styles = [] {
    std::vector<Style> list;
    for (const char* name : {"gpt2-style", "llama3-style", "qwen2-style", "deepseek-v2-style", "deepseek-v3-style"}) {
      const sluice::TokenizerData data = sluice::SmallTokenizerData(name);
      bool keeps = !data.nfc;
      for (const sluice::AddedToken& token : data.added) keeps &= !token.lstrip && !token.rstrip;
      list.push_back({sluice::SmallTokenizer(name), keeps});
    }
    return list;
  }();
  if (size == 0) return 0;
  const Style& style = styles[data[0] % styles.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (const auto special : {Tokenizer::SpecialTokens::kAsText, Tokenizer::SpecialTokens::kParse}) {
    std::string decoded;
    for (const sluice::TokenId id : style.tokenizer->Encode(text, special)) {
      SLUICE_CHECK(id >= 0 && id < style.tokenizer->vocab_size());
      decoded += style.tokenizer->Bytes(id, true);
    }
    SLUICE_CHECK(!style.keeps_text || decoded == sluice::ReplaceInvalid(text));
    SLUICE_CHECK(sluice::IsValidUtf8(decoded));
  }
  return 0;
}
