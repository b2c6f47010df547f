// Split patterns of known byte-level pre-tokenizers, as PCRE2 understands them. They are the patterns of the models'
// own tokenizer.json; GGUF files name them by `tokenizer.ggml.pre` only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// What the ByteLevel pre-tokenizer of `tokenizers` splits by when use_regex is on (GPT-2's encoder.py).
extern const char kGpt2Pattern[];

struct PreTokenizer {
  std::vector<std::string> split_patterns;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file has no tokenizer.ggml.add_bos_token
};

// None where `pre` is not known here.
std::optional<PreTokenizer> PreTokenizerByGgufName(std::string_view pre);

}  // namespace sluice
