// What a TextRunner says of texts: against the policies' oracle, against plain arithmetic, and whoever runs beside.
#include "eval/text_runner.h"

#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/eval/runner_fixture.h"
#include "tests/model/goldens.h"
#include "tests/model/policy_json.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr double kNllTolerance = 2e-4;  // logits are within 1e-4
const std::string kPolicies = SLUICE_TEST_DATA "/policies/";

double Nll(absl::Span<const float> logits, TokenId token) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  return std::log(sum) - logits[static_cast<size_t>(token)];
}

// A generation of the oracle.
struct Golden {
  std::string name;
  CachePolicy policy;
  bool streamed = false;
  std::vector<TokenId> prompt, tokens, text;  // text: both
  std::vector<float> logits;                  // [tokens, vocab]

  absl::Span<const float> row(size_t i) const {
    const size_t vocab = logits.size() / tokens.size();
    return absl::MakeConstSpan(logits).subspan(i * vocab, vocab);
  }
};

std::vector<Golden> Goldens(const std::string& model) {
  std::ifstream file(kPolicies + "cases.json");
  std::vector<Golden> goldens;
  const json all = json::parse(file);
  for (const json& c : all["cases"]) {
    if (kPolicies + c["model"].get<std::string>() != model) continue;
    Golden& golden = goldens.emplace_back();
    golden.name = c["name"];
    golden.policy = PolicyOf(c["policy"]);
    golden.streamed = c["prefill"] == "streamed";
    auto tensors = ReadGoldenTensors(kPolicies + golden.name + ".safetensors");
    golden.prompt.assign(tensors["prompt"].i64.begin(), tensors["prompt"].i64.end());
    golden.tokens.assign(tensors["tokens"].i64.begin(), tensors["tokens"].i64.end());
    golden.text = golden.prompt;
    golden.text.insert(golden.text.end(), golden.tokens.begin(), golden.tokens.end());
    golden.logits = tensors["logits"].f32;
  }
  return goldens;
}

TextRun RunOf(const Golden& golden, int64_t group) {
  return {.ids = golden.text,
          .policy = golden.policy,
          .prompt_tokens = golden.streamed ? 0 : static_cast<int64_t>(golden.prompt.size()),
          .group = group};
}

class TextRunnerOn : public ::testing::TestWithParam<std::string> {};

// All of them in one batch.
TEST_P(TextRunnerOn, TextsAreAsLikelyAsTheOracleSays) {
  RunnerFixture model(GetParam());
  const std::vector<Golden> goldens = Goldens(GetParam());
  ASSERT_GE(goldens.size(), 8u);
  std::vector<TextRun> runs;
  for (const Golden& golden : goldens) runs.push_back(RunOf(golden, static_cast<int64_t>(runs.size())));
  const std::vector<TextOutcome> outcomes = model.Run(runs);
  for (size_t g = 0; g < goldens.size(); ++g) {
    const Golden& golden = goldens[g];
    SCOPED_TRACE(golden.name);
    const std::vector<float>& nlls = outcomes[g].nlls;
    const size_t counted = golden.tokens.size() - 1;  // the prompt's own prediction is not, where it is dense
    ASSERT_EQ(nlls.size(), golden.streamed ? golden.text.size() - 1 : counted);
    for (size_t i = 0; i < counted; ++i) {
      EXPECT_NEAR(nlls[nlls.size() - counted + i], Nll(golden.row(i + 1), golden.tokens[i + 1]), kNllTolerance) << i;
      EXPECT_TRUE(outcomes[g].hits[nlls.size() - counted + i]) << i;
    }
  }
}

TEST_P(TextRunnerOn, DrawsTheTokensOfTheOracle) {
  RunnerFixture model(GetParam());
  const std::vector<Golden> goldens = Goldens(GetParam());
  std::vector<TextRun> runs;
  for (const Golden& golden : goldens) {
    TextRun run = RunOf(golden, static_cast<int64_t>(runs.size()));
    run.ids = golden.prompt;
    run.generated_tokens = static_cast<int64_t>(golden.tokens.size());
    runs.push_back(run);
  }
  const std::vector<TextOutcome> outcomes = model.Run(runs);
  for (size_t g = 0; g < goldens.size(); ++g) {
    EXPECT_EQ(outcomes[g].generated_tokens, goldens[g].tokens) << goldens[g].name;
  }
}

// Nor on how much memory there is for running them together.
TEST_P(TextRunnerOn, OutcomesDoNotDependOnWhoRunsBeside) {
  RunnerFixture model(GetParam(), /*exact=*/false);
  const KvLayout layout = KvLayout::Of(model.runner.config());
  RunnerFixture small(GetParam(), /*exact=*/false, {.kv_bytes_max = 2 * Bytes(layout, KvCodec::kF32, 512)});
  const std::vector<Golden> goldens = Goldens(GetParam());
  std::vector<TextRun> runs;
  for (const Golden& golden : goldens) runs.push_back(RunOf(golden, static_cast<int64_t>(runs.size())));
  const std::vector<TextOutcome> together = model.Run(runs);
  const std::vector<TextOutcome> in_waves = small.Run(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(model.Run({runs[i]})[0].nlls, together[i].nlls) << goldens[i].name;
    EXPECT_EQ(in_waves[i].nlls, together[i].nlls) << goldens[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(, TextRunnerOn, ::testing::Values(kTinyGqa, kTinyMla),
                         [](const auto& info) { return std::string(info.param == kTinyGqa ? "gqa" : "mla"); });

// Several policies of one prompt share its computation, whatever they score it by.
TEST(TextRunner, APromptThatIsSharedIsPrunedForEachAsIfAlone) {
  RunnerFixture model(kTinyGqa);
  const std::vector<TokenId> text = TinyText(150, 3);
  std::vector<TextRun> runs;
  using enum CachePolicyKind;
  for (const CachePolicy& policy : {CachePolicy{.kind = kTova, .budget = 24, .window = 1},
                                    CachePolicy{.kind = kSnapKv, .budget = 40, .window = 8, .pool = 5}, CachePolicy{},
                                    CachePolicy{.kind = kH2o, .budget = 24, .window = 12},
                                    CachePolicy{.kind = kSnapKv, .budget = 48, .window = 16, .pool = 5},
                                    CachePolicy{.kind = kSinkWindow, .budget = 24, .sinks = 4, .window = 20}}) {
    runs.push_back({.ids = text, .policy = policy, .prompt_tokens = 100});
  }
  const std::vector<TextOutcome> together = model.Run(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(model.Run({runs[i]})[0].nlls, together[i].nlls) << ToString(runs[i].policy);
  }
}

TEST(TextRunner, ComparesPredictionsByTheDefinitions) {
  const std::vector<TokenId> text = TinyText(60, 1);
  constexpr size_t kPrompt = 40;
  std::vector<std::vector<float>> logits[2];
  const KvCodec codecs[] = {KvCodec::kF32, KvCodec::kInt8};
  for (int c = 0; c < 2; ++c) {
    EngineOptions options = {.codec = codecs[c]};
    options.transformer.exact = true;
    Engine engine(kTinyGqa, options);
    Sequence sequence = engine.NewSequence();
    engine.Prefill(sequence, absl::MakeConstSpan(text).subspan(0, kPrompt), kPrompt);
    for (size_t i = kPrompt; i + 1 < text.size(); ++i) logits[c].push_back(engine.Decode(sequence, text[i]));
  }
  double kld = 0;
  int64_t same = 0;
  for (size_t i = 0; i < logits[0].size(); ++i) {
    for (size_t k = 0; k < logits[0][i].size(); ++k) {
      const double log_p = -Nll(logits[0][i], static_cast<TokenId>(k));
      const double log_q = -Nll(logits[1][i], static_cast<TokenId>(k));
      kld += std::exp(log_p) * (log_p - log_q);
    }
    same += Argmax(logits[0][i]) == Argmax(logits[1][i]);
  }
  RunnerFixture model(kTinyGqa);
  const std::vector<TextOutcome> outcomes =
      model.Run({{.ids = text, .codec = KvCodec::kF32, .prompt_tokens = kPrompt},
                 {.ids = text, .codec = KvCodec::kInt8, .prompt_tokens = kPrompt, .compared_with = 0}});
  ASSERT_EQ(outcomes[1].compared, static_cast<int64_t>(logits[0].size()));
  EXPECT_GT(kld, 0);
  EXPECT_NEAR(outcomes[1].kld, kld, 1e-9);
  EXPECT_EQ(outcomes[1].same_top, same);
}

TEST(TextRunner, RefusesWhatTheModelCannotDoBeforeItBegins) {
  RunnerFixture model(kTinyGqa);
  const int64_t context = model.runner.config().context_tokens_max;
  const std::vector<TokenId> text = TinyText(static_cast<size_t>(context) + 20, 1);
  const CachePolicy window = {.kind = CachePolicyKind::kSinkWindow, .budget = 20, .sinks = 4, .window = 16};
  const std::vector<TextRun> fine = {{.ids = text, .policy = window}};
  EXPECT_TRUE(model.runner.Run(fine).ok());
  const CachePolicy wide = {.kind = CachePolicyKind::kSinkWindow, .budget = context, .sinks = 4, .window = context - 4};
  const std::vector<TextRun> too_wide = {{.ids = text, .policy = wide}};
  EXPECT_THAT(model.runner.Run(too_wide).status().message(), HasSubstr("longer than the model's context"));
  const std::vector<TextRun> full = {{.ids = text}};
  EXPECT_THAT(model.runner.Run(full).status().message(), HasSubstr("longer than the model's context"));
  const std::vector<TextRun> nothing = {{.ids = absl::MakeConstSpan(text).subspan(0, 8), .prompt_tokens = 8}};
  EXPECT_THAT(model.runner.Run(nothing).status().message(), HasSubstr("nothing to be predicted"));
}

TEST(TextRunner, SaysWhatIsMissingWhereAGroupDoesNotFit) {
  RunnerFixture model(kTinyGqa, true, {.kv_bytes_max = 1000});
  const std::vector<TokenId> text = TinyText(40, 1);
  const std::vector<TextRun> runs = {{.ids = text}};
  const Status status = model.runner.Run(runs).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("1 texts that are run together (at most 64)"), HasSubstr("(at most 1000)")));
}

TEST(TextRunner, RunsNothingWhereALaterGroupDoesNotFit) {
  int64_t steps = 0;
  RunnerFixture model(kTinyGqa, true, {.kv_bytes_max = 200000, .on_progress = [&](int64_t, int64_t) { ++steps; }});
  const std::vector<TokenId> text = TinyText(1000, 1);
  const std::vector<TextRun> runs = {{.ids = absl::MakeConstSpan(text).first(10), .group = 0},
                                     {.ids = text, .group = 1}};
  EXPECT_EQ(model.runner.Run(runs).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(steps, 0);
  EXPECT_TRUE(model.runner.Run({runs[0]}).ok());
  EXPECT_GT(steps, 0);
}

}  // namespace
}  // namespace sluice
