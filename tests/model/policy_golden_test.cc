// Greedy generations under every cache policy, token by token, against an oracle that keeps all keys ever computed and
// attends over an explicit list of positions: tokens, logits, what is kept and with what scores.
#include <fstream>
#include <optional>

#include "gmock/gmock.h"
#include "model/kept_rows.h"
#include "model/kept_tokens.h"
#include "nlohmann/json.hpp"
#include "tests/model/golden_fixture.h"
#include "tests/model/policy_json.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;

constexpr double kLogitTolerance = 1e-4;  // absolute; the float32 oracle is within 2e-5
const std::string kPolicies = SLUICE_TEST_DATA "/policies/";

struct PolicyCase {
  json golden;
  Isa isa;
  std::string name() const { return golden["name"]; }
  friend std::ostream& operator<<(std::ostream& out, const PolicyCase& c) { return out << c.name(); }
};

// Of all prompts, or of those that are computed whole.
std::vector<PolicyCase> Cases(bool streamed_too) {
  std::ifstream file(kPolicies + "cases.json");
  const json golden = json::parse(file);
  std::vector<PolicyCase> cases;
  for (const json& c : golden["cases"]) {
    if (!streamed_too && c["prefill"] == "streamed") continue;
    for (const Isa isa : SupportedIsas()) cases.push_back({c, isa});
  }
  return cases;
}

class PolicyGolden : public ::testing::TestWithParam<PolicyCase> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetIsa(GetParam().isa).ok());
    golden_ = ReadGoldenTensors(kPolicies + GetParam().name() + ".safetensors");
    const std::vector<int64_t>& ids = golden_["prompt"].i64;
    prompt_.assign(ids.begin(), ids.end());
    policy_ = PolicyOf(GetParam().golden["policy"]);
    ASSERT_TRUE(Validate(policy_).ok()) << Validate(policy_);
    engine_.emplace(kPolicies + GetParam().golden["model"].get<std::string>(),
                    EngineOptions{.transformer = {.threads = 2,
                                                  .batch_tokens_max = 512,
                                                  .logit_rows_max = 512,
                                                  .ranked_slots_max = 1024,
                                                  .exact = true}});
    sequence_.emplace(engine_->NewSequence());
    const auto tokens = static_cast<int64_t>(prompt_.size());
    kept_.emplace(policy_, Layout(), policy_.Slots(tokens, Steps()));
  }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  KvLayout Layout() { return engine_->pool().options().layout; }
  int64_t Steps() { return static_cast<int64_t>(golden_["tokens"].i64.size()); }

  // The whole prompt in chunks, then pruned once.
  std::vector<float> DensePrompt(size_t chunk_tokens) {
    const auto tokens = static_cast<int64_t>(prompt_.size());
    PromptScores scores(policy_, Layout(), tokens);
    std::vector<float> logits;
    for (size_t at = 0; at < prompt_.size(); at += chunk_tokens) {
      const auto ids = absl::MakeConstSpan(prompt_).subspan(at, chunk_tokens);
      const bool last = at + chunk_tokens >= prompt_.size();
      SequenceChunk chunk = engine_->Chunk(*sequence_, ids, last ? LogitsFor::kLast : LogitsFor::kNone);
      if (policy_.ranks()) chunk.scores = &scores;
      logits = engine_->Forward({{chunk}});
    }
    for (int layer = 0; layer < Layout().layers; ++layer) {
      if (policy_.ranks()) ExpectPromptScores(scores, layer);
    }
    PrunePrompt(engine_->pool(), sequence_->lease.pages(), sequence_->lease.pages(), tokens, &scores, *kept_);
    return logits;
  }

  std::vector<float> Step(const TokenId& id) {
    const int pages = engine_->pool().PagesFor(kept_->held() + 1);
    const int missing = pages - static_cast<int>(sequence_->lease.pages().size());
    SLUICE_CHECK(sequence_->lease.Extend(std::max(missing, 0)).ok());
    return engine_->Forward({{{.tokens = {&id, 1},
                               .start_position = kept_->position(),
                               .pages = sequence_->lease.pages(),
                               .logits = LogitsFor::kLast,
                               .generated = true,
                               .kept = &*kept_}}});
  }

  // The prompt through the bounded cache, token by token.
  std::vector<float> StreamedPrompt() {
    std::vector<float> logits;
    for (const TokenId& id : prompt_) logits = Step(id);
    return logits;
  }

  void ExpectPromptScores(PromptScores& scores, int layer) {
    const GoldenTensor& want = golden_.at("score_prompt");
    const auto heads = static_cast<int>(want.shape[1]);
    const auto tokens = static_cast<size_t>(want.shape[2]);
    for (int head = 0; head < heads; ++head) {
      const int list = head * scores.lists() / heads;
      std::vector<float> got(scores.layer(layer) + list * scores.stride(),
                             scores.layer(layer) + list * scores.stride() + scores.prompt_tokens());
      if (policy_.kind == CachePolicyKind::kSnapKv) {
        if (policy_.Kept(scores.prompt_tokens()) < scores.prompt_tokens()) {
          got = PooledMeans(policy_, scores.prompt_tokens(), got);
        } else {
          for (float& s : got) s /= static_cast<float>(policy_.QueriesScored(scores.prompt_tokens()));
        }
      }
      ASSERT_EQ(got.size(), tokens);
      for (size_t p = 0; p < tokens; ++p) {
        const float w =
            want.f32[(static_cast<size_t>(layer) * static_cast<size_t>(heads) + static_cast<size_t>(head)) * tokens +
                     p];
        ASSERT_NEAR(got[p], w, 1e-4 + 1e-5 * w) << "layer " << layer << " head " << head << " position " << p;
      }
    }
  }

  void ExpectKept(const std::string& name) {
    if (policy_.kind == CachePolicyKind::kFull) return;  // the goldens have none
    const GoldenTensor& want = golden_.at(name);
    const auto width = static_cast<size_t>(want.shape[2]);
    for (int64_t row = 0; row < want.shape[0] * want.shape[1]; ++row) {
      const auto first = want.i64.begin() + row * static_cast<int64_t>(width);
      std::vector<int32_t> positions(first, first + static_cast<int64_t>(width));
      std::erase(positions, -1);
      const int layer = static_cast<int>(row / want.shape[1]);
      const int head = static_cast<int>(row % want.shape[1]);
      ASSERT_THAT(kept_->Positions(layer, head * kept_->lists() / static_cast<int>(want.shape[1])),
                  ElementsAreArray(positions))
          << name << " layer " << layer << " head " << head;
    }
  }

  void ExpectScores(const std::string& name) {
    const auto found = golden_.find(name);
    if (found == golden_.end()) return;
    const GoldenTensor& want = found->second;
    const auto width = static_cast<size_t>(want.shape[2]);
    for (int64_t row = 0; row < want.shape[0] * want.shape[1]; ++row) {
      const std::vector<float> got =
          kept_->Scores(static_cast<int>(row / want.shape[1]),
                        static_cast<int>(row % want.shape[1]) * kept_->lists() / static_cast<int>(want.shape[1]));
      for (size_t i = 0; i < got.size(); ++i) {
        const float w = want.f32[static_cast<size_t>(row) * width + i];
        ASSERT_NEAR(got[i], w, 1e-4 + 1e-5 * w) << name << " row " << row << " of " << i;
      }
    }
  }

  void ExpectGeneration(std::vector<float> logits) {
    const std::vector<int64_t>& tokens = golden_.at("tokens").i64;
    const std::vector<float>& want = golden_.at("logits").f32;
    const size_t vocab = want.size() / tokens.size();
    ExpectKept("keep_prefill");
    ExpectScores("score_prefill");
    for (size_t step = 0; step < tokens.size(); ++step) {
      ASSERT_EQ(logits.size(), vocab);
      for (size_t i = 0; i < vocab; ++i)
        ASSERT_NEAR(logits[i], want[step * vocab + i], kLogitTolerance) << "step " << step;
      const TokenId id = Argmax(logits);
      ASSERT_EQ(id, tokens[step]) << "step " << step;
      if (step + 1 == tokens.size()) break;
      logits = Step(id);
      const std::string kept = absl::StrCat("keep_after_", step + 1);
      if (golden_.contains(kept)) ExpectKept(kept);
    }
    ExpectScores("score_end");
  }

  std::map<std::string, GoldenTensor> golden_;
  std::vector<TokenId> prompt_;
  CachePolicy policy_;
  std::optional<Engine> engine_;
  std::optional<Sequence> sequence_;
  std::optional<KeptSlots> kept_;
};

TEST_P(PolicyGolden, GeneratesWhatTheOracleDoes) {
  ExpectGeneration(GetParam().golden["prefill"] == "streamed" ? StreamedPrompt() : DensePrompt(512));
}

class PolicyGoldenInChunks : public PolicyGolden {};

TEST_P(PolicyGoldenInChunks, GeneratesTheSame) { ExpectGeneration(DensePrompt(37)); }

std::string CaseName(const ::testing::TestParamInfo<PolicyCase>& info) {
  return info.param.name() + "_" + std::string(Name(info.param.isa));
}
INSTANTIATE_TEST_SUITE_P(, PolicyGolden, ::testing::ValuesIn(Cases(/*streamed_too=*/true)), CaseName);
INSTANTIATE_TEST_SUITE_P(, PolicyGoldenInChunks, ::testing::ValuesIn(Cases(/*streamed_too=*/false)), CaseName);

}  // namespace
}  // namespace sluice
