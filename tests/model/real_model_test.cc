// SmolLM2-135M from its GGUF against the reference's numbers: with f32 arithmetic almost to the digit, with activations
// rounded to 8 bits within what rounding costs. The goldens' README derives the tolerances.
#include <cmath>

#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/model/engine_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

constexpr char kGoldens[] = SLUICE_TEST_DATA "/real/smollm2/goldens.json";
constexpr char kPerplexity[] = SLUICE_TEST_DATA "/real/smollm2/perplexity.json";
constexpr double kF32LogitTolerance = 1e-3;
constexpr double kRoundedLogprobError = 0.25;  // mean over a prompt's three likeliest tokens
constexpr double kRoundedPerplexityPart = 0.005;
constexpr double kRoundedSureMargin = 0.5;  // where top-1 leads by more, rounding must not change it

double LogSumExp(absl::Span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

class RealModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("SLUICE_TEST_MODEL") == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
    prompts_ = ReadRealPrompts(kGoldens);
  }

  static std::unique_ptr<Engine> MakeEngine(bool exact, KvCodec codec) {
    EngineOptions options;
    options.transformer = {.threads = 2, .batch_tokens_max = 512, .logit_rows_max = 512, .exact = exact};
    options.codec = codec;
    options.pages = 512;
    return std::make_unique<Engine>(std::getenv("SLUICE_TEST_MODEL"), options);
  }

  // Prefills every prompt, then feeds all of them the reference's greedy tokens, one batch a step; calls
  // check(prompt index, step, logits) with the logits that choose each of those tokens.
  template <typename F>
  void FeedReferenceTokens(Engine& engine, const F& check) {
    std::vector<Sequence> sequences;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      sequences.push_back(engine.NewSequence());
      check(i, size_t{0}, absl::MakeConstSpan(engine.Prefill(sequences[i], prompts_[i].ids, 512)));
    }
    for (size_t step = 1; step < prompts_[0].greedy_ids.size(); ++step) {
      Batch batch;
      for (size_t i = 0; i < prompts_.size(); ++i) {
        batch.sequences.push_back(engine.Chunk(sequences[i], {&prompts_[i].greedy_ids[step - 1], 1}, LogitsFor::kLast));
      }
      const std::vector<float> logits = engine.Forward(batch);
      const size_t vocab = static_cast<size_t>(engine.config().vocab_size);
      for (size_t i = 0; i < prompts_.size(); ++i)
        check(i, step, absl::MakeConstSpan(logits).subspan(i * vocab, vocab));
    }
  }

  // Sum of the negative log-likelihoods of ids[first..] in one window.
  static double WindowNll(Engine& engine, absl::Span<const TokenId> ids, size_t first) {
    Sequence sequence = engine.NewSequence();
    const size_t vocab = static_cast<size_t>(engine.config().vocab_size);
    double nll = 0;
    for (size_t at = 0; at < ids.size(); at += 512) {
      const absl::Span<const TokenId> part = ids.subspan(at, 512);
      const std::vector<float> logits = engine.Forward({{engine.Chunk(sequence, part, LogitsFor::kAll)}});
      for (size_t i = 0; i < part.size(); ++i) {
        const size_t predicted = at + i + 1;
        if (predicted < first || predicted >= ids.size()) continue;
        const auto row = absl::MakeConstSpan(logits).subspan(i * vocab, vocab);
        nll += LogSumExp(row) - row[static_cast<size_t>(ids[predicted])];
      }
    }
    return nll;
  }

  void ExpectPerplexity(Engine& engine, double part) {
    const RealPerplexity golden = ReadRealPerplexity(kPerplexity);
    const absl::Span<const TokenId> ids = golden.ids;
    const double whole = std::exp(WindowNll(engine, ids, 1) / static_cast<double>(ids.size() - 1));
    EXPECT_NEAR(whole, golden.whole, part * golden.whole);
    double nll = 0;
    int counted = 0;
    for (size_t at = 0; at + 512 <= ids.size(); at += 512, counted += 255)
      nll += WindowNll(engine, ids.subspan(at, 512), 257);
    const double chunks = std::exp(nll / counted);
    EXPECT_NEAR(chunks, golden.chunks512, part * golden.chunks512);
    RecordProperty("perplexity_whole", std::to_string(whole));
    RecordProperty("perplexity_chunks512", std::to_string(chunks));
  }

  std::vector<RealPrompt> prompts_;
};

TEST_F(RealModel, LogitsAndGreedyTokensAreTheReferencesInF32) {
  auto engine = MakeEngine(/*exact=*/true, KvCodec::kF32);
  double worst = 0;
  FeedReferenceTokens(*engine, [&](size_t i, size_t step, absl::Span<const float> logits) {
    const RealPrompt& p = prompts_[i];
    EXPECT_EQ(Argmax(logits), p.greedy_ids[step]) << p.name << " step " << step;
    EXPECT_NEAR(LogSumExp(logits), p.steps[step].log_sum_exp, kF32LogitTolerance) << p.name << " step " << step;
    for (const auto& [id, logit] : step == 0 ? p.first_top20 : p.steps[step].top) {
      const double error = std::abs(logits[static_cast<size_t>(id)] - logit);
      worst = std::max(worst, error);
      EXPECT_LT(error, kF32LogitTolerance) << p.name << " step " << step << " token " << id;
    }
  });
  RecordProperty("worst_logit_error", std::to_string(worst));
}

TEST_F(RealModel, PerplexityIsTheReferencesInF32) {
  auto engine = MakeEngine(/*exact=*/true, KvCodec::kF32);
  ExpectPerplexity(*engine, 1e-4);
}

// As the service runs: activations of 8 bits, K and V in bf16. Past a departure the reference's own tokens are fed, so
// every step of every prompt is compared.
TEST_F(RealModel, RoundedActivationsStayWithinTheCostOfRounding) {
  auto engine = MakeEngine(/*exact=*/false, KvCodec::kBf16);
  std::vector<double> error(prompts_.size(), 0);
  std::vector<int> compared(prompts_.size(), 0);
  FeedReferenceTokens(*engine, [&](size_t i, size_t step, absl::Span<const float> logits) {
    const RealPrompt& p = prompts_[i];
    const RealPrompt::Step& want = p.steps[step];
    if (want.margin >= kRoundedSureMargin) {
      EXPECT_EQ(Argmax(logits), p.greedy_ids[step]) << p.name << " step " << step << ", margin " << want.margin;
    }
    const double lse = LogSumExp(logits);
    for (size_t k = 0; k < 3; ++k, ++compared[i]) {
      const auto& [id, logit] = want.top[k];
      error[i] += std::abs((logits[static_cast<size_t>(id)] - lse) - (logit - want.log_sum_exp));
    }
  });
  for (size_t i = 0; i < prompts_.size(); ++i) {
    EXPECT_LT(error[i] / compared[i], kRoundedLogprobError) << prompts_[i].name;
    RecordProperty("mean_logprob_error_" + prompts_[i].name, std::to_string(error[i] / compared[i]));
  }
}

TEST_F(RealModel, RoundedActivationsKeepThePerplexity) {
  auto engine = MakeEngine(/*exact=*/false, KvCodec::kBf16);
  ExpectPerplexity(*engine, kRoundedPerplexityPart);
}

// The tiny models have no quantised weights, so each instruction set's quantised products answer a short prompt here.
TEST_F(RealModel, EveryInstructionSetAnswersAShortPrompt) {
  const RealPrompt& p = prompts_[0];
  for (const Isa isa : SupportedIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    auto engine = MakeEngine(/*exact=*/false, KvCodec::kBf16);
    Sequence sequence = engine->NewSequence();
    const std::vector<float> logits = engine->Prefill(sequence, p.ids, 512);
    const double lse = LogSumExp(logits);
    double error = 0;
    for (size_t k = 0; k < 3; ++k) {
      const auto& [id, logit] = p.first_top20[k];
      error += std::abs((logits[static_cast<size_t>(id)] - lse) - (logit - p.steps[0].log_sum_exp)) / 3;
    }
    EXPECT_LT(error, kRoundedLogprobError) << Name(isa);
  }
  ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok());
}

}  // namespace
}  // namespace sluice
