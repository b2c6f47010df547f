// `sluice models show` on tiny models.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/command_line_runner.h"

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(ModelsShow, PrintsWhatAFolderHoldsAsJson) {
  const CommandLineResult result = RunSluice({"models", "show", SLUICE_TEST_DATA "/tiny/llama-gqa", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto shown = nlohmann::json::parse(result.out);
  EXPECT_EQ(shown["format"], "huggingface");
  EXPECT_EQ(shown["architecture"], "llama");
  EXPECT_EQ(shown["config"]["kv_heads"], 2);
  EXPECT_EQ(shown["config"]["rope"]["pairing"], "half");
  // Four layers of K and V with two heads of 16 values.
  EXPECT_EQ(shown["kv_bytes_per_token"]["bf16"], 4 * 2 * 2 * 16 * 2);
  EXPECT_EQ(shown["kv_bytes_per_token"]["f32"], 4 * 2 * 2 * 16 * 4);
  EXPECT_EQ(shown["tensors"].size(), 39u);
  size_t bytes = 0;
  for (const auto& tensor : shown["tensors"]) bytes += tensor["bytes"].get<size_t>();
  EXPECT_EQ(shown["weights_bytes"], bytes);
  EXPECT_EQ(shown["weights_by_type"]["BF16"]["tensors"], 39);
  EXPECT_EQ(shown["model_hash"].get<std::string>().size(), 64u);
}

TEST(ModelsShow, PrintsAGgufFileForPeople) {
  const CommandLineResult result = RunSluice({"models", "show", SLUICE_TEST_DATA "/gguf/llama-gqa-bf16.gguf"});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* words : {"(gguf)", "llama, llama-gqa", "4 layers, hidden 96", "pairs interleaved",
                            "none: the file has no tokenizer", "blk.3.attn_q.weight", "[96, 96]"}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
}

TEST(ModelsShow, SaysWhatADeepSeekKeepsAndHowManyExpertsItHas) {
  const std::string path = SLUICE_TEST_DATA "/tiny/deepseek-v3";
  const CommandLineResult json = RunSluice({"models", "show", path, "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  const auto shown = nlohmann::json::parse(json.out);
  EXPECT_EQ(shown["architecture"], "deepseek_v3");
  EXPECT_EQ(shown["synthetic"], false);
  EXPECT_EQ(shown["config"]["mla"]["latent"], 32);
  EXPECT_EQ(shown["config"]["moe"]["choice"], "noaux_tc");
  EXPECT_EQ(shown["kv_bytes_per_token"]["bf16"], 3 * (32 + 16) * 2);
  const CommandLineResult text = RunSluice({"models", "show", path});
  EXPECT_THAT(text.out, HasSubstr("4 heads, a latent of 32 and a shared key of 16 (keys of 40, values of 24)"));
  EXPECT_THAT(text.out, HasSubstr("8 of 48 from layer 1 on, 3 a token and 1 shared, chosen by noaux_tc"));
}

// A folder that the test removes.
class ModelsSynth : public testing::Test {
 protected:
  // Of its own: tests run side by side.
  ModelsSynth() : folder_(absl::StrCat(testing::TempDir(), "synth.", getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~ModelsSynth() override { std::filesystem::remove_all(folder_); }

  CommandLineResult Synth(const std::string& out, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"models",   "synth", "--out", folder_ + out, "--layers", "2",
                                          "--hidden", "32",    "--mlp", "48",          "--vocab",  "300"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunSluice(arguments);
  }
  std::string Bytes(const std::string& file) {
    std::ifstream in(folder_ + file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string folder_;
};

TEST_F(ModelsSynth, WritesAModelWithTheAttentionOfV2LiteThatSaysItIsSynthetic) {
  ASSERT_EQ(Synth("/a").status, 0);
  const CommandLineResult json = RunSluice({"models", "show", folder_ + "/a", "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  const auto shown = nlohmann::json::parse(json.out);
  EXPECT_EQ(shown["synthetic"], true);
  EXPECT_EQ(shown["config"]["layers"], 2);
  EXPECT_EQ(shown["config"]["heads"], 16);
  EXPECT_EQ(
      shown["config"]["mla"],
      (nlohmann::json{{"query_rank", 0}, {"latent", 512}, {"nope_dim", 128}, {"rope_dim", 64}, {"value_dim", 128}}));
  EXPECT_EQ(shown["kv_bytes_per_token"],
            (nlohmann::json{{"f32", 2 * 576 * 4}, {"bf16", 2 * 576 * 2}, {"f16", 2 * 576 * 2}, {"mla-fp8", 2 * 656}}));
  EXPECT_THAT(RunSluice({"models", "show", folder_ + "/a"}).out, HasSubstr("random weights"));
}

TEST_F(ModelsSynth, TheSameSeedWritesTheSameBytesAndAnotherDoesNot) {
  ASSERT_EQ(Synth("/a").status, 0);
  ASSERT_EQ(Synth("/b").status, 0);
  ASSERT_EQ(Synth("/c", {"--seed", "2"}).status, 0);
  EXPECT_EQ(Bytes("/a/model.safetensors"), Bytes("/b/model.safetensors"));
  EXPECT_NE(Bytes("/a/model.safetensors"), Bytes("/c/model.safetensors"));
}

TEST_F(ModelsSynth, WhatItWritesContinuesText) {
  ASSERT_EQ(Synth("/a").status, 0);
  for (const char* codec : {"auto", "mla-fp8"}) {
    const CommandLineResult result =
        RunSluice({"complete", "--model", folder_ + "/a", "--prompt", "Wörter", "--max-tokens", "6", "--ignore-eos",
                   "--threads", "2", "--kv-store", codec, "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    const auto answer = nlohmann::json::parse(result.out);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], 7);
    EXPECT_EQ(answer["ids"].size(), 6u);
  }
}

TEST_F(ModelsSynth, RefusesWhatItCannotWriteAndOverwritesNothing) {
  ASSERT_EQ(Synth("/a").status, 0);
  EXPECT_THAT(Synth("/a").err, HasSubstr("/a is there already"));
  EXPECT_THAT(Synth("/b", {"--like", "v9"}).err, HasSubstr("there is no model like \"v9\", there are v2-lite"));
  EXPECT_THAT(RunSluice({"models", "synth", "--out", folder_ + "/b", "--vocab", "257"}).err,
              HasSubstr("vocab is 257, 258 to"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/b"));
}

TEST(ModelsShow, EndsWithStatusOneAndTheReasonForABrokenFile) {
  const CommandLineResult result = RunSluice({"models", "show", SLUICE_TEST_DATA "/gguf/make_gguf.py"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("make_gguf.py: not a GGUF file"));
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(RunSluice({"models", "show", "/nowhere"}).err, HasSubstr("/nowhere: "));
}

}  // namespace
}  // namespace sluice
