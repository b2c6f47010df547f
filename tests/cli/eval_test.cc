// `sluice eval`: flags to tables, JSON and plots, on a small model without a tokenizer.
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/cli/command_line_runner.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kModel = SLUICE_TEST_DATA "/policies/models/tiny-llama-gqa";

class EvalCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    std::vector<int> ids;
    for (int i = 0; i < 300; ++i) ids.push_back((i * i * 3 + i) % 256);
    const auto part = [&](int from, int to) { return std::vector<int>(ids.begin() + from, ids.begin() + to); };
    json needle;
    needle["context"] = part(0, 60);
    needle["question"] = part(60, 66);
    needle["answer"] = part(66, 69);
    needle["depth"] = 0.5;
    json input;
    input["text"] = ids;
    input["stream"] = part(0, 200);
    for (int i = 0; i < 2; ++i) input["needles"].push_back(needle);
    Write(input.dump());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return (folder_ / name).string(); }
  void Write(const std::string& input) const { std::ofstream(File("input.json")) << input; }
  CommandLineResult Eval(std::vector<std::string> more, const std::string& context = "100",
                         const std::string& continuation = "20") const {
    std::vector<std::string> arguments = {"eval",      "--model",  kModel,       "--input",    File("input.json"),
                                          "--context", context,    "--continue", continuation, "--block",
                                          "50",        "--greedy", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunSluice(arguments);
  }

  std::filesystem::path folder_;
};

TEST_F(EvalCommandTest, MeasuresAllPartsAndWritesTables) {
  const CommandLineResult result = Eval({"--parts", "perplexity,agreement,needles,stream", "--codecs", "f32,int8",
                                         "--json", File("out.json"), "--plots", File("plots")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("h2o:20% +int8 +20 +198 "));
  EXPECT_THAT(result.out, ContainsRegex("snapkv:20% +f32 +16 "));
  EXPECT_THAT(result.out, ContainsRegex("tova:20% +int8 +after "));
  std::ifstream file(File("out.json"));
  const json out = json::parse(file);
  EXPECT_EQ(out["perplexity"]["rows"].size(), 8u);  // snapkv is not streamed
  EXPECT_EQ(out["agreement"]["rows"].size(), 10u);
  EXPECT_EQ(out["needles"]["rows"].size(), 20u);
  EXPECT_EQ(out["stream"]["rows"][0]["tokens"], 199);
  const json& full = out["agreement"]["rows"][0];
  EXPECT_EQ(full["cache"], "full");
  EXPECT_EQ(full["delta_nll"], 0);
  EXPECT_EQ(full["greedy_tokens"], 8);
  for (const char* plot : {"perplexity", "agreement", "needles", "stream"}) {
    EXPECT_GT(std::filesystem::file_size(File(std::string("plots/") + plot + ".svg")), 1000u) << plot;
  }
}

TEST_F(EvalCommandTest, SaysWhatIsWrongWithFlagsAndInput) {
  EXPECT_EQ(Eval({"--policies", "h3o:20%"}).status, 2);
  EXPECT_THAT(Eval({"--policies", "h3o:20%"}).err, HasSubstr("h3o"));
  EXPECT_THAT(Eval({"--codecs", "int9"}).err, HasSubstr("int9"));
  EXPECT_THAT(Eval({"--parts", "perplexity,speed"}).err, HasSubstr("speed"));
  EXPECT_THAT(Eval({}, "100", "100").err, HasSubstr("--continue is 100"));
  EXPECT_THAT(Eval({}, "400").err, HasSubstr("300 tokens"));
  EXPECT_THAT(Eval({}, "9000").err, HasSubstr("--context is 9000, the model's context is 1024 tokens"));
  EXPECT_THAT(Eval({"--windows", "0"}).err, HasSubstr("--windows is 0, not 1 or more"));
  EXPECT_THAT(Eval({"--codecs", "int9"}).err, HasSubstr("--codecs: unknown KV codec 'int9'"));
  EXPECT_THAT(Eval({"--policies", "h2o"}).err, HasSubstr("--policies: cache policy h2o: needs a budget"));
  Write(R"({"texts": [1, 2, 3]})");
  EXPECT_THAT(Eval({}).err, HasSubstr("has the member \"texts\", there are text, stream and needles"));
  Write(R"({"text": [1, 2, 100000]})");
  EXPECT_THAT(Eval({}).err, HasSubstr("text is neither a string nor an array of token ids"));
  Write(R"({"text": "words"})");
  EXPECT_THAT(Eval({}).err, HasSubstr("has to come as token ids"));
  Write(R"({"needles": [{"context": [1]}]})");
  EXPECT_THAT(Eval({"--parts", "needles"}).err, HasSubstr("needles[0].question"));
}

TEST_F(EvalCommandTest, SaysBeforeItMeasuresThatOutputHasNoPlace) {
  const CommandLineResult json = Eval({"--parts", "perplexity", "--json", File("absent/out.json")});
  EXPECT_NE(json.status, 0);
  EXPECT_EQ(json.out, "");
  EXPECT_THAT(json.err, HasSubstr("--json: cannot write " + File("absent/out.json")));
  const CommandLineResult plots = Eval({"--parts", "perplexity", "--plots", File("input.json") + "/plots"});
  EXPECT_NE(plots.status, 0);
  EXPECT_EQ(plots.out, "");
  EXPECT_THAT(plots.err, HasSubstr("--plots: cannot write into " + File("input.json") + "/plots"));
}

}  // namespace
}  // namespace sluice
