// The transformer against transformers' own numbers for random models of each feature.
#include <map>

#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/model/engine_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

// float32 everywhere: ten times the reference's own error. bf16 store: the goldens' recommendation for dense models.
constexpr double kF32Tolerance = 2e-5;
constexpr double kBf16Tolerance = 3e-2;

class HiddenRecorder : public ForwardObserver {
 public:
  explicit HiddenRecorder(int hidden) : hidden_(hidden) {}
  void OnHidden(int layer, const float* rows, int64_t count) override {
    layers[layer].assign(rows, rows + count * hidden_);
  }
  std::map<int, std::vector<float>> layers;

 private:
  int hidden_;
};

struct Case {
  std::string model;
  Isa isa;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.model << " on " << Name(c.isa); }
};

class TinyGolden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetIsa(GetParam().isa).ok());
    golden_ = ReadGoldenTensors(TinyModel(GetParam().model) + "/golden.safetensors");
    const std::vector<int64_t>& ids = golden_["input_ids"].i64;
    prompt_.assign(ids.begin(), ids.end());
  }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  std::unique_ptr<Engine> MakeEngine(KvCodec codec) {
    EngineOptions options;
    options.codec = codec;
    options.transformer.exact = true;
    return std::make_unique<Engine>(TinyModel(GetParam().model), options);
  }

  absl::Span<const float> Golden(const std::string& name) { return golden_[name].f32; }
  // Layer `i` of a golden whose first dimension is the layer.
  absl::Span<const float> GoldenLayer(const std::string& name, int i) {
    const GoldenTensor& tensor = golden_[name];
    const size_t size = tensor.f32.size() / static_cast<size_t>(tensor.shape[0]);
    return absl::MakeConstSpan(tensor.f32).subspan(static_cast<size_t>(i) * size, size);
  }

  // Every layer's K and V and the prompt's logits against the goldens.
  void ExpectPrompt(Engine& engine, Sequence& sequence, absl::Span<const float> logits, double tolerance) {
    EXPECT_LT(RelativeError(logits, Golden("logits")), tolerance);
    for (int i = 0; i < engine.config().layers; ++i) {
      EXPECT_LT(RelativeError(engine.ReadKv(sequence, i, false), GoldenLayer("k", i)), tolerance) << "K of layer " << i;
      EXPECT_LT(RelativeError(engine.ReadKv(sequence, i, true), GoldenLayer("v", i)), tolerance) << "V of layer " << i;
    }
  }

  std::map<std::string, GoldenTensor> golden_;
  std::vector<TokenId> prompt_;
};

TEST_P(TinyGolden, EveryLayerAndTheCacheAgreeInF32) {
  auto engine = MakeEngine(KvCodec::kF32);
  Sequence sequence = engine->NewSequence();
  HiddenRecorder hidden(engine->config().hidden_size);
  const std::vector<float> logits = engine->Forward({{engine->Chunk(sequence, prompt_, LogitsFor::kAll)}}, &hidden);
  EXPECT_LT(RelativeError(hidden.layers[-1], Golden("embedding")), kF32Tolerance);
  const int layers = engine->config().layers;
  for (int i = 0; i < layers; ++i) {
    EXPECT_LT(RelativeError(hidden.layers[i], GoldenLayer("hidden", i)), kF32Tolerance) << "after layer " << i;
  }
  EXPECT_LT(RelativeError(hidden.layers[layers], Golden("final_norm")), kF32Tolerance);
  ExpectPrompt(*engine, sequence, logits, kF32Tolerance);
}

TEST_P(TinyGolden, GreedyTokensAndTheirLogitsAgree) {
  auto engine = MakeEngine(KvCodec::kF32);
  Sequence sequence = engine->NewSequence();
  std::vector<float> logits = engine->Prefill(sequence, prompt_, 20);
  const std::vector<int64_t>& greedy = golden_["greedy_ids"].i64;
  for (size_t step = 0; step < greedy.size(); ++step) {
    EXPECT_LT(RelativeError(logits, GoldenLayer("greedy_logits", static_cast<int>(step))), kF32Tolerance) << step;
    const TokenId id = Argmax(logits);
    ASSERT_EQ(id, greedy[step]) << "step " << step;
    logits = engine->Forward({{engine->Chunk(sequence, {&id, 1}, LogitsFor::kLast)}});
  }
}

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
    logits = engine->Forward({{engine->Chunk(sequence, {&id, 1}, LogitsFor::kLast)}});
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* model :
       {"llama-mha", "llama-gqa", "llama-mqa-tied", "llama-rope-linear", "llama-rope-llama3", "llama-rope-yarn"}) {
    for (const Isa isa : SupportedIsas()) cases.push_back({model, isa});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, TinyGolden, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.model + "_" + std::string(Name(info.param.isa));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace sluice
