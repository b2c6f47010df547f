// tokenizer.json and tokenizer_config.json: which tokenizers are taken, with what, and why others are not.
#include "model/checkpoint/huggingface_tokenizer.h"

#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/pre_tokenizer.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kVocabSize = 1000;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

json Style(const std::string& style) {
  return json::parse(ReadFile(SLUICE_TEST_DATA "/tokenizers/" + style + "/tokenizer.json"));
}

StatusOr<TokenizerData> Read(const json& tokenizer, const json& config = nullptr, const std::string& jinja = "") {
  const std::string tokenizer_text = tokenizer.dump();
  const std::string config_text = config.is_null() ? "" : config.dump();
  return ReadHuggingFaceTokenizer({tokenizer_text, config_text, jinja}, kVocabSize, std::nullopt, "folder");
}

TEST(HuggingFaceTokenizer, TakesByteLevelBpeWithItsSplits) {
  auto gpt2 = Read(Style("gpt2-style"));
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->kind, TokenizerKind::kByteLevelBpe);
  EXPECT_THAT(gpt2->split_patterns, ElementsAre(kGpt2Pattern));
  EXPECT_EQ(gpt2->merges.size(), 444u);
  EXPECT_EQ(gpt2->tokens.size(), static_cast<size_t>(kVocabSize));
  ASSERT_EQ(gpt2->added.size(), 2u);
  EXPECT_TRUE(gpt2->added[1].lstrip);
  EXPECT_EQ(gpt2->tokens[701], "<mask>");
  EXPECT_FALSE(gpt2->add_bos);

  auto qwen2 = Read(Style("qwen2-style"));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(qwen2->nfc);
  EXPECT_FALSE(qwen2->ignore_merges);

  auto llama3 = Read(Style("llama3-style"));
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  EXPECT_TRUE(llama3->ignore_merges);
  EXPECT_TRUE(llama3->add_bos);
  EXPECT_EQ(llama3->bos_id, 767);
}

// \x{4E00} as the character itself, which is how tokenizer.json has it.
std::string WithCharacters(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern.compare(i, 3, "\\x{") != 0) {
      out += pattern[i];
      continue;
    }
    const size_t end = pattern.find('}', i);
    const std::string escape = "\"\\u" + std::string(4 - std::min<size_t>(4, end - i - 3), '0');
    const uint32_t code = static_cast<uint32_t>(std::stoul(pattern.substr(i + 3, end - i - 3), nullptr, 16));
    if (code < 0x10000) {
      out += json::parse(escape + pattern.substr(i + 3, end - i - 3) + "\"").get<std::string>();
    } else {
      for (const uint32_t bits :
           {0xF0u | code >> 18, 0x80u | (code >> 12 & 63), 0x80u | (code >> 6 & 63), 0x80u | (code & 63)}) {
        out += static_cast<char>(bits);
      }
    }
    i = end;
  }
  return out;
}

TEST(HuggingFaceTokenizer, AgreesWithTheTableOfGgufNames) {
  for (const auto& [style, name] :
       {std::pair("gpt2-style", "gpt-2"), std::pair("llama3-style", "llama-bpe"), std::pair("qwen2-style", "qwen2"),
        std::pair("deepseek-v2-style", "deepseek-llm"), std::pair("deepseek-v3-style", "deepseek-v3")}) {
    auto data = Read(Style(style));
    auto known = PreTokenizerByGgufName(name);
    ASSERT_TRUE(data.ok()) << data.status();
    ASSERT_TRUE(known.has_value()) << name;
    for (std::string& pattern : known->split_patterns) pattern = WithCharacters(pattern);
    EXPECT_EQ(data->split_patterns, known->split_patterns) << name;
    EXPECT_EQ(data->nfc, known->nfc) << name;
    EXPECT_EQ(data->ignore_merges, known->ignore_merges) << name;
  }
}

TEST(HuggingFaceTokenizer, ReadsMergesInBothSpellings) {
  json tokenizer = Style("gpt2-style");
  const auto pairs = Read(tokenizer)->merges;
  for (json& merge : tokenizer["model"]["merges"]) {
    if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  EXPECT_EQ(Read(tokenizer)->merges, pairs);
  tokenizer["model"]["merges"][3] = "nospace";
  EXPECT_THAT(std::string(Read(tokenizer).status().message()), HasSubstr("merges entry 3 is not a pair"));
}

TEST(HuggingFaceTokenizer, SaysWhyItTakesNoOtherKind) {
  const auto reason = [](const json& tokenizer) {
    auto data = Read(tokenizer);
    EXPECT_TRUE(data.ok()) << data.status();
    if (!data.ok()) return std::string();
    EXPECT_EQ(data->kind, TokenizerKind::kNone);
    return data->unsupported;
  };
  EXPECT_THAT(reason(Style("llama2-style")), HasSubstr("byte fallback"));
  EXPECT_THAT(reason(Style("llama2-metaspace-style")), HasSubstr("byte fallback"));
  json other = Style("gpt2-style");
  other["model"]["type"] = "Unigram";
  EXPECT_THAT(reason(other), HasSubstr("the tokenizer model \"Unigram\" is not supported"));
  other = Style("gpt2-style");
  other["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(reason(other), HasSubstr("the normalizer \"Lowercase\" is not supported"));
  other = Style("gpt2-style");
  other["pre_tokenizer"] = {{"type", "Whitespace"}};
  EXPECT_THAT(reason(other), HasSubstr("step \"Whitespace\" is not supported"));
  other["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_THAT(reason(other), HasSubstr("no ByteLevel step"));
  other["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  EXPECT_THAT(reason(other), HasSubstr("adds a space"));
  other = Style("llama3-style");
  other["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_THAT(reason(other), HasSubstr("another behavior than Isolated"));
}

TEST(HuggingFaceTokenizer, MakesPatternsOfDigitsAndPlainStrings) {
  json tokenizer = Style("gpt2-style");
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "Split"}, {"pattern", {{"String", "a.b"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  auto data = Read(tokenizer);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->split_patterns, ElementsAre("\\p{N}", "a\\.b"));
}

TEST(HuggingFaceTokenizer, RefusesIdsOutsideTheVocabularyAndIdsGivenTwice) {
  json tokenizer = Style("gpt2-style");
  tokenizer["added_tokens"][0]["id"] = kVocabSize;
  EXPECT_THAT(std::string(Read(tokenizer).status().message()),
              HasSubstr("\"<|endoftext|>\" has an id that is not below vocab_size (1000) of config.json"));
  tokenizer = Style("gpt2-style");
  tokenizer["model"]["vocab"]["!"] = 1;
  EXPECT_THAT(std::string(Read(tokenizer).status().message()), HasSubstr("gives id 1 to "));
}

TEST(HuggingFaceTokenizer, TakesTheTemplateFromItsThreePlaces) {
  const json tokenizer = Style("gpt2-style");
  EXPECT_EQ(Read(tokenizer, {{"chat_template", "one"}})->chat_template, "one");
  const json list =
      json::array({{{"name", "tool_use"}, {"template", "two"}}, {{"name", "default"}, {"template", "three"}}});
  EXPECT_EQ(Read(tokenizer, {{"chat_template", list}})->chat_template, "three");
  EXPECT_EQ(Read(tokenizer, {{"chat_template", "one"}}, "file")->chat_template, "file");
  EXPECT_EQ(Read(tokenizer)->chat_template, "");
}

TEST(HuggingFaceTokenizer, FindsBeginAndEndByTheirTexts) {
  auto data = Read(Style("qwen2-style"), {{"bos_token", nullptr}, {"eos_token", {{"content", "<|im_end|>"}}}});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->eos_id, 742);
  EXPECT_EQ(data->eos_text, "<|im_end|>");
  EXPECT_EQ(data->bos_id, std::nullopt);
}

}  // namespace
}  // namespace sluice
