// Does the absorbed way of latent attention, which decode takes, drift from the expanded one, which prefill takes and
// the goldens prove? Sequences without any prefill: every one of 512 tokens is fed as if it had been drawn.
#include <cmath>

#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/model/golden_fixture.h"

namespace sluice {
namespace {

constexpr size_t kSteps = 512;
constexpr size_t kQuarter = kSteps / 4;

struct Case {
  std::string model;  // below the test data
  KvCodec codec;
  Isa isa;
};

// Dense models are also compared where latents are rounded: there an expert that is chosen otherwise would say nothing
// of an error, and much. The plain loops, which take ten times as long, have one of each kind.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::string dense = "policies/models/tiny-deepseek-mla";
  for (const Isa isa : SupportedIsas()) {
    cases.push_back({"tiny/deepseek-v2-lite", KvCodec::kF32, isa});
    cases.push_back({dense, KvCodec::kMlaFp8, isa});
    if (isa == Isa::kPortable) continue;
    cases.push_back({"tiny/deepseek-v3", KvCodec::kF32, isa});
    for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16}) cases.push_back({dense, codec, isa});
  }
  return cases;
}

// Half a unit in the last place: what one rounding of a latent moves it by at most.
double StepOf(KvCodec codec) {
  switch (codec) {
    case KvCodec::kBf16:
      return 0x1p-9;
    case KvCodec::kMlaFp8:
      return 0x1p-4;
    default:
      return 0;
  }
}

class AbsorbedDrift : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam().isa).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  static std::unique_ptr<Engine> MakeEngine() {
    EngineOptions options;
    options.transformer = {.threads = 1, .batch_tokens_max = 8, .logit_rows_max = 1, .exact = true};
    options.codec = GetParam().codec;
    options.pages = 80;
    return std::make_unique<Engine>(std::string(SLUICE_TEST_DATA "/") + GetParam().model, options);
  }

  // The logits of every step, [kSteps][vocab]. The first token is given; of the others, those in `forced` or, where it
  // is empty, the likeliest ones, which then stand in `forced`.
  static std::vector<std::vector<float>> Run(std::vector<TokenId>& forced, bool generated) {
    const auto engine = MakeEngine();
    Sequence sequence = engine->NewSequence();
    const bool free = forced.empty();
    if (free) forced.push_back(7);
    std::vector<std::vector<float>> logits;
    for (size_t step = 0; step < kSteps; ++step) {
      logits.push_back(engine->Forward(
          {{engine->Chunk(sequence, absl::MakeConstSpan(forced).subspan(step, 1), LogitsFor::kLast, generated)}}));
      if (free) forced.push_back(Argmax(logits.back()));
    }
    return logits;
  }

  static std::vector<TokenId> RandomTokens() {
    Rng rng(17);
    std::vector<TokenId> ids(kSteps);
    for (TokenId& id : ids) id = static_cast<TokenId>(rng.Bits() % 160);
    return ids;
  }

  static void ExpectNoDrift(const std::vector<std::vector<float>>& absorbed,
                            const std::vector<std::vector<float>>& expanded) {
    double worst = 0;
    double first_quarter = 0;
    double last_quarter = 0;
    for (size_t step = 0; step < kSteps; ++step) {
      const double error = RelativeError(absorbed[step], expanded[step]);
      worst = error <= worst ? worst : error;
      if (step < kQuarter) first_quarter += error / kQuarter;
      if (step >= kSteps - kQuarter) last_quarter += error / kQuarter;
    }
    RecordProperty("worst", std::to_string(worst * 1e6));
    RecordProperty("first_quarter", std::to_string(first_quarter * 1e6));
    RecordProperty("last_quarter", std::to_string(last_quarter * 1e6));
    // Latents that differ in f32 by a last place may be rounded to neighbours: of few tokens, and by a step each.
    const double step = StepOf(GetParam().codec);
    EXPECT_LT(worst, kF32Tolerance + step);
    EXPECT_LT(last_quarter, 2 * first_quarter + step / 8);
  }
};

TEST_P(AbsorbedDrift, FiveHundredForcedStepsAgreeWithTheExpandedWay) {
  std::vector<TokenId> ids = RandomTokens();
  const auto absorbed = Run(ids, /*generated=*/true);
  ExpectNoDrift(absorbed, Run(ids, /*generated=*/false));
}

TEST_P(AbsorbedDrift, FiveHundredGreedyStepsDrawTheTokensOfTheExpandedWay) {
  std::vector<TokenId> drawn;
  const auto absorbed = Run(drawn, /*generated=*/true);
  std::vector<TokenId> same = drawn;
  const auto expanded = Run(same, /*generated=*/false);
  ExpectNoDrift(absorbed, expanded);
  for (size_t step = 0; step < kSteps; ++step) {
    const TokenId likeliest = Argmax(expanded[step]);
    if (likeliest == drawn[step + 1]) continue;
    // A tie within the error is no other token.
    const std::vector<float>& logits = expanded[step];
    EXPECT_LT(logits[static_cast<size_t>(likeliest)] - logits[static_cast<size_t>(drawn[step + 1])],
              (kF32Tolerance + StepOf(GetParam().codec)) * std::abs(logits[static_cast<size_t>(likeliest)]))
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AbsorbedDrift, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.model.substr(info.param.model.rfind('/') + 1);
  name += "_" + std::string(Name(info.param.codec)) + "_" + std::string(Name(info.param.isa));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace sluice
