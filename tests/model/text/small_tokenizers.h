// The small tokenizers of tests/data/tokenizers, read as a checkpoint's are.
#pragma once

#include <memory>
#include <string>

#include "model/text/tokenizer.h"

namespace sluice {

// `style` is a folder there: "gpt2-style". Their vocabularies have fewer than 1000 tokens.
TokenizerData SmallTokenizerData(const std::string& style);
std::unique_ptr<Tokenizer> SmallTokenizer(const std::string& style);

std::string ReadTestFile(const std::string& path);  // below tests/data

}  // namespace sluice
