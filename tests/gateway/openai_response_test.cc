#include "gateway/openai_response.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/fake_tokenizer.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;

proto::GeneratedToken Token(TokenId id, const std::string& text, float logprob = 0,
                            std::vector<std::pair<TokenId, float>> top = {}) {
  proto::GeneratedToken token;
  token.set_token(id);
  token.set_text(text);
  token.set_logprob(logprob);
  for (const auto& [t, p] : top) {
    token.add_top()->set_token(t);
    token.mutable_top()->rbegin()->set_logprob(p);
  }
  return token;
}

proto::GenerateEvent Event(uint32_t choice, std::vector<proto::GeneratedToken> tokens,
                           proto::FinishReason finish = proto::FINISH_NONE) {
  proto::GenerateEvent event;
  event.set_choice(choice);
  for (const auto& token : tokens) *event.add_tokens() = token;
  event.set_finish(finish);
  return event;
}

class OpenAiResponse : public testing::Test {
 protected:
  OpenAiResponse() {
    usage_.set_prompt_tokens(3);
    usage_.set_completion_tokens(2);
    usage_.set_cached_tokens(1);
  }
  AnswerHead Head(OpenAiApi api, bool logprobs = false) {
    return {.api = api,
            .request_id = 0xabc,
            .created_unix_s = 7,
            .model = "m",
            .logprobs = logprobs,
            .tokenizer = &tokenizer_};
  }

  FakeTokenizer tokenizer_;
  proto::Usage usage_;
};

TEST_F(OpenAiResponse, CompletionHasTextFinishReasonAndUsage) {
  const std::vector<AnswerChoice> choices = {{{Token('h', "h"), Token('i', "i")}, proto::FINISH_LENGTH}};
  const Json body = Json::parse(AnswerBody(Head(OpenAiApi::kCompletions), choices, usage_, {}, nullptr));
  EXPECT_EQ(body, Json::parse(R"({"id":"cmpl-0000000000000abc","object":"text_completion","created":7,"model":"m",
    "choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"length"}],
    "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}})"));
}

TEST_F(OpenAiResponse, ChatHasAMessageForEveryChoice) {
  const std::vector<AnswerChoice> choices = {{{Token('a', "a")}, proto::FINISH_STOP},
                                             {{Token('b', "b")}, proto::FINISH_STOP}};
  const Json body = Json::parse(AnswerBody(Head(OpenAiApi::kChat), choices, usage_, {}, nullptr));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][1], Json::parse(R"({"index":1,"message":{"role":"assistant","content":"b","refusal":null},
                                                "logprobs":null,"finish_reason":"stop"})"));
}

TEST_F(OpenAiResponse, TokenIdsAndTimingsComeWhereAskedFor) {
  AnswerHead head = Head(OpenAiApi::kCompletions);
  head.return_token_ids = true;
  const AnswerTimings timings{.prefill_ms = 2.5};
  const Json body = Json::parse(AnswerBody(head, {{{Token('a', "a")}, proto::FINISH_STOP}}, usage_, {1, 2}, &timings));
  EXPECT_EQ(body["prompt_token_ids"], Json({1, 2}));
  EXPECT_EQ(body["choices"][0]["token_ids"], Json({int{'a'}}));
  EXPECT_EQ(body["timings"]["prefill_ms"], 2.5);
}

TEST_F(OpenAiResponse, CompletionLogprobsHaveAnEntryForEveryToken) {
  // The second token is half a character: it has no text, and its offset is where its character begins.
  const std::vector<AnswerChoice> choices = {
      {{Token('h', "h", -1, {{'h', -1}, {'x', -2}}), Token(0xC3, "", -3), Token(0xA9, "é", -4), Token('!', "!", -5)},
       proto::FINISH_STOP}};
  const Json logprobs = Json::parse(
      AnswerBody(Head(OpenAiApi::kCompletions, true), choices, usage_, {}, nullptr))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"h", "bytes:\\xc3", "bytes:\\xa9", "!"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({-1.0, -3.0, -4.0, -5.0}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][0], Json::parse(R"({"h":-1.0,"x":-2.0})"));
}

TEST_F(OpenAiResponse, ChatLogprobsCarryBytes) {
  const std::vector<AnswerChoice> choices = {{{Token(0xC3, "", -3, {{'x', -2}})}, proto::FINISH_STOP}};
  const Json logprobs =
      Json::parse(AnswerBody(Head(OpenAiApi::kChat, true), choices, usage_, {}, nullptr))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["content"][0], Json::parse(R"({"token":"bytes:\\xc3","logprob":-3.0,"bytes":[195],
      "top_logprobs":[{"token":"x","logprob":-2.0,"bytes":[120]}]})"));
}

TEST_F(OpenAiResponse, ChatStreamOpensWithTheRoleAndEndsWithAnEmptyDelta) {
  ChunkWriter writer(Head(OpenAiApi::kChat), 2);
  const auto opening = writer.Opening();
  ASSERT_EQ(opening.size(), 2u);
  EXPECT_EQ(Json::parse(opening[1])["choices"][0]["index"], 1);
  EXPECT_EQ(Json::parse(opening[1])["choices"][0]["delta"]["role"], "assistant");
  const auto chunks = writer.Chunks(Event(1, {Token('a', "a")}, proto::FINISH_STOP));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(Json::parse(chunks[0])["choices"][0],
            Json::parse(R"({"index":1,"delta":{"content":"a"},"logprobs":null,"finish_reason":null})"));
  EXPECT_EQ(Json::parse(chunks[1])["choices"][0],
            Json::parse(R"({"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"})"));
  EXPECT_TRUE(writer.Closing(usage_, nullptr).empty());
}

TEST_F(OpenAiResponse, CompletionStreamEndsWithItsLastText) {
  ChunkWriter writer(Head(OpenAiApi::kCompletions), 1);
  EXPECT_TRUE(writer.Opening().empty());
  const auto chunks = writer.Chunks(Event(0, {Token('a', "a")}, proto::FINISH_LENGTH));
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(Json::parse(chunks[0])["choices"][0],
            Json::parse(R"({"index":0,"text":"a","logprobs":null,"finish_reason":"length"})"));
}

TEST_F(OpenAiResponse, TokensWithoutTextSendNothingUnlessTheirLogprobsDo) {
  ChunkWriter quiet(Head(OpenAiApi::kCompletions), 1);
  EXPECT_TRUE(quiet.Chunks(Event(0, {Token(0xC3, "")})).empty());
  ChunkWriter chatty(Head(OpenAiApi::kCompletions, true), 1);
  ASSERT_EQ(chatty.Chunks(Event(0, {Token(0xC3, "", -1)})).size(), 1u);
  const auto chunks = chatty.Chunks(Event(0, {Token(0xA9, "é", -1)}));
  EXPECT_EQ(Json::parse(chunks[0])["choices"][0]["logprobs"]["text_offset"], Json({1}));
}

TEST_F(OpenAiResponse, UsageComesInAChunkOfItsOwn) {
  AnswerHead head = Head(OpenAiApi::kChat);
  head.include_usage = true;
  ChunkWriter writer(head, 1);
  EXPECT_TRUE(Json::parse(writer.Chunks(Event(0, {Token('a', "a")}))[0])["usage"].is_null());
  const Json closing = Json::parse(writer.Closing(usage_, nullptr).at(0));
  EXPECT_EQ(closing["choices"], Json::array());
  EXPECT_EQ(closing["usage"]["total_tokens"], 5);
}

TEST_F(OpenAiResponse, ErrorsNameTypeParamAndCode) {
  const Json bad = Json::parse(ErrorBody(400, FieldError("n", "n is 0")));
  EXPECT_EQ(bad,
            Json::parse(R"({"error":{"message":"n is 0","type":"invalid_request_error","param":"n","code":null}})"));
  const Json busy = Json::parse(ErrorBody(429, absl::ResourceExhaustedError("full")))["error"];
  EXPECT_EQ(busy["type"], "rate_limit_error");
  EXPECT_TRUE(busy["param"].is_null());
  EXPECT_EQ(Json::parse(ErrorBody(503, absl::UnavailableError("down")))["error"]["type"], "server_error");
}

TEST_F(OpenAiResponse, ModelListNamesTheModel) {
  const Json list = Json::parse(ModelListBody("m", 7, 2048));
  EXPECT_EQ(list["data"][0]["id"], "m");
  EXPECT_EQ(list["data"][0]["max_model_len"], 2048);
}

}  // namespace
}  // namespace sluice
