#include "model/text/tokenizer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/text/text_splitter.h"
#include "model/text/unicode.h"
#include "tests/model/text/small_tokenizers.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;
constexpr auto kParse = Tokenizer::SpecialTokens::kParse;
constexpr auto kAsText = Tokenizer::SpecialTokens::kAsText;

// A vocabulary of all bytes, then what a test adds.
TokenizerData Bytes() {
  TokenizerData data = SmallTokenizerData("gpt2-style");
  data.tokens.resize(256);
  data.merges.clear();
  data.added.clear();
  data.bos_id.reset();
  return data;
}

TokenId Add(TokenizerData& data, const AddedToken& token) {
  data.tokens.push_back(token.text);
  data.added.push_back(token);
  return data.added.back().id = static_cast<TokenId>(data.tokens.size() - 1);
}

std::string Decode(const Tokenizer& tokenizer, const Ids& ids) {
  std::string text;
  for (const TokenId id : ids) text += tokenizer.Bytes(id, true);
  return text;
}

std::unique_ptr<Tokenizer> Create(const TokenizerData& data) {
  auto tokenizer = Tokenizer::Create(data);
  SLUICE_CHECK(tokenizer.ok(), "create ", tokenizer.status().ToString());
  return *std::move(tokenizer);
}

TEST(Tokenizer, LongestAddedTokenAtAPositionWins) {
  TokenizerData data = Bytes();
  Add(data, {.text = "<a>", .special = true});
  const TokenId longer = Add(data, {.text = "<a>b", .special = true});
  EXPECT_THAT(Create(data)->Encode("<a>b", kParse), ElementsAre(longer));
}

TEST(Tokenizer, SpecialTokensInUserTextStayText) {
  TokenizerData data = Bytes();
  Add(data, {.text = "<end>", .special = true});
  const TokenId tool = Add(data, {.text = "<tool>", .special = false});
  const auto tokenizer = Create(data);
  EXPECT_EQ(tokenizer->Encode("<end>", kAsText).size(), 5u);
  EXPECT_THAT(tokenizer->Encode("<tool>", kAsText), ElementsAre(tool));
}

TEST(Tokenizer, SingleWordTokensNeedABorderOnBothSides) {
  TokenizerData data = Bytes();
  const TokenId word = Add(data, {.text = "cat", .single_word = true});
  const auto tokenizer = Create(data);
  EXPECT_EQ(tokenizer->Encode("cat", kAsText), Ids{word});
  EXPECT_EQ(tokenizer->Encode("(cat)", kAsText)[1], word);
  EXPECT_EQ(tokenizer->Encode("cats", kAsText).size(), 4u);
  EXPECT_EQ(tokenizer->Encode("\u00e9cat", kAsText).size(), 5u);
}

TEST(Tokenizer, StrippingTokensTakeTheWhiteSpaceButNotAnotherTokensText) {
  TokenizerData data = Bytes();
  const TokenId both = Add(data, {.text = "<m>", .lstrip = true, .rstrip = true});
  const auto tokenizer = Create(data);
  EXPECT_THAT(tokenizer->Encode(" \t\u00a0<m> \n<m>", kAsText), ElementsAre(both, both));
}

TEST(Tokenizer, NormalizedTokensAreFoundInTheNormalisedText) {
  TokenizerData data = Bytes();
  data.nfc = true;
  const TokenId composed = Add(data, {.text = "\u00e9", .normalized = true});
  const TokenId raw = Add(data, {.text = "\u00e5", .normalized = false});
  const auto tokenizer = Create(data);
  EXPECT_THAT(tokenizer->Encode("e\u0301", kAsText), ElementsAre(composed));
  EXPECT_THAT(tokenizer->Encode("\u00e5", kAsText), ElementsAre(raw));
  EXPECT_EQ(tokenizer->Encode("a\u030a", kAsText).size(), 2u);  // composed, but after the search: two bytes
}

TEST(Tokenizer, MergesTakeTheLowestRankAndTheLeftmostOfEquals) {
  TokenizerData data = Bytes();
  for (const char* token : {"ab", "bc", "aa"}) data.tokens.push_back(token);
  data.merges = {{"b", "c"}, {"a", "b"}, {"a", "a"}};
  const auto tokenizer = Create(data);
  EXPECT_EQ(Decode(*tokenizer, {tokenizer->Encode("abc", kAsText)[1]}), "bc");
  EXPECT_EQ(Decode(*tokenizer, {tokenizer->Encode("aaa", kAsText)[0]}), "aa");
}

TEST(Tokenizer, ALongTextWithoutABorderTakesNearLinearTime) {
  const auto tokenizer = SmallTokenizer("gpt2-style");
  // A quadratic merge would need 10^11 steps and run into the test's time limit.
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode(text, kAsText)), text);
}

TEST(TextSplitter, LongRunsOfWhiteSpaceTakeLinearTimeInEveryStyle) {
  const std::string spaces(1 << 20, ' ');
  const std::string text = spaces + "\u4e2d" + spaces + "\n" + spaces + "x";
  for (const char* style : {"gpt2-style", "llama3-style", "qwen2-style", "deepseek-v2-style", "deepseek-v3-style"}) {
    const auto splitter = TextSplitter::Create(SmallTokenizerData(style));
    ASSERT_TRUE(splitter.ok());
    // Trying the run from each of its characters would need 10^12 steps and run into the test's time limit.
    size_t bytes = 0;
    for (const std::string_view piece : splitter->Split(text)) bytes += piece.size();
    EXPECT_EQ(bytes, text.size()) << style;
  }
}

TEST(Tokenizer, AThousandMarksOnOneLetterAreSortedQuickly) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 ? "\u0301" : "\u0327";  // classes 230 and 202, out of order
  const std::string normal = Nfc(text);
  EXPECT_EQ(normal.substr(0, 4), "\u00e1\u0327");
}

TEST(Tokenizer, BytesWithoutATokenBecomeTheUnknownTokenOrVanish) {
  TokenizerData data = Bytes();
  const TokenId unknown = Add(data, {.text = "<unk>", .special = true});
  data.tokens[0] = "gone";  // "!"
  EXPECT_EQ(Create(data)->Encode("a!b", kAsText).size(), 2u);
  data.unk_id = unknown;
  EXPECT_EQ(Create(data)->Encode("a!b", kAsText)[1], unknown);
}

TEST(Tokenizer, DataThatContradictsItselfIsRefused) {
  const auto message = [](const TokenizerData& data) {
    const auto tokenizer = Tokenizer::Create(data);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(tokenizer.status().message());
  };
  TokenizerData data = Bytes();
  data.added.push_back({.id = 256, .text = "x"});
  EXPECT_THAT(message(data), HasSubstr("id 256, but the vocabulary has 256 tokens"));
  data = Bytes();
  data.bos_id = -5;
  EXPECT_THAT(message(data), HasSubstr("-5"));
  data = Bytes();
  data.add_bos = true;
  EXPECT_THAT(message(data), HasSubstr("not given"));
  data = Bytes();
  data.merges = {{"a", "b"}};
  EXPECT_THAT(message(data), HasSubstr("merge 0"));
  data = Bytes();
  data.split_patterns = {"(unclosed"};
  EXPECT_THAT(message(data), HasSubstr("(unclosed"));
  data = Bytes();
  data.tokens.clear();
  EXPECT_THAT(message(data), HasSubstr("empty"));
}

TEST(Tokenizer, SpecialTokensShowOnlyWhereAsked) {
  TokenizerData data = Bytes();
  const TokenId end = Add(data, {.text = "<end>", .special = true});
  const auto tokenizer = Create(data);
  EXPECT_EQ(tokenizer->Bytes(end), "");
  EXPECT_EQ(tokenizer->Bytes(end, true), "<end>");
  EXPECT_TRUE(tokenizer->IsSpecial(end));
  EXPECT_EQ(tokenizer->bos_id(), -1);
}

TEST(Detokenizer, GoesOnFromAnothersPendingBytes) {
  const auto tokenizer = Create(Bytes());
  const Ids ids = tokenizer->Encode("\U0001F600", kAsText);
  Detokenizer first(tokenizer.get());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first.Push(ids[i]), "");
  Detokenizer second(tokenizer.get());
  second.set_pending(first.pending());
  EXPECT_EQ(second.Push(ids[3]), "\U0001F600");
  EXPECT_EQ(second.Flush(), "");
}

}  // namespace
}  // namespace sluice
