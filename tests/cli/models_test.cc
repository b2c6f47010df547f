// `sluice models show` on tiny models.
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

TEST(ModelsShow, EndsWithStatusOneAndTheReasonForABrokenFile) {
  const CommandLineResult result = RunSluice({"models", "show", SLUICE_TEST_DATA "/gguf/make_gguf.py"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("make_gguf.py: not a GGUF file"));
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(RunSluice({"models", "show", "/nowhere"}).err, HasSubstr("/nowhere: "));
}

}  // namespace
}  // namespace sluice
