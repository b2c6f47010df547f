// DeepSeek-V2 and V3 against transformers' own numbers (deepseek-v3-fp8: against numpy's), in both ways of latent
// attention and with each codec that can keep latents.
#include <cmath>
#include <numbers>
#include <optional>

#include "model/rope_frequencies.h"
#include "tests/model/golden_fixture.h"

namespace sluice {
namespace {

// A flipped expert moves its token, and by attention those behind it, by a tenth and says nothing of an error: what is
// rounded is compared up to the first token of which some expert is not the golden's, and so many of all choices must
// be.
constexpr double kChoicesEqualMin = 0.95;

// f16 keeps eight times the precision of bf16.
constexpr double kF16Tolerance = kBf16Tolerance / 8;

class DeepSeekGolden : public GoldenTest {
 protected:
  // Latent and shared key of layer `i`, as a cached row has them.
  std::vector<float> GoldenRows(int i, const MlaConfig& mla) {
    const auto latent = GoldenLayer("latent", i);
    const auto key = GoldenLayer("k_pe", i);
    std::vector<float> rows;
    for (size_t t = 0; t < prompt_.size(); ++t) {
      const auto append = [&](absl::Span<const float> from, int width) {
        const auto part = from.subspan(t * static_cast<size_t>(width), static_cast<size_t>(width));
        rows.insert(rows.end(), part.begin(), part.end());
      };
      append(latent, mla.latent);
      append(key, mla.rope_dim);
    }
    return rows;
  }

  // The choices of the m-th sparse layer for token t, by expert.
  std::map<int, float> GoldenExperts(size_t m, size_t t) {
    const GoldenTensor& ids = golden_["moe_expert_ids"];
    const auto k = static_cast<size_t>(ids.shape[2]);
    const size_t at = (m * prompt_.size() + t) * k;
    std::map<int, float> experts;
    for (size_t i = 0; i < k; ++i) {
      experts[static_cast<int>(ids.i64[at + i])] = golden_["moe_expert_weights"].f32[at + i];
    }
    return experts;
  }

  std::map<int, float> SeenExperts(const LayerRecorder& seen, int layer, size_t t, int k) {
    std::map<int, float> experts;
    for (int i = 0; i < k; ++i) {
      const ExpertWeight& c = seen.experts.at(layer)[t * static_cast<size_t>(k) + static_cast<size_t>(i)];
      experts[c.expert] = c.weight;
    }
    return experts;
  }

  void ExpectExperts(const LayerRecorder& seen, const MoeConfig& moe) {
    const std::vector<int64_t>& layers = golden_["moe_layers"].i64;
    for (size_t m = 0; m < layers.size(); ++m) {
      for (size_t t = 0; t < prompt_.size(); ++t) {
        const auto want = GoldenExperts(m, t);
        const auto got = SeenExperts(seen, static_cast<int>(layers[m]), t, moe.experts_per_token);
        ASSERT_EQ(got.size(), want.size());
        for (const auto& [expert, weight] : want) {
          ASSERT_TRUE(got.contains(expert)) << "layer " << layers[m] << " token " << t << " expert " << expert;
          EXPECT_NEAR(got.at(expert), weight, 2e-5 * moe.scale);
        }
      }
    }
  }

  void ExpectPromptInF32(bool generated) {
    auto engine = MakeEngine(KvCodec::kF32);
    Sequence sequence = engine->NewSequence();
    LayerRecorder seen(engine->config());
    const std::vector<float> logits =
        engine->Forward({{engine->Chunk(sequence, prompt_, LogitsFor::kAll, generated)}}, &seen);
    ExpectHidden(seen, engine->config().layers);
    ExpectExperts(seen, *engine->config().moe);
    EXPECT_LT(RelativeError(logits, Golden("logits")), kF32Tolerance);
    for (int i = 0; i < engine->config().layers; ++i) {
      EXPECT_LT(RelativeError(engine->ReadKv(sequence, i, 0), GoldenRows(i, *engine->config().mla)), kF32Tolerance)
          << "layer " << i;
    }
  }

  // Where something is rounded: logits up to the first flipped expert, and how many choices are the golden's.
  void ExpectRoundedPrompt(Engine& engine, std::optional<double> tolerance) {
    Sequence sequence = engine.NewSequence();
    LayerRecorder seen(engine.config());
    const std::vector<float> logits = engine.Forward({{engine.Chunk(sequence, prompt_, LogitsFor::kAll)}}, &seen);
    const auto vocab = static_cast<size_t>(engine.config().vocab_size);
    const absl::Span<const float> golden = Golden("logits");
    const float largest = std::abs(
        *std::max_element(golden.begin(), golden.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    size_t equal = 0;
    size_t choices = 0;
    double worst = 0;
    bool all_equal = true;
    size_t compared = 0;
    const std::vector<int64_t>& layers = golden_["moe_layers"].i64;
    for (size_t t = 0; t < prompt_.size(); ++t) {
      for (size_t m = 0; m < layers.size(); ++m) {
        const auto want = GoldenExperts(m, t);
        const auto got = SeenExperts(seen, static_cast<int>(layers[m]), t, engine.config().moe->experts_per_token);
        for (const auto& [expert, weight] : want) {
          ++choices;
          equal += got.contains(expert);
          all_equal = all_equal && got.contains(expert);
        }
      }
      if (!all_equal) continue;
      ++compared;
      for (size_t i = t * vocab; i < (t + 1) * vocab; ++i) {
        worst = std::max(worst, static_cast<double>(std::abs(logits[i] - golden[i]) / largest));
      }
    }
    if (tolerance.has_value()) {
      EXPECT_LT(worst, *tolerance);
      EXPECT_GT(compared, prompt_.size() / 4);
    }
    EXPECT_GE(static_cast<double>(equal), kChoicesEqualMin * static_cast<double>(choices));
    RecordProperty("compared", static_cast<int>(compared));
    RecordProperty("worst_error", std::to_string(worst));
    RecordProperty("choices_equal", std::to_string(static_cast<double>(equal) / static_cast<double>(choices)));
  }
};

TEST_P(DeepSeekGolden, EveryLayerTheCacheAndTheExpertsAgreeExpanded) { ExpectPromptInF32(/*generated=*/false); }

// The same prompt as if it had been drawn: the two ways are one function.
TEST_P(DeepSeekGolden, EveryLayerTheCacheAndTheExpertsAgreeAbsorbed) { ExpectPromptInF32(/*generated=*/true); }

TEST_P(DeepSeekGolden, GreedyTokensAndTheirLogitsAgree) { ExpectGreedy(*MakeEngine(KvCodec::kF32)); }

TEST_P(DeepSeekGolden, Bf16LatentsStayWithinTheirTolerance) {
  ExpectRoundedPrompt(*MakeEngine(KvCodec::kBf16), kBf16Tolerance);
}

TEST_P(DeepSeekGolden, F16LatentsStayWithinTheirTolerance) {
  ExpectRoundedPrompt(*MakeEngine(KvCodec::kF16), kF16Tolerance);
}

// A flip comes so early that no logit is left to compare; those of a dense model are, below.
TEST_P(DeepSeekGolden, Fp8LatentsKeepTheChoices) { ExpectRoundedPrompt(*MakeEngine(KvCodec::kMlaFp8), {}); }

TEST_P(DeepSeekGolden, RoundedWeightsAndActivationsStayWithinTheirTolerance) {
  ExpectRoundedPrompt(*MakeEngine(KvCodec::kBf16, /*exact=*/false), kBf16Tolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, DeepSeekGolden,
                         ::testing::ValuesIn(GoldenCases({"deepseek-v2-lite", "deepseek-v2-qlora", "deepseek-v3",
                                                          "deepseek-v3-fp8"})),
                         GoldenCaseName);

// Cases without eviction of the policies' goldens, on a dense model.
const std::string kPolicies = SLUICE_TEST_DATA "/policies/";

std::unique_ptr<Engine> MakePolicyEngine(KvCodec codec) {
  EngineOptions options;
  options.transformer.exact = true;
  options.codec = codec;
  return std::make_unique<Engine>(kPolicies + "models/tiny-deepseek-mla", options);
}

TEST(DeepSeekPolicyGolden, FullAttentionDrawsTheSameTokens) {
  auto made = MakePolicyEngine(KvCodec::kF32);
  Engine& engine = *made;
  for (const char* name : {"mla_full_40", "mla_full_113"}) {
    auto golden = ReadGoldenTensors(kPolicies + name + ".safetensors");
    const std::vector<TokenId> prompt(golden["prompt"].i64.begin(), golden["prompt"].i64.end());
    Sequence sequence = engine.NewSequence();
    std::vector<float> logits = engine.Prefill(sequence, prompt, 50);
    const auto vocab = logits.size();
    for (size_t step = 0; step < golden["tokens"].i64.size(); ++step) {
      const auto want = absl::MakeConstSpan(golden["logits"].f32).subspan(step * vocab, vocab);
      for (size_t i = 0; i < vocab; ++i) ASSERT_NEAR(logits[i], want[i], 1e-4) << name << " step " << step;
      const TokenId id = Argmax(logits);
      ASSERT_EQ(id, golden["tokens"].i64[step]) << name << " step " << step;
      logits = engine.Decode(sequence, id);
    }
  }
}

// The largest error of a logit, as a share of the largest logit, over the prompt's end and 64 tokens that are fed as
// the golden drew them: about the codec's largest relative rounding, half a unit in the last place. And no less
// than a hundredth of it, or the codec was not in use.
TEST(DeepSeekPolicyGolden, RoundedLatentsMoveLogitsByTheStepOfTheirCodec) {
  for (const auto& [codec, step] :
       {std::pair{KvCodec::kF16, 0x1p-11}, std::pair{KvCodec::kBf16, 0x1p-8}, std::pair{KvCodec::kMlaFp8, 0x1p-4}}) {
    auto engine = MakePolicyEngine(codec);
    auto golden = ReadGoldenTensors(kPolicies + "mla_full_113.safetensors");
    const std::vector<TokenId> prompt(golden["prompt"].i64.begin(), golden["prompt"].i64.end());
    Sequence sequence = engine->NewSequence();
    std::vector<float> logits = engine->Prefill(sequence, prompt, 50);
    std::vector<float> all = logits;
    const std::vector<int64_t>& tokens = golden["tokens"].i64;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      logits = engine->Decode(sequence, static_cast<TokenId>(tokens[i]));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    const double error = RelativeError(all, golden["logits"].f32);
    RecordProperty(std::string(Name(codec)), std::to_string(error / step));
    EXPECT_LT(error, 4 * step) << Name(codec);
    EXPECT_GT(error, step / 100) << Name(codec);
  }
}

// A first layer's shared key is a product of its token alone, rotated by its position: beyond what was trained for,
// too.
TEST(DeepSeekRope, YarnTurnsSharedKeysFarBeyondTheTrainedContext) {
  EngineOptions options;
  options.transformer.exact = true;
  options.pages = 300;
  Engine engine(TinyModel("deepseek-v2-lite"), options);
  Sequence sequence = engine.NewSequence();
  const std::vector<TokenId> ids(4500, 7);
  engine.Prefill(sequence, ids, 500);
  const std::vector<float> rows = engine.ReadKv(sequence, 0, 0);
  const MlaConfig& mla = *engine.config().mla;
  const auto width = static_cast<size_t>(mla.latent + mla.rope_dim);
  const float* at_zero = rows.data() + mla.latent;
  // The frequencies of 16 channels, 4096 trained tokens and a factor of 40, from YaRN's formula.
  const auto pair_at = [](double turns) {
    return 16 * std::log(4096 / (turns * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  const double low = std::floor(pair_at(32));
  const double high = std::ceil(pair_at(1));
  for (const size_t position : {size_t{1}, size_t{100}, size_t{4095}, size_t{4097}, size_t{4499}}) {
    const float* key = rows.data() + position * width + mla.latent;
    for (int i = 0; i < 8; ++i) {
      const double divided = std::clamp((i - low) / (high - low), 0.0, 1.0);
      const double frequency = std::pow(10000.0, -i / 8.0) * (1 - divided + divided / 40);
      const double angle = static_cast<double>(position) * frequency;
      const double a = at_zero[2 * i];
      const double b = at_zero[2 * i + 1];
      EXPECT_NEAR(key[2 * i], a * std::cos(angle) - b * std::sin(angle), 1e-5) << position << " pair " << i;
      EXPECT_NEAR(key[2 * i + 1], b * std::cos(angle) + a * std::sin(angle), 1e-5) << position << " pair " << i;
    }
  }
}

}  // namespace
}  // namespace sluice
