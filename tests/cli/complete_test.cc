// `sluice complete` in one process: the golden continuation of tiny models, and errors in a sentence.
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "nlohmann/json.hpp"
#include "tests/cli/command_line_runner.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// The integers of a tensor of a tiny model's golden.safetensors.
std::vector<int64_t> Golden(const std::string& model, const std::string& tensor) {
  return ReadGoldenTensors(SLUICE_TEST_DATA "/tiny/" + model + "/golden.safetensors")[tensor].i64;
}

// `complete` in f32, as the goldens were made.
std::vector<std::string> ExactArguments(const std::string& path, const std::vector<int64_t>& prompt, int max_tokens) {
  return {"complete",
          "--model",
          path,
          "--prompt-ids",
          absl::StrJoin(prompt, ","),
          "--max-tokens",
          absl::StrCat(max_tokens),
          "--temperature",
          "0",
          "--ignore-eos",
          "--exact",
          "--kv-store",
          "f32",
          "--threads",
          "1",
          "--json"};
}

std::vector<std::string> GreedyArguments(const std::string& model, const std::string& path) {
  return ExactArguments(path, Golden(model, "input_ids"), 32);
}

class CompleteTiny : public testing::TestWithParam<const char*> {};

TEST_P(CompleteTiny, SaysTheGoldenGreedyTokens) {
  const std::string model = GetParam();
  const CommandLineResult result = RunSluice(GreedyArguments(model, SLUICE_TEST_DATA "/tiny/" + model));
  ASSERT_EQ(result.status, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  EXPECT_EQ(answer["ids"].get<std::vector<int64_t>>(), Golden(model, "greedy_ids"));
  EXPECT_EQ(answer["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 32);
  EXPECT_EQ(answer["logprobs"], nullptr);
  EXPECT_TRUE(answer["timings"].contains("prefill_ms"));
}

INSTANTIATE_TEST_SUITE_P(Llama, CompleteTiny, testing::Values("llama-gqa", "llama-mha", "llama-mqa-tied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Complete, SaysTheSameFromTheGgufOfAModel) {
  for (const char* model : {"llama-gqa", "llama-rope-llama3"}) {
    const CommandLineResult result =
        RunSluice(GreedyArguments(model, SLUICE_TEST_DATA "/gguf/" + std::string(model) + "-bf16.gguf"));
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out)["ids"].get<std::vector<int64_t>>(), Golden(model, "greedy_ids"));
  }
}

// The flags that name each policy, and the way its prompt goes, against the oracle's generations.
TEST(Complete, SaysTheOraclesTokensUnderEachCachePolicy) {
  using Flags = std::vector<std::string>;
  const std::vector<std::pair<std::string, Flags>> cases = {
      {"sink_window_4_28_p113", {"--cache-policy", "sink-window", "--sinks", "4", "--window", "28"}},
      {"sink_window_4_28_p113_streamed", {"--cache-policy", "sink-window", "--window", "28", "--prefill", "streamed"}},
      {"window_0_32_p113", {"--cache-policy", "sink-window", "--sinks", "0", "--cache-budget", "32"}},
      {"h2o_32_r16_p113", {"--cache-policy", "h2o", "--cache-budget", "32"}},
      {"h2o_32_r16_p113_streamed", {"--cache-policy", "h2o", "--cache-budget", "32", "--prefill", "streamed"}},
      {"h2o_32_s4_r16_p200", {"--cache-policy", "h2o", "--cache-budget", "16%", "--sinks", "4", "--window", "16"}},
      {"snapkv_48_w16_p113", {"--cache-policy", "snapkv", "--cache-budget", "48", "--window", "16"}},
      {"tova_32_r0_p200", {"--cache-policy", "tova", "--cache-budget", "32", "--window", "0"}},
      {"tova_32_p113", {"--cache-policy", "tova", "--cache-budget", "32"}},
      {"mla_h2o_32_r16_p113", {"--cache-policy", "h2o", "--cache-budget", "32"}},
      {"mla_sink_window_4_28_p113", {"--cache-policy", "sink-window", "--cache-budget", "32"}}};
  const std::string policies = SLUICE_TEST_DATA "/policies/";
  for (const auto& [name, flags] : cases) {
    SCOPED_TRACE(name);
    auto golden = ReadGoldenTensors(policies + name + ".safetensors");
    const std::string model = name.starts_with("mla") ? "tiny-deepseek-mla" : "tiny-llama-gqa";
    Flags arguments = ExactArguments(policies + "models/" + model, golden["prompt"].i64, 64);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const CommandLineResult result = RunSluice(arguments);
    ASSERT_EQ(result.status, 0) << result.err;
    const auto answer = nlohmann::json::parse(result.out);
    EXPECT_EQ(answer["ids"].get<std::vector<int64_t>>(), golden["tokens"].i64);
    const auto prompt = static_cast<int64_t>(golden["prompt"].i64.size());
    EXPECT_EQ(answer["cache"]["kept_tokens"].get<int64_t>() + answer["cache"]["dropped_tokens"].get<int64_t>(),
              prompt + 63);
    EXPECT_GT(answer["cache"]["dropped_tokens"], 0);
  }
}

TEST(Complete, GivesLogProbabilitiesOfEachToken) {
  const CommandLineResult result =
      RunSluice({"complete", "--model", SLUICE_TEST_DATA "/tiny/llama-mha", "--prompt-ids", "5,6,7", "--max-tokens",
                 "4", "--ignore-eos", "--logprobs", "2", "--threads", "1", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  ASSERT_EQ(answer["logprobs"].size(), 4u);
  for (const auto& token : answer["logprobs"]) {
    ASSERT_EQ(token["top"].size(), 2u);
    // Greedy: the token is the likeliest.
    EXPECT_EQ(token["logprob"], token["top"][0]["logprob"]);
    EXPECT_LT(token["logprob"].get<float>(), 0);
  }
}

TEST(Complete, PrintsIdsWhereTheModelHasNoTokenizer) {
  const CommandLineResult result = RunSluice({"complete", "--model", SLUICE_TEST_DATA "/tiny/llama-mha", "--prompt-ids",
                                              "5,6,7", "--max-tokens", "3", "--ignore-eos", "--threads", "1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::MatchesRegex("[0-9]+ [0-9]+ [0-9]+ \n"));
}

TEST(Complete, RunsOnTheInstructionSetThatTheEnvironmentNames) {
  const std::vector<std::string> arguments = {
      "complete", "--model", SLUICE_TEST_DATA "/tiny/llama-mha", "--prompt-ids", "5,6,7", "--max-tokens",
      "2",        "--json"};
  setenv("SLUICE_CPU", "portable", 1);
  EXPECT_EQ(RunSluice(arguments).status, 0);
  EXPECT_EQ(ActiveIsa(), Isa::kPortable);
  setenv("SLUICE_CPU", "sse", 1);
  const CommandLineResult wrong = RunSluice(arguments);
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, testing::AllOf(HasSubstr("\"sse\""), HasSubstr("portable, avx2, avx512")));
  unsetenv("SLUICE_CPU");
  EXPECT_EQ(RunSluice(arguments).status, 0);
  EXPECT_EQ(ActiveIsa(), SupportedIsas().back());
}

TEST(Complete, EndsWithStatusOneAndTheReason) {
  const std::string tiny = SLUICE_TEST_DATA "/tiny/llama-mha";
  const auto refusal = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"complete", "--model", tiny, "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandLineResult result = RunSluice(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(refusal({"--prompt", "text"}), HasSubstr("can only be given token ids"));
  EXPECT_THAT(refusal({"--prompt-ids", "320"}),
              HasSubstr("token id 320 of the prompt is outside the vocabulary of 320"));
  std::string long_prompt = "1";
  for (int i = 0; i < 511; ++i) long_prompt += ",1";
  EXPECT_THAT(refusal({"--prompt-ids", long_prompt}),
              HasSubstr("the prompt has 512 tokens, the model's context is 512"));
  EXPECT_THAT(refusal({"--prompt-ids", "1", "--temperature", "-1"}), HasSubstr("temperature"));
  EXPECT_THAT(RunSluice({"complete", "--model", "/nowhere.gguf", "--prompt", "a"}).err, HasSubstr("/nowhere.gguf: "));
}

}  // namespace
}  // namespace sluice
