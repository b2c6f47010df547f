// The reference tokenizers' own answers (tests/data/tokenizers) for small tokenizers of each style and, where the real
// model is at hand, for SmolLM2's.
#include <fstream>

#include "gtest/gtest.h"
#include "model/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/model/text/tokenizer_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

Json ReadJson(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return Json::parse(in);
}

std::string BytesOfHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 3) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

class TokenizerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string folder = std::string(SLUICE_TEST_DATA "/tokenizers/") + GetParam();
    auto tokenizer = Tokenizer::Create(TokenizerDataFromJson(folder + "/tokenizer.json"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    golden_ = ReadJson(folder + "/golden.json");
  }

  std::string Decode(const Ids& ids) const {
    std::string bytes;
    for (const TokenId id : ids) bytes += tokenizer_->Bytes(id, /*show_special=*/true);
    return bytes;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  Json golden_;
};

TEST_P(TokenizerGolden, EncodesEachStringAsTheReferenceDoes) {
  ASSERT_GT(golden_["encode"].size(), 200u);
  for (const Json& c : golden_["encode"]) {
    const std::string text = c["text"];
    EXPECT_EQ(tokenizer_->Encode(text, Tokenizer::SpecialTokens::kParse), c["ids_parsed"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer_->Encode(text, Tokenizer::SpecialTokens::kAsText), c["ids_plain"].get<Ids>()) << text;
  }
}

TEST_P(TokenizerGolden, DecodesToTheReferencesText) {
  for (const Json& c : golden_["encode"]) {
    EXPECT_EQ(Decode(c["ids_parsed"].get<Ids>()), c["decoded"].get<std::string>());
  }
}

TEST_P(TokenizerGolden, TakesEachMaximalInvalidPartAsOneReplacementCharacter) {
  ASSERT_FALSE(golden_["invalid_utf8"].empty());
  for (const Json& c : golden_["invalid_utf8"]) {
    EXPECT_EQ(tokenizer_->Encode(BytesOfHex(c["bytes"]), Tokenizer::SpecialTokens::kParse), c["ids"].get<Ids>())
        << c["what"];
  }
}

TEST_P(TokenizerGolden, StreamsWholeCharactersAsSoonAsTheyAreKnown) {
  ASSERT_FALSE(golden_["stream"].empty());
  for (const Json& c : golden_["stream"]) {
    Detokenizer detokenizer(tokenizer_.get());
    const Ids ids = c["ids"];
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(detokenizer.Push(ids[i]), c["pieces"][i].get<std::string>()) << c["text"] << " id " << i;
      EXPECT_LE(detokenizer.pending().size(), 3u);
    }
    EXPECT_EQ(detokenizer.Flush(), c["flush"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, TokenizerGolden,
                         ::testing::Values("gpt2-style", "llama3-style", "qwen2-style", "deepseek-v2-style",
                                           "deepseek-v3-style"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace sluice
