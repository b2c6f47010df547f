#include "gateway/openai_request.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kVocab = 100;

OpenAiRequest Good(OpenAiApi api, const std::string& body) {
  StatusOr<OpenAiRequest> request = ParseOpenAiRequest(api, body, kVocab);
  EXPECT_TRUE(request.ok()) << body << ": " << request.status();
  return request.ok() ? *std::move(request) : OpenAiRequest();
}
OpenAiRequest Completion(const std::string& fields) {
  return Good(OpenAiApi::kCompletions, R"({"prompt":"hi")" + fields + "}");
}
OpenAiRequest Chat(const std::string& fields) {
  return Good(OpenAiApi::kChat, R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}");
}

struct BadBody {
  const char* body;
  const char* param;    // of the error
  const char* message;  // part of it
};

void ExpectRefused(OpenAiApi api, const BadBody& bad) {
  SCOPED_TRACE(bad.body);
  const StatusOr<OpenAiRequest> request = ParseOpenAiRequest(api, bad.body, kVocab);
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorParam(request.status()), bad.param) << request.status();
  EXPECT_THAT(std::string(request.status().message()), HasSubstr(bad.message));
}

const BadBody kBadCompletions[] = {
    BadBody{"", "", "body is not JSON"},
    BadBody{"{", "", "body is not JSON"},
    BadBody{"]]]]", "", "body is not JSON"},
    BadBody{"[]", "", "body is an array, must be an object"},
    BadBody{"null", "", "body is null"},
    BadBody{"{\"prompt\":\"\xff\"}", "", "body is not JSON"},
    BadBody{R"({"prompt":NaN})", "", "body is not JSON"},
    BadBody{R"({"prompt":"a","temperature":1e999})", "", "body is not JSON"},
    BadBody{R"({})", "prompt", "prompt is missing"},
    BadBody{R"({"prompt":null})", "prompt", "prompt is missing"},
    BadBody{R"({"prompt":7})", "prompt", "prompt is an integer"},
    BadBody{R"({"prompt":{}})", "prompt", "prompt is an object"},
    BadBody{R"({"prompt":[]})", "prompt", "0 tokens"},
    BadBody{R"({"prompt":[[]]})", "prompt", "0 tokens"},
    BadBody{R"({"prompt":["a","b"]})", "prompt", "2 prompts, must be 1"},
    BadBody{R"({"prompt":[[1],[2],[3]]})", "prompt", "3 prompts, must be 1"},
    BadBody{R"({"prompt":[1,"a"]})", "prompt", "prompt[1] is a string"},
    BadBody{R"({"prompt":[1,2.5]})", "prompt", "prompt[1] is a fraction"},
    BadBody{R"({"prompt":[1,100]})", "prompt", "prompt[1] is 100, must be from 0 to 99"},
    BadBody{R"({"prompt":[-1]})", "prompt", "prompt[0] is -1, must be from 0 to 99"},
    BadBody{R"({"prompt":[18446744073709551615]})", "prompt", "18446744073709551615, must be from 0 to 99"},
    BadBody{R"({"prompt":"a","model":5})", "model", "model is an integer, must be a string"},
    BadBody{R"({"prompt":"a","temperature":"hot"})", "temperature", "temperature is a string"},
    BadBody{R"({"prompt":"a","temperature":2.5})", "temperature", "temperature is 2.5, must be from 0 to 2"},
    BadBody{R"({"prompt":"a","temperature":1e300})", "temperature", "temperature is 1e+300"},
    BadBody{R"({"prompt":"a","top_p":0})", "top_p", "top_p is 0"},
    BadBody{R"({"prompt":"a","top_p":1.5})", "top_p", "top_p is 1.5, must be from 0 to 1"},
    BadBody{R"({"prompt":"a","min_p":-0.5})", "min_p", "min_p is -0.5"},
    BadBody{R"({"prompt":"a","top_k":-2})", "top_k", "top_k is -2"},
    BadBody{R"({"prompt":"a","top_k":true})", "top_k", "top_k is a boolean, must be an integer"},
    BadBody{R"({"prompt":"a","presence_penalty":3})", "presence_penalty", "presence_penalty is 3, must be from -2"},
    BadBody{R"({"prompt":"a","frequency_penalty":-3})", "frequency_penalty", "frequency_penalty is -3"},
    BadBody{R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty", "repetition_penalty is 0"},
    BadBody{R"({"prompt":"a","n":0})", "n", "n is 0, must be from 1 to 16"},
    BadBody{R"({"prompt":"a","n":17})", "n", "n is 17, must be from 1 to 16"},
    BadBody{R"({"prompt":"a","n":2,"best_of":4})", "best_of", "best_of is 4, must equal n, which is 2"},
    BadBody{R"({"prompt":"a","max_tokens":0})", "max_tokens", "max_tokens is 0, must be from 1"},
    BadBody{R"({"prompt":"a","max_tokens":1.5})", "max_tokens", "max_tokens is a fraction"},
    BadBody{R"({"prompt":"a","max_tokens":99999999999999999999})", "max_tokens", "max_tokens is a fraction"},
    BadBody{R"({"prompt":"a","max_tokens":5,"min_tokens":6})", "min_tokens", "min_tokens is 6, must be from 0 to 5"},
    BadBody{R"({"prompt":"a","seed":"x"})", "seed", "seed is a string"},
    BadBody{R"({"prompt":"a","stop":5})", "stop", "stop is an integer"},
    BadBody{R"({"prompt":"a","stop":["x",5]})", "stop", "stop is an integer"},
    BadBody{R"({"prompt":"a","stop":""})", "", "length of a stop string in bytes is 0"},
    BadBody{R"({"prompt":"a","stop":["","","","","","","","","","","","","","","","",""]})", "stop", "17 strings"},
    BadBody{R"({"prompt":"a","stop_token_ids":[100]})", "stop_token_ids", "stop_token_ids[0] is 100"},
    BadBody{R"({"prompt":"a","stop_token_ids":7})", "stop_token_ids", "stop_token_ids is an integer"},
    BadBody{R"({"prompt":"a","logit_bias":[]})", "logit_bias", "logit_bias is an array"},
    BadBody{R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias", "logit_bias has the key \"x\""},
    BadBody{R"({"prompt":"a","logit_bias":{"100":1}})", "logit_bias", "must be a token id from 0 to 99"},
    BadBody{R"({"prompt":"a","logit_bias":{"5":"1"}})", "logit_bias", "logit_bias is a string"},
    BadBody{R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias", "logit_bias of token 5 is 101"},
    BadBody{R"({"prompt":"a","logprobs":21})", "logprobs", "logprobs is 21, must be from 0 to 20"},
    BadBody{R"({"prompt":"a","logprobs":true})", "logprobs", "logprobs is a boolean"},
    BadBody{R"({"prompt":"a","stream":"yes"})", "stream", "stream is a string"},
    BadBody{R"({"prompt":"a","stream_options":{"include_usage":true}})", "stream_options", "stream is false"},
    BadBody{R"({"prompt":"a","stream":true,"stream_options":3})", "stream_options", "stream_options is an integer"},
    BadBody{R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})", "include_usage", "an integer"},
    BadBody{R"({"prompt":"a","echo":true})", "echo", "echo is true"},
    BadBody{R"({"prompt":"a","suffix":"end"})", "suffix", "suffix is \"end\""},
    BadBody{R"({"prompt":"a","prompt_logprobs":1})", "prompt_logprobs", "prompt_logprobs is 1"},
    BadBody{R"({"prompt":"a","response_format":{"type":"json_object"}})", "response_format", "json_object"},
    BadBody{R"({"prompt":"a","kv_transfer_params":{"remote_host":"evil"}})", "kv_transfer_params", "not taken"},
    BadBody{R"({"prompt":"a","kv_transfer_params":null})", "kv_transfer_params", "not taken"},
    BadBody{R"({"prompt":"a","bootstrap_room":1})", "bootstrap_room", "not taken"}};

const BadBody kBadChats[] = {
    BadBody{"{}", "messages", "messages is missing"},
    BadBody{R"({"messages":"hi"})", "messages", "a string"},
    BadBody{R"({"messages":[]})", "messages", "0 entries"},
    BadBody{R"({"messages":["hi"]})", "messages[0]", "messages[0] is a string"},
    BadBody{R"({"messages":[{"content":"x"}]})", "messages[0].role", "messages[0].role is null"},
    BadBody{R"({"messages":[{"role":"user"}]})", "messages[0].content", "is missing"},
    BadBody{R"({"messages":[{"role":"user","content":5}]})", "messages[0].content", "an integer"},
    BadBody{R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]", "a string"},
    BadBody{R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
            "messages[0].content[0].type", "\"image_url\", only \"text\""},
    BadBody{R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text", "null"},
    BadBody{R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0]", "function"},
    BadBody{R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{"}}]}]})",
            "messages[0].tool_calls[0]", "not JSON"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"tools":{}})", "tools", "tools is an object"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})", "tool_choice", "required"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"functions":[{}]})", "functions", "use tools"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"logprobs":5})", "logprobs", "an integer"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":5})", "top_logprobs", "logprobs is false"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21})", "top_logprobs", "21"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"max_completion_tokens":-4})", "max_completion_tokens",
            "-4"},
    BadBody{R"({"messages":[{"role":"user","content":"x"}],"kv_transfer_params":{}})", "kv_transfer_params",
            "not taken"}};

TEST(OpenAiRequest, BadCompletionsAreRefusedNamingFieldAndValues) {
  for (const BadBody& bad : kBadCompletions) ExpectRefused(OpenAiApi::kCompletions, bad);
}

TEST(OpenAiRequest, BadChatsAreRefusedNamingFieldAndValues) {
  for (const BadBody& bad : kBadChats) ExpectRefused(OpenAiApi::kChat, bad);
}

TEST(OpenAiRequest, SaysWhatIsDefaultWhenNothingIsAsked) {
  const OpenAiRequest request = Completion("");
  EXPECT_EQ(request.prompt_text, "hi");
  EXPECT_FALSE(request.stream || request.max_tokens.has_value() || request.seed.has_value());
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.n, 1);
}

TEST(OpenAiRequest, TakesEveryFieldOfSampling) {
  const OpenAiRequest request = Completion(
      R"(,"temperature":0.5,"top_k":7,"top_p":0.25,"min_p":0.125,"repetition_penalty":1.5,"presence_penalty":-1,
         "frequency_penalty":2,"logit_bias":{"7":-100,"3":1.5},"seed":-1,"n":4,"max_tokens":9,"min_tokens":2,
         "ignore_eos":true,"stop_token_ids":[5,6],"stop":["a","b"],"logprobs":3,"return_token_ids":true,
         "return_timings":true)");
  const SamplingParams& s = request.sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.presence_penalty, -1.0f);
  EXPECT_EQ(s.frequency_penalty, 2.0f);
  ASSERT_EQ(s.logit_bias.size(), 2u);
  EXPECT_EQ(s.logit_bias[0].token, 7);
  EXPECT_EQ(s.logit_bias[1].bias, 1.5f);
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_EQ(s.n, 4);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_TRUE(s.ignore_eos && s.logprobs && request.return_token_ids && request.return_timings);
  EXPECT_THAT(s.stop_token_ids, ElementsAre(5, 6));
  EXPECT_THAT(s.stop_strings, ElementsAre("a", "b"));
  EXPECT_EQ(s.top_logprobs, 3);
}

TEST(OpenAiRequest, TakesAPromptInEachOfItsForms) {
  EXPECT_EQ(Good(OpenAiApi::kCompletions, R"({"prompt":["hi"]})").prompt_text, "hi");
  EXPECT_THAT(Good(OpenAiApi::kCompletions, R"({"prompt":[1,99]})").prompt_ids, ElementsAre(1, 99));
  EXPECT_THAT(Good(OpenAiApi::kCompletions, R"({"prompt":[[1,99]]})").prompt_ids, ElementsAre(1, 99));
}

TEST(OpenAiRequest, IgnoresFieldsThatClientsSendAndNullsOfThoseItKnows) {
  const OpenAiRequest request = Chat(
      R"(,"user":"me","metadata":{"a":"b"},"store":false,"stop":null,"seed":null,"max_tokens":null,"tools":null,
         "stream":null,"echo":false,"logit_bias":null,"response_format":{"type":"text"},"reasoning_effort":"low")");
  EXPECT_FALSE(request.stream || request.max_tokens.has_value());
}

TEST(OpenAiRequest, LogprobsZeroMeansTheChosenTokenOnly) {
  const OpenAiRequest request = Completion(R"(,"logprobs":0)");
  EXPECT_TRUE(request.sampling.logprobs);
  EXPECT_EQ(request.sampling.top_logprobs, 0);
}

TEST(OpenAiRequest, KeepingMoreThanTheVocabularyIsKeepingAll) {
  EXPECT_EQ(Completion(R"(,"top_k":-1)").sampling.top_k, 0);
  EXPECT_EQ(Completion(R"(,"top_k":100000)").sampling.top_k, 0);
}

TEST(OpenAiRequest, MaxCompletionTokensIsTheNewNameInChats) {
  EXPECT_EQ(Chat(R"(,"max_completion_tokens":5)").max_tokens, 5);
}

TEST(OpenAiRequest, JoinsTextPartsAndKeepsNull) {
  const OpenAiRequest request = Good(OpenAiApi::kChat, R"({"messages":[
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1}"}}]}]})");
  EXPECT_EQ(request.messages[0]["content"], "a\nb");
  EXPECT_TRUE(request.messages[1]["content"].is_null());
  EXPECT_EQ(request.messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
}

TEST(OpenAiRequest, KeepsToolsUnlessTheChoiceIsNone) {
  EXPECT_EQ(Chat(R"(,"tools":[{"type":"function"}])").tools.size(), 1u);
  EXPECT_TRUE(Chat(R"(,"tools":[{"type":"function"}],"tool_choice":"none")").tools.is_null());
}

TEST(OpenAiRequest, AsksForUsageInAStream) {
  EXPECT_TRUE(Completion(R"(,"stream":true,"stream_options":{"include_usage":true})").include_usage);
}

std::string Repeated(const std::string& piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

TEST(OpenAiRequest, RefusesDeepNestingBeforeParsingIt) {
  const auto status =
      ParseOpenAiRequest(OpenAiApi::kCompletions, R"({"x":)" + Repeated("[", 1'000'000), kVocab).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("deeper than 64"));
}

TEST(OpenAiRequest, RefusesMillionsOfValues) {
  const auto status =
      ParseOpenAiRequest(OpenAiApi::kCompletions, R"({"prompt":[)" + Repeated("1,", kJsonValuesMax) + "1]}", kVocab)
          .status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1000000 values"));
}

TEST(OpenAiRequest, RefusesAnObjectOfManyNames) {
  std::string body = R"({"logit_bias":{"0":0)";
  for (int i = 1; i <= kJsonMembersMax; ++i) absl::StrAppend(&body, ",\"", i, "\":0");
  const auto status = ParseOpenAiRequest(OpenAiApi::kCompletions, body + "}}", kVocab).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1500 members"));
}

TEST(OpenAiRequest, BracketsInsideStringsAreText) {
  const std::string text = Repeated("[{:,", 1000);
  EXPECT_EQ(Good(OpenAiApi::kCompletions, R"({"prompt":"\")" + text + "\"}").prompt_text, "\"" + text);
}

}  // namespace
}  // namespace sluice
