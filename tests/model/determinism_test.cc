// Same tokens, same bits: whatever the chunks, the batch, the threads, and what stale pages hold.
#include <cstring>

#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/model/engine_fixture.h"

namespace sluice {
namespace {

// Both span borders of attention (256 keys) and several pages lie within.
constexpr size_t kPromptTokens = 270;
constexpr size_t kDecodedTokens = 3;

struct Case {
  std::string model;  // empty: the real one
  Isa isa;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.model << " on " << Name(c.isa); }
};

// All that a run leaves behind: logits of each step, and the bytes of K and V.
struct Outcome {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<float>> kv;

  bool SameBits(const Outcome& other) const { return Same(logits, other.logits) && Same(kv, other.kv); }

 private:
  static bool Same(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }
};

std::vector<TokenId> RandomTokens(size_t count, int vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(rng.Bits() % static_cast<uint64_t>(vocab));
  return ids;
}

class Determinism : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().model.empty() && std::getenv("SLUICE_TEST_MODEL") == nullptr) {
      GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
    }
    ASSERT_TRUE(SetIsa(GetParam().isa).ok());
  }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  static std::unique_ptr<Engine> MakeEngine(int threads, KvCodec codec = KvCodec::kBf16) {
    EngineOptions options;
    options.transformer = {.threads = threads, .batch_tokens_max = 600, .logit_rows_max = 32};
    options.codec = codec;
    options.pages = 200;
    const std::string& model = GetParam().model;
    return std::make_unique<Engine>(model.empty() ? std::getenv("SLUICE_TEST_MODEL") : TinyModel(model), options);
  }

  // The prompt in chunks, then a few greedy tokens.
  static Outcome RunAlone(Engine& engine, size_t chunk) {
    const std::vector<TokenId> prompt = RandomTokens(kPromptTokens, engine.config().vocab_size, 1);
    Outcome outcome;
    Sequence sequence = engine.NewSequence();
    outcome.logits.push_back(engine.Prefill(sequence, prompt, chunk));
    for (size_t i = 0; i < kDecodedTokens; ++i) {
      const TokenId id = Argmax(outcome.logits.back());
      outcome.logits.push_back(engine.Decode(sequence, id));
    }
    ReadAll(engine, sequence, outcome);
    return outcome;
  }

  // The same among sixteen others, of which some are at their prompt and some decode, in every step.
  static Outcome RunInCompany(Engine& engine, size_t chunk) {
    const int vocab = engine.config().vocab_size;
    const std::vector<TokenId> prompt = RandomTokens(kPromptTokens, vocab, 1);
    std::vector<Sequence> others;
    std::vector<std::vector<TokenId>> theirs;
    for (uint64_t i = 0; i < 16; ++i) {
      others.push_back(engine.NewSequence());
      theirs.push_back(RandomTokens(1 + i % 4 * 5, vocab, 100 + i));
    }
    Outcome outcome;
    Sequence mine = engine.NewSequence();
    size_t done = 0;
    TokenId next = 0;
    while (outcome.logits.size() < 1 + kDecodedTokens) {
      const bool decoding = done >= prompt.size();
      const auto part = decoding ? absl::MakeConstSpan(&next, 1) : absl::MakeConstSpan(prompt).subspan(done, chunk);
      done += part.size();
      Batch batch;
      for (size_t i = 0; i < others.size(); ++i) {
        if (i == 9) batch.sequences.push_back(engine.Chunk(mine, part, LogitsFor::kLast, decoding));
        const size_t count = others[i].tokens == 0 ? theirs[i].size() : 1;
        if (others[i].tokens > 30) others[i] = engine.NewSequence();
        const bool theirs_decodes = others[i].tokens > 0;
        batch.sequences.push_back(engine.Chunk(others[i], absl::MakeConstSpan(theirs[i]).first(count),
                                               i % 3 == 0 ? LogitsFor::kNone : LogitsFor::kLast, theirs_decodes));
      }
      const std::vector<float> all = engine.Forward(batch);
      if (done < prompt.size()) continue;
      const auto row = all.begin() + vocab * 6;  // of the nine before it, 0, 3 and 6 want none
      outcome.logits.emplace_back(row, row + vocab);
      next = Argmax(outcome.logits.back());
    }
    ReadAll(engine, mine, outcome);
    return outcome;
  }

 private:
  static void ReadAll(Engine& engine, const Sequence& sequence, Outcome& outcome) {
    for (int layer = 0; layer < engine.config().layers; ++layer) {
      for (int tensor = 0; tensor < engine.pool().options().layout.tensors(); ++tensor) {
        outcome.kv.push_back(engine.ReadKv(sequence, layer, tensor));
      }
    }
  }
};

TEST_P(Determinism, ChunksAndThreadsChangeNoBit) {
  const Outcome whole = RunAlone(*MakeEngine(1), kPromptTokens);
  for (const int threads : {1, 2, 3}) {
    auto engine = MakeEngine(threads);
    for (const size_t chunk : {size_t{7}, size_t{64}, kPromptTokens}) {
      EXPECT_TRUE(RunAlone(*engine, chunk).SameBits(whole)) << threads << " threads, chunks of " << chunk;
    }
  }
  EXPECT_TRUE(RunAlone(*MakeEngine(2), 1).SameBits(whole)) << "token by token";
}

TEST_P(Determinism, CompanyChangesNoBit) {
  const Outcome alone = RunAlone(*MakeEngine(2), kPromptTokens);
  for (const int threads : {1, 2}) {
    auto engine = MakeEngine(threads);
    for (const size_t chunk : {size_t{64}, kPromptTokens}) {
      EXPECT_TRUE(RunInCompany(*engine, chunk).SameBits(alone)) << threads << " threads, chunks of " << chunk;
    }
  }
}

// Every slot that a run has not written holds NaN, as a page of another request might.
TEST_P(Determinism, StalePagesAreNeverRead) {
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16, KvCodec::kMlaFp8}) {
    if (!CheckCodec(MakeEngine(1)->pool().options().layout, codec).ok()) continue;
    auto engine = MakeEngine(2, codec);
    const Outcome fresh = RunAlone(*engine, 64);
    {
      PageLease all = Must(engine->pool().Lease(engine->pool().pages_free()));
      const KvPoolOptions& o = engine->pool().options();
      for (const PageIndex page : all.pages()) {
        for (int layer = 0; layer < o.layout.layers; ++layer) {
          std::memset(engine->pool().Plane(page, layer, 0).codes, 0xff, LayerBytes(o.layout, codec, o.page_tokens));
        }
      }
    }
    EXPECT_TRUE(RunAlone(*engine, 64).SameBits(fresh)) << Name(codec);
    EXPECT_TRUE(RunInCompany(*engine, kPromptTokens).SameBits(fresh)) << Name(codec);
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Isa isa : SupportedIsas()) {
    for (const char* model : {"llama-gqa", "llama-mqa-tied", "deepseek-v2-lite", "deepseek-v3"})
      cases.push_back({model, isa});
    // Quantised weights; the plain loops would take minutes.
    if (isa != Isa::kPortable) cases.push_back({"", isa});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, Determinism, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = (info.param.model.empty() ? "real" : info.param.model) + "_" + std::string(Name(info.param.isa));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(TransformerBatch, WhatDoesNotFitIsRefusedWithBothNumbers) {
  EngineOptions options;
  options.transformer = {.threads = 1, .batch_tokens_max = 8, .logit_rows_max = 2};
  options.pages = 40;
  Engine engine(TinyModel("llama-gqa"), options);
  PageLease lease = Must(engine.pool().Lease(33));
  const std::vector<TokenId> ids(16, 3);
  const auto message = [&](absl::Span<const TokenId> tokens, int64_t start, size_t pages, LogitsFor logits) {
    const auto status =
        engine.transformer().Forward({{{tokens, start, lease.pages().first(pages), logits}}}, engine.pool()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto some = [&ids](size_t n) { return absl::MakeConstSpan(ids).first(n); };
  EXPECT_NE(message(some(9), 0, 1, LogitsFor::kNone).find("9 tokens"), std::string::npos);
  EXPECT_NE(message(some(3), 0, 1, LogitsFor::kAll).find("3 rows"), std::string::npos);
  EXPECT_NE(message(some(8), 10, 1, LogitsFor::kNone).find("1 KV pages for 18 tokens"), std::string::npos);
  EXPECT_NE(message(some(8), 508, 33, LogitsFor::kNone).find("position 515"), std::string::npos);
  EXPECT_NE(message(some(0), 0, 1, LogitsFor::kNone).find("0 tokens"), std::string::npos);
  const TokenId bad = 384;
  EXPECT_NE(message({&bad, 1}, 0, 1, LogitsFor::kNone).find("token 384"), std::string::npos);
}

}  // namespace
}  // namespace sluice
