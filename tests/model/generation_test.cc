#include "model/generation.h"

#include <cmath>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/text/small_tokenizers.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class GenerationTest : public ::testing::Test {
 protected:
  GenerationTest() : tokenizer_(SmallTokenizer("gpt2-style")) {
    context_.tokenizer = tokenizer_.get();
    context_.vocab_size = tokenizer_->vocab_size();
    context_.positions_max = 1000;
    context_.prompt_ids = {1, 2, 3};
    context_.eos_ids = {Id("<|endoftext|>")};
    context_.sampling.temperature = 0;
    context_.sampling.max_tokens = 100;
  }

  TokenId Id(const std::string& text) const {
    const auto ids = tokenizer_->Encode(text, Tokenizer::SpecialTokens::kParse);
    EXPECT_EQ(ids.size(), 1u) << text;
    return ids.at(0);
  }

  // Logits that make greedy sampling take `token`, and `second` where that one may not come.
  std::vector<float> For(TokenId token, TokenId second = 0) const {
    std::vector<float> logits(context_.vocab_size, 0.0f);
    logits[second] = 5;
    logits[token] = 10;
    return logits;
  }

  proto::GeneratedToken Step(Generation& generation, TokenId token) const {
    auto out = generation.Step(For(token));
    EXPECT_TRUE(out.ok()) << out.status();
    return out.ok() ? *out : proto::GeneratedToken();
  }

  // Generates `text`'s tokens until the end; returns what was sent.
  std::string Say(Generation& generation, const std::string& text) const {
    std::string sent;
    for (const TokenId id : tokenizer_->Encode(text, Tokenizer::SpecialTokens::kParse)) {
      if (generation.finished()) break;
      sent += Step(generation, id).text();
    }
    return sent;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  GenerationContext context_;
};

TEST_F(GenerationTest, EosAsFirstTokenEndsWithoutText) {
  Generation generation(&context_, 0);
  EXPECT_EQ(Step(generation, context_.eos_ids[0]).text(), "");
  EXPECT_EQ(generation.finish(), proto::FINISH_STOP);
  EXPECT_EQ(generation.generated().size(), 1u);
}

TEST_F(GenerationTest, IgnoreEosGoesOnButStopTokenIdsStillEnd) {
  context_.sampling.ignore_eos = true;
  context_.sampling.stop_token_ids = {Id("b")};
  Generation generation(&context_, 0);
  Step(generation, context_.eos_ids[0]);
  EXPECT_FALSE(generation.finished());
  EXPECT_EQ(Step(generation, Id("a")).text(), "a");
  EXPECT_EQ(Step(generation, Id("b")).text(), "");
  EXPECT_EQ(generation.finish(), proto::FINISH_STOP);
}

TEST_F(GenerationTest, AStopStringAcrossTokensCutsTheText) {
  context_.sampling.stop_strings = {"llo wor"};
  Generation generation(&context_, 0);
  EXPECT_EQ(Say(generation, "hello world"), "he");
  EXPECT_EQ(generation.finish(), proto::FINISH_STOP);
  EXPECT_EQ(generation.stop_match(), "llo wor");
}

TEST_F(GenerationTest, AStopStringEqualToTheFirstTokenLeavesNoText) {
  context_.sampling.stop_strings = {"a"};
  Generation generation(&context_, 0);
  EXPECT_EQ(Step(generation, Id("a")).text(), "");
  EXPECT_EQ(generation.finish(), proto::FINISH_STOP);
  EXPECT_EQ(generation.stop_match(), "a");
}

TEST_F(GenerationTest, TextHeldBackIsSentAtTheEnd) {
  context_.sampling.stop_strings = {"abc"};
  context_.sampling.max_tokens = 2;
  Generation generation(&context_, 0);
  EXPECT_EQ(Step(generation, Id("a")).text(), "");
  EXPECT_EQ(Step(generation, Id("b")).text(), "ab");
  EXPECT_EQ(generation.finish(), proto::FINISH_LENGTH);
  Generation stopped(&context_, 0);
  Step(stopped, Id("a"));
  EXPECT_EQ(Step(stopped, context_.eos_ids[0]).text(), "a");
}

TEST_F(GenerationTest, APartOfACharacterBecomesAReplacementAtTheEnd) {
  context_.sampling.max_tokens = 1;
  const auto ids = tokenizer_->Encode("\u4e16", Tokenizer::SpecialTokens::kParse);
  ASSERT_GT(ids.size(), 1u);
  Generation generation(&context_, 0);
  EXPECT_EQ(Step(generation, ids[0]).text(), "\uFFFD");
}

TEST_F(GenerationTest, EndTokensCannotComeBeforeMinTokens) {
  context_.sampling.min_tokens = 2;
  const TokenId eos = context_.eos_ids[0], other = Id("a");
  Generation generation(&context_, 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(generation.Step(For(eos, other))->token(), other);
  EXPECT_EQ(generation.Step(For(eos, other))->token(), eos);
  EXPECT_EQ(generation.finish(), proto::FINISH_STOP);
}

TEST_F(GenerationTest, StopStringsDoNotEndItBeforeMinTokens) {
  context_.sampling.min_tokens = 2;
  context_.sampling.stop_strings = {"a"};
  Generation generation(&context_, 0);
  EXPECT_EQ(Step(generation, Id("a")).text(), "a");
  EXPECT_EQ(Step(generation, Id("a")).text(), "a");
  EXPECT_EQ(Step(generation, Id("a")).text(), "");
  EXPECT_EQ(generation.finish(), proto::FINISH_STOP);
}

TEST_F(GenerationTest, MaxTokensAndTheContextEndByLength) {
  context_.sampling.max_tokens = 1;
  Generation one(&context_, 0);
  EXPECT_EQ(Step(one, Id("a")).text(), "a");
  EXPECT_EQ(one.finish(), proto::FINISH_LENGTH);
  context_.sampling.max_tokens = 100;
  context_.positions_max = 5;
  Generation bounded(&context_, 0);
  EXPECT_EQ(Say(bounded, "abcdef").size(), 2u);
  EXPECT_EQ(bounded.finish(), proto::FINISH_LENGTH);
}

TEST_F(GenerationTest, ChoicesDrawFromKeysOfTheirOwnAndASeedRepeats) {
  context_.sampling.temperature = 1;
  const std::vector<float> flat(context_.vocab_size, 0.0f);
  std::vector<std::vector<TokenId>> drawn;
  for (const int choice : {0, 1, 0}) {
    Generation generation(&context_, choice);
    for (int i = 0; i < 10 && !generation.finished(); ++i) ASSERT_TRUE(generation.Step(flat).ok());
    drawn.emplace_back(generation.generated().begin(), generation.generated().end());
  }
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_EQ(drawn[0], drawn[2]);
}

TEST_F(GenerationTest, BrokenLogitsChangeNothing) {
  Generation generation(&context_, 0);
  std::vector<float> logits = For(Id("a"));
  logits[3] = std::nanf("");
  EXPECT_EQ(generation.Step(logits).status().code(), absl::StatusCode::kInternal);
  logits.pop_back();
  EXPECT_EQ(generation.Step(logits).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(generation.generated().empty());
  EXPECT_EQ(Step(generation, Id("a")).text(), "a");
}

TEST_F(GenerationTest, LogProbsComeWithEachTokenWhereAsked) {
  context_.sampling.logprobs = true;
  context_.sampling.top_logprobs = 2;
  Generation generation(&context_, 0);
  const proto::GeneratedToken token = Step(generation, Id("a"));
  EXPECT_LT(token.logprob(), 0);
  ASSERT_EQ(token.top_size(), 2);
  EXPECT_EQ(token.top(0).token(), Id("a"));
  EXPECT_EQ(token.top(0).logprob(), token.logprob());
}

TEST_F(GenerationTest, WithoutATokenizerThereAreIdsOnly) {
  context_.tokenizer = nullptr;
  context_.sampling.stop_strings = {"a"};
  Generation generation(&context_, 0);
  const auto out = generation.Step(For(Id("a")));
  EXPECT_EQ(out->text(), "");
  EXPECT_FALSE(generation.finished());
}

TEST_F(GenerationTest, TokensBeyondTheTokenizersVocabularyHaveNoText) {
  context_.vocab_size += 10;  // models pad their output
  Generation generation(&context_, 0);
  EXPECT_EQ(Step(generation, context_.vocab_size - 1).text(), "");
}

// Random parameters over random logits: at each step one copy goes on and another is made from its state.
TEST_F(GenerationTest, AStateTakenAtAnyStepGoesOnIdentically) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    SamplingParams& p = context_.sampling;
    p = SamplingParams();
    p.temperature = rng.Bits() % 4 == 0 ? 0.0f : 1.5f;
    p.seed = rng.Bits();
    p.n = 3;
    p.max_tokens = 1 + static_cast<int>(rng.Bits() % 30);
    p.min_tokens = static_cast<int>(rng.Bits() % 2 ? 0 : rng.Bits() % p.max_tokens);
    p.repetition_penalty = rng.Bits() % 2 ? 1.0f : 1.3f;
    p.frequency_penalty = rng.Bits() % 2 ? 0.0f : 0.7f;
    p.stop_strings = {"e", " th", "an "};
    p.stop_strings.resize(rng.Bits() % 4);
    const int choice = static_cast<int>(rng.Bits() % p.n);
    Generation whole(&context_, choice);
    while (!whole.finished()) {
      auto resumed = Generation::Resume(&context_, whole.State());
      ASSERT_TRUE(resumed.ok()) << resumed.status();
      std::vector<float> logits(context_.vocab_size);
      for (float& logit : logits) logit = static_cast<float>(rng.Uniform() * 8);
      const auto a = whole.Step(logits), b = resumed->Step(logits);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_EQ(a->SerializeAsString(), b->SerializeAsString());
      ASSERT_EQ(whole.State().SerializeAsString(), resumed->State().SerializeAsString());
    }
    EXPECT_TRUE(Generation::Resume(&context_, whole.State()).ok());
  }
}

TEST_F(GenerationTest, StatesThatContradictThemselvesAreRefused) {
  context_.sampling.stop_strings = {"zzz"};
  context_.sampling.temperature = 1;
  context_.sampling.min_tokens = 3;
  Generation generation(&context_, 0);
  Say(generation, "hi z");
  const proto::ChoiceState good = generation.State();
  ASSERT_TRUE(Generation::Resume(&context_, good).ok());
  const auto refused = [&](auto change) {
    proto::ChoiceState state = good;
    change(state);
    const auto resumed = Generation::Resume(&context_, state);
    EXPECT_EQ(resumed.status().code(), absl::StatusCode::kDataLoss);
    return std::string(resumed.status().message());
  };
  EXPECT_THAT(refused([](auto& s) { s.set_index(1); }), HasSubstr("index 1"));
  EXPECT_THAT(refused([](auto& s) { s.set_generated(0, -1); }), HasSubstr("token -1"));
  EXPECT_THAT(refused([](auto& s) { s.set_generated(0, 1 << 30); }), HasSubstr("vocabulary"));
  EXPECT_THAT(refused([&](auto& s) { s.set_generated(0, context_.eos_ids[0]); }), HasSubstr("min_tokens"));
  EXPECT_THAT(refused([](auto& s) { s.set_finish(proto::FINISH_STOP); }), HasSubstr("finish"));
  EXPECT_THAT(refused([](auto& s) { s.set_draws(99); }), HasSubstr("99 draws"));
  EXPECT_THAT(refused([](auto& s) { s.set_held_text("secret"); }), HasSubstr("held_text"));
  EXPECT_THAT(refused([](auto& s) { s.set_pending_bytes("\xe4"); }), HasSubstr("pending_bytes"));
  EXPECT_THAT(refused([](auto& s) { s.set_stop_match("zzz"); }), HasSubstr("stop_match"));
  context_.sampling.max_tokens = 1;
  context_.sampling.min_tokens = 0;
  EXPECT_THAT(refused([](auto&) {}), HasSubstr("the end is after 1"));
}

}  // namespace
}  // namespace sluice
