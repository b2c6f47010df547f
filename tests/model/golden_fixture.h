// A tiny model and its golden: what tests of one architecture after another compare with.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/model/engine_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {

// float32 everywhere: ten times the reference's own error. bf16 store: the goldens' recommendation for dense models.
inline constexpr double kF32Tolerance = 2e-5;
inline constexpr double kBf16Tolerance = 3e-2;

class LayerRecorder : public ForwardObserver {
 public:
  explicit LayerRecorder(const ModelConfig& config) : hidden_(config.hidden_size) {}
  void OnHidden(int layer, const float* rows, int64_t count) override {
    hidden[layer].assign(rows, rows + count * hidden_);
  }
  void OnExperts(int layer, absl::Span<const ExpertWeight> chosen) override {
    experts[layer].assign(chosen.begin(), chosen.end());
  }
  std::map<int, std::vector<float>> hidden;
  std::map<int, std::vector<ExpertWeight>> experts;

 private:
  int hidden_;
};

struct GoldenCase {
  std::string model;
  Isa isa;
  friend std::ostream& operator<<(std::ostream& out, const GoldenCase& c) {
    return out << c.model << " on " << Name(c.isa);
  }
};

inline std::vector<GoldenCase> GoldenCases(const std::vector<std::string>& models) {
  std::vector<GoldenCase> cases;
  for (const std::string& model : models) {
    for (const Isa isa : SupportedIsas()) cases.push_back({model, isa});
  }
  return cases;
}

inline std::string GoldenCaseName(const ::testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.model + "_" + std::string(Name(info.param.isa));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetIsa(GetParam().isa).ok());
    golden_ = ReadGoldenTensors(TinyModel(GetParam().model) + "/golden.safetensors");
    const std::vector<int64_t>& ids = golden_["input_ids"].i64;
    prompt_.assign(ids.begin(), ids.end());
  }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  std::unique_ptr<Engine> MakeEngine(KvCodec codec, bool exact = true) {
    EngineOptions options;
    options.codec = codec;
    options.transformer.exact = exact;
    return std::make_unique<Engine>(TinyModel(GetParam().model), options);
  }

  absl::Span<const float> Golden(const std::string& name) { return golden_[name].f32; }
  // Layer `i` of a golden whose first dimension is the layer.
  absl::Span<const float> GoldenLayer(const std::string& name, int i) {
    const GoldenTensor& tensor = golden_[name];
    const size_t size = tensor.f32.size() / static_cast<size_t>(tensor.shape[0]);
    return absl::MakeConstSpan(tensor.f32).subspan(static_cast<size_t>(i) * size, size);
  }

  void ExpectHidden(LayerRecorder& seen, int layers) {
    EXPECT_LT(RelativeError(seen.hidden[-1], Golden("embedding")), kF32Tolerance);
    for (int i = 0; i < layers; ++i) {
      EXPECT_LT(RelativeError(seen.hidden[i], GoldenLayer("hidden", i)), kF32Tolerance) << "after layer " << i;
    }
    EXPECT_LT(RelativeError(seen.hidden[layers], Golden("final_norm")), kF32Tolerance);
  }

  // The golden's continuation, drawn and fed token by token in f32.
  void ExpectGreedy(Engine& engine) {
    Sequence sequence = engine.NewSequence();
    std::vector<float> logits = engine.Prefill(sequence, prompt_, 20);
    const std::vector<int64_t>& greedy = golden_["greedy_ids"].i64;
    for (size_t step = 0; step < greedy.size(); ++step) {
      EXPECT_LT(RelativeError(logits, GoldenLayer("greedy_logits", static_cast<int>(step))), kF32Tolerance) << step;
      const TokenId id = Argmax(logits);
      ASSERT_EQ(id, greedy[step]) << "step " << step;
      logits = engine.Decode(sequence, id);
    }
  }

  std::map<std::string, GoldenTensor> golden_;
  std::vector<TokenId> prompt_;
};

}  // namespace sluice
