// What holds of every cache policy in the model, whatever it keeps: nothing changes before the first token leaves, and
// a sequence depends on itself only.
#include <optional>

#include "gtest/gtest.h"
#include "model/kept_rows.h"
#include "tests/model/engine_fixture.h"

namespace sluice {
namespace {

constexpr const char* kModels[] = {"policies/models/tiny-llama-gqa", "policies/models/tiny-deepseek-mla"};

std::string ModelPath(const std::string& name) { return std::string(SLUICE_TEST_DATA "/") + name; }

EngineOptions Options(KvCodec codec, int threads = 2) {
  return {.transformer = {.threads = threads, .batch_tokens_max = 256, .logit_rows_max = 64, .ranked_slots_max = 4096},
          .codec = codec,
          .pages = 256};
}

std::vector<TokenId> Prompt(size_t tokens, int seed) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<TokenId>((i * i * 7 + i * 13 + static_cast<size_t>(seed) * 31) % 256));
  return ids;
}

// A sequence under a policy: a dense prompt, then tokens one by one.
class Bounded {
 public:
  Bounded(Engine& engine, const CachePolicy& policy, std::vector<TokenId> prompt, int64_t steps)
      : engine_(engine),
        prompt_(std::move(prompt)),
        sequence_(engine.NewSequence()),
        kept_(policy, engine.pool().options().layout, policy.Slots(static_cast<int64_t>(prompt_.size()), steps)) {}

  std::vector<float> Dense() {
    const auto tokens = static_cast<int64_t>(prompt_.size());
    PromptScores scores(kept_.policy(), engine_.pool().options().layout, tokens);
    SequenceChunk chunk = engine_.Chunk(sequence_, prompt_, LogitsFor::kLast);
    chunk.scores = kept_.policy().ranks() ? &scores : nullptr;
    std::vector<float> logits = engine_.Forward({{chunk}});
    PrunePrompt(engine_.pool(), sequence_.lease.pages(), sequence_.lease.pages(), tokens, &scores, kept_);
    return logits;
  }

  // `ids` live until Forward.
  SequenceChunk Chunk(absl::Span<const TokenId> ids, LogitsFor logits = LogitsFor::kLast) {
    const int pages = engine_.pool().PagesFor(kept_.held() + static_cast<int64_t>(ids.size()));
    SLUICE_CHECK(sequence_.lease.Extend(std::max(0, pages - static_cast<int>(sequence_.lease.pages().size()))).ok());
    return {.tokens = ids,
            .start_position = kept_.position(),
            .pages = sequence_.lease.pages(),
            .logits = logits,
            .generated = true,
            .kept = &kept_};
  }
  std::vector<float> Step(const TokenId& id) { return engine_.Forward({{Chunk({&id, 1})}}); }

  KeptSlots& kept() { return kept_; }
  const std::vector<TokenId>& prompt() const { return prompt_; }

 private:
  Engine& engine_;
  std::vector<TokenId> prompt_;
  Sequence sequence_;
  KeptSlots kept_;
};

std::vector<CachePolicy> PoliciesOf(int64_t budget) {
  using enum CachePolicyKind;
  return {{.kind = kSinkWindow, .budget = budget, .sinks = 4, .window = budget - 4},
          {.kind = kH2o, .budget = budget, .sinks = 1, .window = budget / 2},
          {.kind = kSnapKv, .budget = budget, .window = 8, .pool = 5},
          {.kind = kTova, .budget = budget, .window = 1}};
}

// CHECK 14: a budget that is never reached.
TEST(Policy, ABudgetThatIsNeverReachedChangesNoBit) {
  for (const char* model : kModels) {
    for (const KvCodecInfo& codec : KvCodecs()) {
      if (!CheckCodec(KvLayout::Of(Must(OpenCheckpoint(ModelPath(model)))->config()), codec.codec).ok()) continue;
      Engine engine(ModelPath(model), Options(codec.codec));
      const std::vector<TokenId> prompt = Prompt(70, 1);
      std::vector<std::vector<float>> full;
      std::vector<TokenId> ids;
      Sequence sequence = engine.NewSequence();
      full.push_back(engine.Forward({{engine.Chunk(sequence, prompt, LogitsFor::kLast)}}));
      for (int step = 0; step < 20; ++step) {
        ids.push_back(Argmax(full.back()));
        full.push_back(engine.Decode(sequence, ids.back()));
      }
      for (const CachePolicy& policy : PoliciesOf(90)) {
        SCOPED_TRACE(absl::StrCat(model, " ", std::string(codec.name), " ", ToString(policy)));
        Bounded bounded(engine, policy, prompt, 20);
        ASSERT_EQ(bounded.Dense(), full[0]);
        for (size_t step = 0; step < ids.size(); ++step) ASSERT_EQ(bounded.Step(ids[step]), full[step + 1]) << step;
        EXPECT_EQ(bounded.kept().dropped(), 0);
      }
    }
  }
}

// W3b, E4: what was in the pages before, who else is in the batch, and how many threads there are.
TEST(Policy, ASequenceDependsOnItselfOnly) {
  for (const char* model : kModels) {
    std::vector<std::vector<std::vector<float>>> alone;  // by policy and step
    constexpr int kSteps = 40;
    for (const int threads : {1, 3}) {
      Engine engine(ModelPath(model), Options(KvCodec::kBf16, threads));
      const std::vector<CachePolicy> policies = PoliciesOf(24);
      std::vector<std::vector<std::vector<float>>> again;
      for (const CachePolicy& policy : policies) {
        Bounded bounded(engine, policy, Prompt(60, 2), kSteps);
        again.emplace_back().push_back(bounded.Dense());
        for (int step = 0; step < kSteps; ++step) {
          const TokenId id = step * 5 % 256;
          again.back().push_back(bounded.Step(id));
        }
      }
      if (alone.empty()) alone = again;
      ASSERT_EQ(again, alone) << model << " with " << threads << " threads";

      // All policies in one batch, beside a sequence with none.
      std::vector<std::unique_ptr<Bounded>> together;
      for (const CachePolicy& policy : policies) {
        together.push_back(std::make_unique<Bounded>(engine, policy, Prompt(60, 2), kSteps));
        (void)together.back()->Dense();
      }
      Sequence full = engine.NewSequence();
      (void)engine.Prefill(full, Prompt(33, 4), 33);
      const auto vocab = static_cast<size_t>(engine.config().vocab_size);
      for (int step = 0; step < kSteps; ++step) {
        const TokenId id = step * 5 % 256;
        Batch batch;
        for (auto& bounded : together) {
          batch.sequences.push_back(bounded->Chunk({&id, 1}));
          if (batch.sequences.size() == 2)
            batch.sequences.push_back(engine.Chunk(full, {&id, 1}, LogitsFor::kLast, true));
        }
        const std::vector<float> logits = engine.Forward(batch);
        for (size_t p = 0; p < policies.size(); ++p) {
          const size_t row = p < 2 ? p : p + 1;
          const std::vector<float> mine(logits.begin() + static_cast<ptrdiff_t>(row * vocab),
                                        logits.begin() + static_cast<ptrdiff_t>((row + 1) * vocab));
          ASSERT_EQ(mine, alone[p][static_cast<size_t>(step) + 1])
              << model << " " << ToString(policies[p]) << " step " << step;
        }
      }
    }
  }
}

// A step without logits, as a streamed prompt makes it, is told to the policy all the same.
TEST(Policy, StepsWithoutLogitsRankTheSame) {
  for (const char* model : kModels) {
    Engine engine(ModelPath(model), Options(KvCodec::kBf16));
    for (const CachePolicy& policy : PoliciesOf(24)) {
      SCOPED_TRACE(absl::StrCat(model, " ", ToString(policy)));
      const std::vector<TokenId> prompt = Prompt(50, 3);
      Bounded with(engine, policy, prompt, 1);
      Bounded without(engine, policy, prompt, 1);
      if (!policy.bounded()) continue;
      std::vector<float> logits;
      for (const TokenId& id : prompt) logits = with.Step(id);
      for (const TokenId& id : prompt) {
        const bool last = &id == &prompt.back();
        const std::vector<float> got =
            engine.Forward({{without.Chunk({&id, 1}, last ? LogitsFor::kLast : LogitsFor::kNone)}});
        if (last) {
          EXPECT_EQ(got, logits);
        }
      }
      for (int layer = 0; layer < engine.config().layers; ++layer) {
        EXPECT_EQ(without.kept().Positions(layer, 0), with.kept().Positions(layer, 0));
        EXPECT_EQ(without.kept().Scores(layer, 0), with.kept().Scores(layer, 0));
      }
    }
  }
}

// Many tokens at once, where none has to leave, are one by one.
TEST(Policy, AStepOfManyTokensIsManySteps) {
  Engine engine(ModelPath(kModels[0]), Options(KvCodec::kBf16));
  const CachePolicy policy = {.kind = CachePolicyKind::kSinkWindow, .budget = 40, .sinks = 4, .window = 36};
  const std::vector<TokenId> prompt = Prompt(60, 5);
  Bounded one_by_one(engine, policy, {}, 100);
  std::vector<float> want;
  for (const TokenId& id : prompt) want = one_by_one.Step(id);
  Bounded chunks(engine, policy, {}, 100);
  std::vector<float> got = engine.Forward({{chunks.Chunk(absl::MakeConstSpan(prompt).subspan(0, 40))}});
  for (size_t i = 40; i < prompt.size(); ++i) got = chunks.Step(prompt[i]);
  EXPECT_EQ(got, want);
}

// Sink-window goes on beyond the model's context, in as many pages; other policies' positions end with it.
TEST(Policy, OnlySinkWindowOutlivesTheContext) {
  Engine engine(ModelPath(kModels[0]), Options(KvCodec::kBf16));
  const int64_t context = engine.config().context_tokens_max;
  std::vector<TokenId> prompt = Prompt(64, 6);
  for (const CachePolicy& policy : PoliciesOf(32)) {
    if (!policy.bounded()) continue;
    Bounded bounded(engine, policy, {}, context + 64);
    Status status;
    int64_t steps = 0;
    for (; steps < context + 64 && status.ok(); ++steps) {
      const TokenId& id = prompt[static_cast<size_t>(steps % 64)];
      status = engine.transformer().Forward({{bounded.Chunk({&id, 1}, LogitsFor::kNone)}}, engine.pool()).status();
    }
    if (policy.kind == CachePolicyKind::kSinkWindow) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(bounded.kept().held(), 32);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ToString(policy);
      EXPECT_EQ(steps, context + 1) << ToString(policy);
    }
  }
}

TEST(Policy, AStepThatTheCacheDoesNotTakeIsRefused) {
  Engine engine(ModelPath(kModels[0]), Options(KvCodec::kBf16));
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 8, .window = 4};
  const std::vector<TokenId> prompt = Prompt(20, 7);
  Bounded bounded(engine, policy, {}, 20);
  const auto run = [&](const SequenceChunk& chunk) {
    return std::string(engine.transformer().Forward({{chunk}}, engine.pool()).status().message());
  };
  EXPECT_NE(run(bounded.Chunk(absl::MakeConstSpan(prompt).first(2))).find("2 tokens from position 0 of 1 from 0"),
            std::string::npos);
  SequenceChunk later = bounded.Chunk(absl::MakeConstSpan(prompt).first(1));
  later.start_position = 3;
  EXPECT_NE(run(later).find("1 tokens from position 3 of 1 from 0"), std::string::npos);

  EngineOptions none = Options(KvCodec::kBf16);
  none.transformer.ranked_slots_max = 0;
  Engine unranked(ModelPath(kModels[0]), none);
  Bounded other(unranked, policy, {}, 20);
  const std::string why = unranked.transformer()
                              .Forward({{other.Chunk(absl::MakeConstSpan(prompt).first(1))}}, unranked.pool())
                              .status()
                              .ToString();
  EXPECT_NE(why.find("ranked over 1 slots; at most 0"), std::string::npos) << why;
}

}  // namespace
}  // namespace sluice
