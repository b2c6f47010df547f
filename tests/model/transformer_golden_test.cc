// The transformer against transformers' own numbers for random models of each feature.
#include "tests/model/golden_fixture.h"

namespace sluice {
namespace {

class TinyGolden : public GoldenTest {
 protected:
  // Every layer's K and V and the prompt's logits against the goldens.
  void ExpectPrompt(Engine& engine, Sequence& sequence, absl::Span<const float> logits, double tolerance) {
    EXPECT_LT(RelativeError(logits, Golden("logits")), tolerance);
    for (int i = 0; i < engine.config().layers; ++i) {
      EXPECT_LT(RelativeError(engine.ReadKv(sequence, i, 0), GoldenLayer("k", i)), tolerance) << "K of layer " << i;
      EXPECT_LT(RelativeError(engine.ReadKv(sequence, i, 1), GoldenLayer("v", i)), tolerance) << "V of layer " << i;
    }
  }
};

TEST_P(TinyGolden, EveryLayerAndTheCacheAgreeInF32) {
  auto engine = MakeEngine(KvCodec::kF32);
  Sequence sequence = engine->NewSequence();
  LayerRecorder seen(engine->config());
  const std::vector<float> logits = engine->Forward({{engine->Chunk(sequence, prompt_, LogitsFor::kAll)}}, &seen);
  ExpectHidden(seen, engine->config().layers);
  ExpectPrompt(*engine, sequence, logits, kF32Tolerance);
}

TEST_P(TinyGolden, GreedyTokensAndTheirLogitsAgree) { ExpectGreedy(*MakeEngine(KvCodec::kF32)); }

TEST_P(TinyGolden, Bf16CacheStaysWithinItsTolerance) {
  auto engine = MakeEngine(KvCodec::kBf16);
  Sequence sequence = engine->NewSequence();
  const std::vector<float> all = engine->Forward({{engine->Chunk(sequence, prompt_, LogitsFor::kAll)}});
  ExpectPrompt(*engine, sequence, all, kBf16Tolerance);
  const std::vector<int64_t>& greedy = golden_["greedy_ids"].i64;
  std::vector<float> logits(all.end() - engine->config().vocab_size, all.end());
  for (size_t step = 0; step < greedy.size(); ++step) {
    const absl::Span<const float> want = GoldenLayer("greedy_logits", static_cast<int>(step));
    EXPECT_LT(RelativeError(logits, want), kBf16Tolerance) << step;
    std::vector<float> sorted(want.begin(), want.end());
    std::sort(sorted.rbegin(), sorted.rend());
    if (sorted[0] - sorted[1] > kBf16Tolerance * sorted[0]) {
      EXPECT_EQ(Argmax(logits), greedy[step]) << "step " << step;
    }
    const auto id = static_cast<TokenId>(greedy[step]);
    logits = engine->Decode(sequence, id);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TinyGolden,
                         ::testing::ValuesIn(GoldenCases({"llama-mha", "llama-gqa", "llama-mqa-tied",
                                                          "llama-rope-linear", "llama-rope-llama3",
                                                          "llama-rope-yarn"})),
                         GoldenCaseName);

}  // namespace
}  // namespace sluice
