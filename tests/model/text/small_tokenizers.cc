#include "tests/model/text/small_tokenizers.h"

#include <fstream>
#include <sstream>

#include "model/checkpoint/huggingface_tokenizer.h"

namespace sluice {

std::string ReadTestFile(const std::string& path) {
  std::ifstream in(std::string(SLUICE_TEST_DATA "/") + path, std::ios::binary);
  SLUICE_CHECK(in.good(), "file ", path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TokenizerData SmallTokenizerData(const std::string& style) {
  const std::string text = ReadTestFile("tokenizers/" + style + "/tokenizer.json");
  auto data = ReadHuggingFaceTokenizer({.tokenizer = text}, 1000, std::nullopt, style);
  SLUICE_CHECK(data.ok(), "read ", data.status().ToString());
  return *std::move(data);
}

std::unique_ptr<Tokenizer> SmallTokenizer(const std::string& style) {
  auto tokenizer = Tokenizer::Create(SmallTokenizerData(style));
  SLUICE_CHECK(tokenizer.ok(), "create ", tokenizer.status().ToString());
  return *std::move(tokenizer);
}

}  // namespace sluice
