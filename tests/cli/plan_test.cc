// `sluice plan`: flags to numbers, as a table and as JSON.
#include <fstream>

#include "cli/plan_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/command_line_runner.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr char kLlama70B[] = "layers=80,heads=64,kv_heads=8,head_dim=128";
constexpr char kV2Lite[] = "layers=27,heads=16,latent=512,rope_dim=64,nope_dim=128,value_dim=128";

nlohmann::json PlanOf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  arguments.push_back("--json");
  const CommandLineResult result = RunSluice(arguments);
  EXPECT_EQ(result.status, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

nlohmann::json Row(const nlohmann::json& context, const std::string& codec, const std::string& policy = "full") {
  for (const auto& row : context["rows"]) {
    if (row["codec"] == codec && row["policy"] == policy) return row;
  }
  ADD_FAILURE() << "no row of " << codec << ", " << policy;
  return {};
}

TEST(Plan, PrintsSizesAndTheFormulaOfASeventyBillionParameterShape) {
  const CommandLineResult result = RunSluice({"plan", "--shape", kLlama70B, "--context", "8192"});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* words :
       {"GQA-8", "bytes = 2 x B x L x H_kv x d x s x b", "K and V", "80 layers", "8 KV heads (of 64 query heads)",
        "128 channels of a head", "1 requests at once", "2 x 2 x 80 x 8 x 128 x 8192 x 1 = 2684354560"}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
  EXPECT_THAT(result.out, ContainsRegex("8192 +as MHA +bf16 +2621440 +8192 +21.47 +20 +100.0 %"));
  EXPECT_THAT(result.out, ContainsRegex("8192 +GQA-8, full +bf16, f16 +327680 +8192 +2.684 +2.5 +12.5 %"));
  EXPECT_THAT(result.out, ContainsRegex("8192 +GQA-8, full +fp8, int8 +168960 "));
  EXPECT_THAT(result.out, Not(HasSubstr("Transfer")));
}

TEST(Plan, PrintsTheMlaFormWithItsFactors) {
  const CommandLineResult result = RunSluice({"plan", "--shape", kV2Lite, "--context", "32768"});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* words :
       {"bytes = B x L x (d_c + d_R) x s x b", "512 channels of the latent", "64 channels of the shared",
        "2 x 27 x (512 + 64) x 32768 x 1 = 1019215872", "mla-fp8 1.138889"}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
  EXPECT_THAT(result.out, ContainsRegex("heads expanded +bf16 +276480 "));
  EXPECT_THAT(result.out, ContainsRegex("MLA, full +mla-fp8 +17712 +32768 +0.5804 +0.5405 "));
  // Without the widths of the heads nothing is said of them expanded.
  const CommandLineResult plain =
      RunSluice({"plan", "--shape", "layers=27,heads=16,latent=512,rope_dim=64", "--context", "1"});
  EXPECT_THAT(plain.out, Not(HasSubstr("heads expanded")));
}

TEST(Plan, PutsEveryNumberIntoJson) {
  const auto plan =
      PlanOf({"--shape", kLlama70B, "--context", "8192,32768", "--batch", "32", "--device-memory", "80GiB", "--weights",
              "35GiB", "--policies", "sink-window:4+1020,h2o:20%,snapkv:20%,tova:409", "--link", "10Gbit/s",
              "--prefill-rate", "2000"});
  EXPECT_EQ(plan["model"]["scheme"], "GQA-8");
  EXPECT_EQ(plan["weights_bytes"], int64_t{35} << 30);
  EXPECT_EQ(plan["codecs"]["int4"]["bytes_per_element"], 0.5625);
  EXPECT_EQ(plan["formula"]["factors"]["L"], "80 layers");
  ASSERT_EQ(plan["contexts"].size(), 2u);
  const auto& at_32k = plan["contexts"][1];
  EXPECT_EQ(at_32k["mha_bf16_bytes"], int64_t{2621440} * 32768);
  const auto bf16 = Row(at_32k, "bf16");
  EXPECT_EQ(bf16["batch_bytes"], int64_t{320} << 30);
  EXPECT_EQ(bf16["requests"], 4);  // 45 GiB hold four times 10 GiB
  EXPECT_EQ(Row(at_32k, "int8")["requests"], 8);
  EXPECT_EQ(bf16["transfer"]["seconds"], 327680.0 * 32768 / 1.25e9);
  EXPECT_NEAR(bf16["transfer"]["q"], 1.25e9 / (327680.0 * 2000), 1e-9);
  EXPECT_EQ(Row(at_32k, "bf16", "sink-window:4+1020")["slots"], 1025);
  EXPECT_EQ(Row(at_32k, "bf16", "h2o:20%")["transfer"]["tokens"], 6553);
  EXPECT_EQ(Row(at_32k, "bf16", "h2o:20%")["kept_slots_bytes"], 80 * 8 * (6554 * 8 + 4));
  EXPECT_EQ(Row(at_32k, "bf16", "snapkv:20%")["slots"], 6553);
  EXPECT_EQ(Row(at_32k, "bf16", "tova:409")["slots"], 410);
  EXPECT_EQ(Row(at_32k, "bf16", "tova:409")["page_slots"], 416);
  EXPECT_EQ(at_32k["advice"]["means"], "per_layer_compressed");
  EXPECT_EQ(at_32k["advice"]["codec"], "int8");
}

TEST(Plan, SetsTwoModelsBesideEachOtherAndSaysSo) {
  const std::string mha = "layers=32,heads=32,kv_heads=32,head_dim=128";
  const auto plan = PlanOf({"--shape", kV2Lite, "--against", mha, "--context", "163840,176128"});
  const auto& contexts = plan["against"]["contexts"];
  EXPECT_NEAR(contexts[0]["there_bytes"], 85.90e9, 5e6);
  EXPECT_NEAR(contexts[0]["here_bytes"], 5.096e9, 5e5);
  EXPECT_EQ(contexts[1]["there_bytes"], int64_t{86} << 30);
  EXPECT_NEAR(contexts[0]["ratio"], 16.856, 0.0005);
  const CommandLineResult text = RunSluice({"plan", "--shape", kV2Lite, "--against", mha, "--context", "163840"});
  EXPECT_THAT(text.out, ContainsRegex("163840 +1 +163840 +85.9 +80 +5.096 +4.746 +16.86 +94.07 %"));
  EXPECT_THAT(text.out, HasSubstr("this compares two different models, MLA with MHA"));
}

TEST(Plan, AdvisesInWordsWithTheNumbersBehindThem) {
  const auto advice = [](const std::string& link) {
    const CommandLineResult result = RunSluice({"plan", "--shape", kLlama70B, "--context", "8192", "--prefill-rate",
                                                "10000", "--policies", "sink-window:252", "--link", link});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out.substr(std::min(result.out.find("advice, context 8192: "), result.out.size()));
  };
  EXPECT_THAT(advice("800Gbit/s"),
              AllOf(HasSubstr("q is 30.5 in bf16"), HasSubstr("adds 3.28 %"), HasSubstr("neither overlap")));
  EXPECT_THAT(advice("200Gbit/s"), AllOf(HasSubstr("q is 7.63"), HasSubstr("per layer 0.164 %")));
  EXPECT_THAT(advice("50Gbit/s"), AllOf(HasSubstr("q is 1.91"), HasSubstr("int8 lifts q to 3.7")));
  EXPECT_THAT(advice("20Gbit/s"), AllOf(HasSubstr("1.31 times as long as prefill"), HasSubstr("int8 lifts q to 1.48")));
  EXPECT_THAT(advice("5Gbit/s"),
              AllOf(HasSubstr("no codec lifts q to 1"), HasSubstr("bf16 of what sink-window:252 keeps lifts q to 6.")));
  EXPECT_THAT(advice("100Mbit/s"), AllOf(HasSubstr("int4 of what sink-window:252 keeps, has q 0.44"),
                                         HasSubstr("keep at most 111 of 8192 tokens")));
}

// The commands in cli/README.md print what stands below them there.
TEST(Plan, PrintsTheExampleOfTheReadme) {
  std::ifstream file(SLUICE_TEST_DATA "/../../cli/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  const std::string start = "\n$ sluice plan ";
  int examples = 0;
  for (size_t at = readme.find(start); at != std::string::npos; at = readme.find(start, at + 1), ++examples) {
    const size_t line_end = readme.find('\n', at + 1);
    std::vector<std::string> arguments;
    std::istringstream words(readme.substr(at + 10, line_end - at - 10));
    for (std::string word; words >> word;) arguments.push_back(word);
    const size_t block_end = readme.find("```", line_end);
    EXPECT_EQ(RunSluice(arguments).out, readme.substr(line_end + 1, block_end - line_end - 1));
  }
  EXPECT_EQ(examples, 2);
}

TEST(Plan, NamesTheRateOfPrefillThatALinkKeepsUpWith) {
  const CommandLineResult result = RunSluice({"plan", "--shape", kLlama70B, "--context", "8192", "--link", "10Gbit/s"});
  EXPECT_THAT(result.out, ContainsRegex("8192 +full +bf16, f16 +8192 +2.684 +2.147 +3815\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("advice")));
}

TEST(Plan, ReadsAModelsShapeWeightsAndContextFromItsCheckpoint) {
  const auto plan = PlanOf({"--model", SLUICE_TEST_DATA "/tiny/llama-gqa", "--device-memory", "1GiB"});
  EXPECT_EQ(plan["model"]["kv_heads"], 2);
  EXPECT_EQ(plan["codecs"]["bf16"]["bytes_per_token"], 4 * 2 * 2 * 16 * 2);
  EXPECT_GT(plan["scratch_bytes"], 1 << 20);
  ASSERT_EQ(plan["contexts"].size(), 1u);
  const int64_t context = plan["contexts"][0]["context_tokens"];
  const int64_t model = plan["weights_bytes"].get<int64_t>() + plan["scratch_bytes"].get<int64_t>();
  const int64_t room = (int64_t{1} << 30) - model;
  EXPECT_EQ(Row(plan["contexts"][0], "f32")["requests"], room / (16 * 1024) / ((context + 15) / 16));
  const auto gguf = PlanOf({"--model", SLUICE_TEST_DATA "/gguf/llama-gqa-bf16.gguf", "--context", "5"});
  EXPECT_EQ(gguf["contexts"][0]["rows"][0]["slots"], 5);
}

TEST(Plan, SaysWhereAPromptIsBeyondTheModelsContext) {
  const char* model = SLUICE_TEST_DATA "/tiny/llama-gqa";
  const int64_t context = PlanOf({"--model", model})["contexts"][0]["context_tokens"].get<int64_t>();
  const std::string both = absl::StrCat(context, ",", context + 1);
  EXPECT_THAT(RunSluice({"plan", "--model", model, "--context", both}).out,
              HasSubstr(absl::StrCat("note: ", context + 1, " tokens are more than the model's context of ", context)));
  EXPECT_THAT(RunSluice({"plan", "--model", model}).out, Not(HasSubstr("note:")));
}

TEST(Plan, ReadsTheLatentOfAnMlaModel) {
  const auto plan = PlanOf({"--model", SLUICE_TEST_DATA "/tiny/deepseek-v2-lite", "--context", "10"});
  EXPECT_EQ(plan["model"]["scheme"], "MLA");
  const int64_t layers = plan["model"]["layers"], heads = plan["model"]["heads"], latent = plan["model"]["latent"];
  const int64_t rope = plan["model"]["rope_dim"], nope = plan["model"]["nope_dim"], value = plan["model"]["value_dim"];
  EXPECT_EQ((std::vector<int64_t>{layers, heads, latent, rope, nope, value}),
            (std::vector<int64_t>{3, 4, 32, 16, 24, 24}));
  EXPECT_EQ(plan["codecs"]["bf16"]["bytes_per_token"], 2 * layers * (latent + rope));
  EXPECT_EQ(plan["mha_bf16_bytes_per_token"], 2 * layers * heads * (nope + rope + value));
}

TEST(Plan, SaysWhenTheDeviceDoesNotHoldTheModel) {
  const CommandLineResult result =
      RunSluice({"plan", "--shape", kLlama70B, "--context", "8192", "--device-memory", "80GiB", "--weights", "131GiB"});
  EXPECT_THAT(result.out, HasSubstr("device   85.9 GB (80 GiB), which does not hold the model"));
  EXPECT_THAT(result.out, ContainsRegex("GQA-8, full +int4 .* 0\n"));
}

TEST(Plan, EndsWithStatusTwoWhereTheCommandLineContradictsItself) {
  struct Case {
    std::vector<std::string> arguments;
    const char* words;
  };
  const std::string shape = kLlama70B;
  const Case cases[] = {
      {{}, "give either --model PATH or --shape SHAPE"},
      {{"--model", "m", "--shape", shape}, "give either --model PATH or --shape SHAPE"},
      {{"--shape", shape}, "give --context with --shape"},
      {{"--model", "m", "--weights", "1GiB"}, "--weights is of a shape"},
      {{"--shape", shape, "--context", "many"}, "--context"},
      {{"--shape", shape, "--context", "1", "--prefill-rate", "4"}, "--link"},
      {{"--shape", shape, "--context", "1", "--link", "10Gb"}, "\"10Gb\" is not a rate"},
      {{"--shape", shape, "--context", "1", "--policies", "full,h2o:120%"}, "cache budget '120%' is neither"},
      {{"--shape", shape, "--context", "1", "--device-memory", "80GB"}, "\"80GB\" is not a number of bytes"},
      {{"--shape", "layers=80,heads=64,kv_heads=7,head_dim=128"}, "heads (64) is not a multiple of kv_heads (7)"},
  };
  for (const Case& wrong : cases) {
    std::vector<std::string> arguments = {"plan"};
    arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
    const CommandLineResult result = RunSluice(arguments);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("sluice: "), HasSubstr(wrong.words)));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Plan, EndsWithStatusOneAndTheReasonWhereSizesAreAbsurd) {
  const CommandLineResult result =
      RunSluice({"plan", "--shape", "layers=1024,heads=1024,kv_heads=1024,head_dim=1024", "--context", "1073741824"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("exceeds 2^63 bytes"));
  EXPECT_THAT(RunSluice({"plan", "--shape", kLlama70B, "--context", "0", "--batch", "0"}).err,
              AllOf(HasSubstr("context is 0"), HasSubstr("batch is 0")));
  EXPECT_THAT(RunSluice({"plan", "--model", "/nowhere"}).err, HasSubstr("/nowhere"));
}

TEST(PlanShape, IsRefusedWhereItIsNotOne) {
  struct Case {
    const char* text;
    const char* words;
  };
  const Case cases[] = {
      {"", "shape has no \"\""},
      {"layers", "\"layers\" is not a number of layers"},
      {"layers=,heads=1", "\"layers=\" is not a number of layers"},
      {"layers=8x", "\"layers=8x\" is not a number of layers"},
      {"layers=99999999999", "is not a number of layers"},
      {"layers=1,depth=2", "shape has no \"depth\""},
      {"layers=1,layers=2", "layers is given as 1 and as 2"},
      {"layers=1,heads=1,kv_heads=1", "shape lacks head_dim"},
      {"layers=1,heads=1,latent=512", "shape lacks rope_dim"},
      {"layers=1,heads=1,latent=512,rope_dim=64,kv_heads=8", "a shape with latent has no kv_heads (8)"},
      {"layers=1,heads=1,kv_heads=1,head_dim=16,rope_dim=64", "a shape with no latent has no rope_dim (64)"},
      {"layers=0,heads=-1,kv_heads=1,head_dim=16", "heads is -1"},
      {"layers=2000000000,heads=2000000000,kv_heads=2000000000,head_dim=2000000000", "layers is 2000000000, 1 to 1024"},
  };
  for (const Case& wrong : cases) {
    EXPECT_THAT(std::string(ParseShape(wrong.text).status().message()), HasSubstr(wrong.words)) << wrong.text;
  }
}

TEST(PlanRates, AreReadWithTheirUnits) {
  EXPECT_DOUBLE_EQ(*ParseLinkRate("10Gbit/s"), 1.25e9);
  EXPECT_DOUBLE_EQ(*ParseLinkRate("0.5Mbit/s"), 62500);
  EXPECT_DOUBLE_EQ(*ParseLinkRate("1.25GB/s"), 1.25e9);
  EXPECT_DOUBLE_EQ(*ParseLinkRate("2MB/s"), 2e6);
  EXPECT_DOUBLE_EQ(*ParseLinkRate("1GiB/s"), 1073741824);
  EXPECT_DOUBLE_EQ(*ParseLinkRate("1MiB/s"), 1048576);
  for (const char* wrong : {"", "10", "Gbit/s", "10 Gbit/s", "-1GB/s", "0GB/s", "10Gb/s", "nanGB/s"}) {
    EXPECT_FALSE(ParseLinkRate(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace sluice
