// The transformer with KV stored in each codec: how far its logits move, what changes no bit, and what is counted.
#include <cstring>

#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/model/checkpoint/small_gguf.h"
#include "tests/model/checkpoint/temp_file.h"
#include "tests/model/engine_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

struct Case {
  KvCodec codec;
  Isa isa;
};

// Every codec that can hold the model's rows, on every instruction set.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Isa isa : SupportedIsas()) {
    for (const KvCodecInfo& codec : KvCodecs()) {
      if (codec.check({.channels = 32}).ok()) cases.push_back({codec.codec, isa});
    }
  }
  return cases;
}

std::unique_ptr<Engine> MakeEngine(KvCodec codec, int threads, bool exact) {
  EngineOptions options;
  options.transformer = {.threads = threads, .batch_tokens_max = 600, .logit_rows_max = 64, .exact = exact};
  options.codec = codec;
  options.pages = 200;
  return std::make_unique<Engine>(TinyModel("llama-rope-llama3"), options);  // heads of 32: int4 takes them
}

class StoreCodec : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam().isa).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  // All bytes of the sequence's written slots.
  static std::vector<std::byte> Bytes(Engine& engine, const Sequence& sequence) {
    const KvPoolOptions& o = engine.pool().options();
    std::vector<std::byte> bytes;
    for (int layer = 0; layer < o.layout.layers; ++layer) {
      for (int tensor = 0; tensor < o.layout.tensors(); ++tensor) {
        const PlaneBytes slot = TensorBytes(o.layout, o.codec, 1);
        for (int64_t t = 0; t < sequence.tokens; ++t) {
          const PageIndex page = sequence.lease.pages()[static_cast<size_t>(t / o.page_tokens)];
          const KvPlane plane = engine.pool().Plane(page, layer, tensor);
          const auto at = static_cast<size_t>(t % o.page_tokens);
          const std::byte* codes = plane.codes + at * slot.codes;
          const std::byte* scales = plane.scales + at * slot.scales;
          bytes.insert(bytes.end(), codes, codes + slot.codes);
          bytes.insert(bytes.end(), scales, scales + slot.scales);
        }
      }
    }
    return bytes;
  }

  struct Outcome {
    std::vector<float> logits;  // of the prompt's end and of three greedy tokens
    std::vector<std::byte> kv;
    bool operator==(const Outcome&) const = default;
  };
  static Outcome Run(Engine& engine, size_t chunk) {
    Rng rng(1);
    std::vector<TokenId> prompt(300);  // a span of attention and a part of one
    for (TokenId& id : prompt)
      id = static_cast<TokenId>(rng.Bits() % static_cast<uint64_t>(engine.config().vocab_size));
    Sequence sequence = engine.NewSequence();
    std::vector<float> last = engine.Prefill(sequence, prompt, chunk);
    Outcome outcome = {.logits = last};
    for (int i = 0; i < 3; ++i) {
      const TokenId id = Argmax(last);
      last = engine.Forward({{engine.Chunk(sequence, {&id, 1}, LogitsFor::kLast)}});
      outcome.logits.insert(outcome.logits.end(), last.begin(), last.end());
    }
    outcome.kv = Bytes(engine, sequence);
    return outcome;
  }
};

// What the codec does to attention over random rows, relative RMS (kernels/codec's goldens measured it).
double AttentionError(KvCodec codec) {
  switch (codec) {
    case KvCodec::kBf16:
      return 0.0024;
    case KvCodec::kF16:
      return 0.0003;
    case KvCodec::kFp8:
      return 0.0369;
    case KvCodec::kInt8:
      return 0.0091;
    case KvCodec::kInt4:
      return 0.1220;
    case KvCodec::kF32:
    case KvCodec::kMlaFp8:
      break;
  }
  return 1e-6;
}

// The largest error of a logit, relative to the largest logit, after two layers: about that of one attention. And no
// less than a third of it, or the codec was not in use.
TEST_P(StoreCodec, LogitsStayWithinTheCodecsError) {
  const auto golden = ReadGoldenTensors(TinyModel("llama-rope-llama3") + "/golden.safetensors");
  const std::vector<int64_t>& ids = golden.at("input_ids").i64;
  const std::vector<TokenId> prompt(ids.begin(), ids.end());
  auto engine = MakeEngine(GetParam().codec, 2, /*exact=*/true);
  Sequence sequence = engine->NewSequence();
  const std::vector<float> logits = engine->Forward({{engine->Chunk(sequence, prompt, LogitsFor::kAll)}});
  const double error = RelativeError(logits, golden.at("logits").f32);
  EXPECT_LT(error, 3 * AttentionError(GetParam().codec));
  EXPECT_GT(error, AttentionError(GetParam().codec) / 3);
  const KvCodecCounts counts = engine->transformer().kv_counts();
  EXPECT_EQ(counts.nonfinite_rows + counts.saturated, 0);
}

TEST_P(StoreCodec, ChunksAndThreadsChangeNoBit) {
  const Outcome whole = Run(*MakeEngine(GetParam().codec, 1, /*exact=*/false), 300);
  auto engine = MakeEngine(GetParam().codec, 3, /*exact=*/false);
  for (const size_t chunk : {size_t{17}, size_t{300}})
    EXPECT_TRUE(Run(*engine, chunk) == whole) << "chunks of " << chunk;
}

// Every byte of a slot that a run has not written is FF, as a page of another request might be: a NaN everywhere.
TEST_P(StoreCodec, StalePagesAreNeverRead) {
  auto engine = MakeEngine(GetParam().codec, 2, /*exact=*/false);
  const Outcome fresh = Run(*engine, 64);
  {
    PageLease all = Must(engine->pool().Lease(engine->pool().pages_free()));
    const KvPoolOptions& o = engine->pool().options();
    for (const PageIndex page : all.pages()) {
      for (int layer = 0; layer < o.layout.layers; ++layer) {
        std::memset(engine->pool().Plane(page, layer, 0).codes, 0xff, LayerBytes(o.layout, o.codec, o.page_tokens));
      }
    }
  }
  EXPECT_TRUE(Run(*engine, 64) == fresh);
}

INSTANTIATE_TEST_SUITE_P(Codecs, StoreCodec, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return std::string(Name(info.param.codec)) + "_" + std::string(Name(info.param.isa));
});

TEST(StoreCodecCounts, WhatTheEncoderCutsOrPoisonsIsCounted) {
  struct Wanted {
    KvCodec codec;
    float weight;
    int64_t nonfinite_rows, saturated;
  };
  const TempFolder folder;
  // Three tokens in two layers make six rows of that head; behind a NaN all twelve rows of the second layer are NaN.
  for (const Wanted& want :
       {Wanted{KvCodec::kF16, 1.0f, 0, 0}, Wanted{KvCodec::kF16, 1e6f, 0, 6}, Wanted{KvCodec::kInt8, 1e6f, 0, 0},
        Wanted{KvCodec::kInt8, 1e30f, 15, 0}, Wanted{KvCodec::kBf16, 3e38f, 15, 0}}) {
    EngineOptions options;
    options.transformer.exact = true;
    options.codec = want.codec;
    Engine engine(folder.Write("model.gguf", ModelWithLargeValues(want.weight)), options);
    Sequence sequence = engine.NewSequence();
    const std::vector<TokenId> ids = {2, 3, 4};
    (void)engine.Forward({{engine.Chunk(sequence, ids, LogitsFor::kNone)}});
    const KvCodecCounts counts = engine.transformer().kv_counts();
    EXPECT_EQ(counts.nonfinite_rows, want.nonfinite_rows) << Name(want.codec) << " " << want.weight;
    EXPECT_EQ(counts.saturated, want.saturated) << Name(want.codec) << " " << want.weight;
  }
}

}  // namespace
}  // namespace sluice
