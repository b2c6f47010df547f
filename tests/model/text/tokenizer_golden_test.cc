// The reference tokenizers' own answers (tests/data/tokenizers) for small tokenizers of each style and, where the real
// model is at hand, for SmolLM2's.
#include <cstdlib>

#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/model/text/small_tokenizers.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;
constexpr char kRealModel[] = "smollm2";

std::string BytesOfHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 3) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

class TokenizerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == kRealModel) {
      const char* path = std::getenv("SLUICE_TEST_MODEL");
      if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
      const auto checkpoint = OpenCheckpoint(path);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      auto tokenizer = Tokenizer::Create((*checkpoint)->tokenizer());
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      tokenizer_ = *std::move(tokenizer);
      golden_ = Json::parse(ReadTestFile("tokenizers/smollm2.json"));
    } else {
      tokenizer_ = SmallTokenizer(GetParam());
      golden_ = Json::parse(ReadTestFile("tokenizers/" + GetParam() + "/golden.json"));
    }
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
                                           "deepseek-v3-style", kRealModel),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(TokenizerRefusal, WhatIsNotByteLevelIsRefusedWithItsReason) {
  for (const char* style : {"llama2-style", "llama2-metaspace-style"}) {
    const auto tokenizer = Tokenizer::Create(SmallTokenizerData(style));
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kFailedPrecondition) << style;
    EXPECT_NE(tokenizer.status().message().find("byte-level BPE"), absl::string_view::npos) << tokenizer.status();
  }
}

}  // namespace
}  // namespace sluice
