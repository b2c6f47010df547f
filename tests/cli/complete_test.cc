// `sluice complete` in one process: the golden continuation of tiny models, and errors in a sentence.
#include <cstring>

#include "absl/strings/str_join.h"
#include "common/mapped_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors_file.h"
#include "nlohmann/json.hpp"
#include "tests/cli/command_line_runner.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// The integers of a tensor of a tiny model's golden.safetensors.
std::vector<int64_t> Golden(const std::string& model, const std::string& tensor) {
  const std::string path = SLUICE_TEST_DATA "/tiny/" + model + "/golden.safetensors";
  const auto file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto tensors = ParseSafetensors((*file)->bytes(), path);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  std::vector<int64_t> values;
  for (const StoredTensor& found : *tensors) {
    if (found.name != tensor) continue;
    values.resize(found.bytes.size() / sizeof(int64_t));
    std::memcpy(values.data(), found.bytes.data(), found.bytes.size());
  }
  return values;
}

std::vector<std::string> GreedyArguments(const std::string& model, const std::string& path) {
  return {"complete",
          "--model",
          path,
          "--prompt-ids",
          absl::StrJoin(Golden(model, "input_ids"), ","),
          "--max-tokens",
          "32",
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
