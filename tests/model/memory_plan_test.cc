#include "model/memory_plan.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/synthetic_model.h"
#include "tests/model/checkpoint/temp_file.h"
#include "tests/model/engine_fixture.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

KvPoolOptions SmallPool() {
  return {.layout = KvLayout::Gqa(30, 3, 64, RopePairing::kInterleaved),
          .codec = KvCodec::kBf16,
          .page_tokens = 16,
          .pages = 100};
}

TEST(MemoryPlan, AddsUpEveryRegionAndNamesIt) {
  const MemoryPlan plan =
      MakeMemoryPlan({.available_bytes = 500 * kMiB, .resident_bytes = 40 * kMiB},
                     {.weights_bytes = 90 * kMiB, .mapped_bytes = 30 * kMiB, .scratch_bytes = 10 * kMiB}, SmallPool(),
                     {{"staging", 16 * kMiB}});
  EXPECT_EQ(plan.total_bytes(), 186 * kMiB + 1600 * 23040);
  for (const char* part : {"process 40.0 MiB", "weights 90.0 MiB", "embedding in place 30.0 MiB",
                           "KV pool of 1600 tokens", "scratch 10.0 MiB", "staging 16.0 MiB", "together 221.2 MiB"}) {
    EXPECT_THAT(plan.ToString(), HasSubstr(part));
  }
}

TEST(MemoryPlan, RefusesWhatExceedsTheBudgetOrTheMachineNamingTheLimit) {
  const MachineMemory machine = {.available_bytes = 100 * kMiB, .resident_bytes = 20 * kMiB};
  MemoryPlan plan = {.regions = {{"process", 20 * kMiB}, {"weights", 100 * kMiB}}};
  EXPECT_TRUE(CheckFits(plan, machine, std::nullopt).ok());
  EXPECT_TRUE(CheckFits(plan, machine, 120 * kMiB).ok());
  const Status over_budget = CheckFits(plan, machine, 119 * kMiB);
  EXPECT_EQ(over_budget.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(over_budget.message()), HasSubstr("119.0 MiB"));
  plan.regions.push_back({"staging", 1});
  EXPECT_THAT(std::string(CheckFits(plan, machine, std::nullopt).message()), HasSubstr("120.0 MiB"));
}

TEST(MemoryPlan, PagesWithinAreWholeOnes) {
  const KvPoolOptions pool = SmallPool();
  EXPECT_EQ(*KvPagesWithin(16 * 23040, pool.layout, pool.codec, 16), 1);
  EXPECT_EQ(*KvPagesWithin(10 * 16 * 23040 - 1, pool.layout, pool.codec, 16), 9);
  const Status none = KvPagesWithin(16 * 23040 - 1, pool.layout, pool.codec, 16).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()), HasSubstr("368640"));
}

TEST(MemoryPlan, ReadsTheMachine) {
  const MachineMemory machine = Must(ReadMachineMemory());
  EXPECT_GT(machine.available_bytes, kMiB);
  EXPECT_GT(machine.resident_bytes, kMiB);
  EXPECT_GE(Must(ReadPeakResidentBytes()), kMiB);
}

// Latents: pages of a known size, of which as many are planned and taken as fit; the rest is less than one.
TEST(MemoryPlan, OfLatentsIsExactWithFewPages) {
  const KvLayout layout = KvLayout::Mla(27, 512, 64);
  for (const auto& [codec, row_bytes] : {std::pair{KvCodec::kF32, 2304}, std::pair{KvCodec::kBf16, 1152},
                                         std::pair{KvCodec::kF16, 1152}, std::pair{KvCodec::kMlaFp8, 656}}) {
    for (const int page_tokens : {1, 16, 64}) {
      const auto page_bytes = static_cast<size_t>(27 * row_bytes * page_tokens);
      for (const int pages : {1, 2, 7}) {
        for (const size_t rest : {size_t{0}, page_bytes / 2, page_bytes - 1}) {
          const size_t budget = static_cast<size_t>(pages) * page_bytes + rest;
          ASSERT_EQ(Must(KvPagesWithin(budget, layout, codec, page_tokens)), pages) << Name(codec);
        }
        const KvPoolOptions pool = {layout, codec, page_tokens, pages};
        EXPECT_EQ(MakeMemoryPlan({}, {}, pool, {}).total_bytes(), static_cast<size_t>(pages) * page_bytes);
        EXPECT_EQ(Must(KvPool::Create(pool))->bytes(), static_cast<size_t>(pages) * page_bytes);
      }
      EXPECT_FALSE(KvPagesWithin(page_bytes - 1, layout, codec, page_tokens).ok());
    }
  }
}

// A pool that holds less than the model's context needs no scratch memory for all of that; what goes beyond is refused.
TEST(MemoryPlan, ScratchIsForWhatASequencesPagesCanHold) {
  for (const char* model : {"llama-gqa", "deepseek-v2-lite"}) {
    const auto checkpoint = Must(OpenCheckpoint(TinyModel(model)));
    ASSERT_GE(checkpoint->config().context_tokens_max, 512);
    EngineOptions options;
    const size_t for_context = Must(Transformer::Plan(*checkpoint, options.transformer)).scratch_bytes;
    options.transformer.sequence_tokens_max = 256;
    EXPECT_LT(Must(Transformer::Plan(*checkpoint, options.transformer)).scratch_bytes, for_context) << model;
    Engine engine(TinyModel(model), options);
    Sequence sequence = engine.NewSequence();
    const std::vector<TokenId> ids(256, 7);
    (void)engine.Prefill(sequence, ids, 256);
    const SequenceChunk beyond = engine.Chunk(sequence, absl::MakeConstSpan(ids).first(1), LogitsFor::kLast);
    const Status refused = engine.transformer().Forward({{beyond}}, engine.pool()).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("position 256 of a sequence of at most 256 tokens")) << model;
    options.transformer.sequence_tokens_max = int64_t{1} << 40;
    EXPECT_EQ(Must(Transformer::Plan(*checkpoint, options.transformer)).scratch_bytes, for_context) << model;
  }
}

// Peak resident memory from here on; the sanitizers' own memory would drown the model's.
class PeakMemory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's own memory is not in the plan";
#endif
    std::ofstream reset("/proc/self/clear_refs");
    reset << "5";
    reset.flush();
    if (!reset) GTEST_SKIP() << "this system does not reset the peak of resident memory";
  }

  // Plans, loads and runs a full batch and some decode steps; says by what part the peak differs from the plan.
  double PeakOverPlan(const std::string& path, bool exact, size_t kv_bytes) {
    auto checkpoint = Must(OpenCheckpoint(path));
    const TransformerOptions options = {.threads = 2, .batch_tokens_max = 256, .logit_rows_max = 8, .exact = exact};
    KvPoolOptions kv = {.layout = KvLayout::Of(checkpoint->config())};
    kv.pages = Must(KvPagesWithin(kv_bytes, kv.layout, kv.codec, kv.page_tokens));
    const MemoryPlan plan =
        MakeMemoryPlan(Must(ReadMachineMemory()), Must(Transformer::Plan(*checkpoint, options)), kv, {});
    auto transformer = Must(Transformer::Create(checkpoint.get(), options));
    auto pool = Must(KvPool::Create(kv));
    PageLease lease = Must(pool->Lease(pool->PagesFor(300)));
    const std::vector<TokenId> ids(256, 7);
    EXPECT_TRUE(transformer->Forward({{{ids, 0, lease.pages(), LogitsFor::kLast}}}, *pool).ok());
    for (int64_t t = 256; t < 266; ++t) {
      EXPECT_TRUE(
          transformer->Forward({{{absl::MakeConstSpan(ids).first(1), t, lease.pages(), LogitsFor::kLast, true}}}, *pool)
              .ok());
    }
    return static_cast<double>(Must(ReadPeakResidentBytes())) / static_cast<double>(plan.total_bytes());
  }
};

TEST_F(PeakMemory, IsThePlansFigureWithinFivePercentForASmallModel) {
  const double ratio = PeakOverPlan(TinyModel("llama-gqa"), false, 100 * kMiB);
  EXPECT_GT(ratio, 0.95);
  EXPECT_LT(ratio, 1.05);
}

// Latent attention, experts and FP8 weights each have memory of their own.
TEST_F(PeakMemory, IsThePlansFigureWithinFivePercentForSmallDeepSeeks) {
  for (const char* model : {"deepseek-v2-lite", "deepseek-v3-fp8"}) {
    const double ratio = PeakOverPlan(TinyModel(model), false, 60 * kMiB);
    EXPECT_GT(ratio, 0.95) << model;
    EXPECT_LT(ratio, 1.05) << model;
  }
}

// Few pages, so that what the plan says of weights and scratch is most of it: the attention of V2-Lite, in each way of
// keeping weights.
TEST_F(PeakMemory, IsThePlansFigureWithinFivePercentForLatentsInFewPages) {
  const TempFolder folder;
  ASSERT_TRUE(WriteSyntheticModel({.layers = 3, .vocab_size = 4096}, folder.path() + "/model").ok());
  for (const bool exact : {false, true}) {
    const double ratio = PeakOverPlan(folder.path() + "/model", exact, 2 * kMiB);
    EXPECT_GT(ratio, 0.95) << exact;
    EXPECT_LT(ratio, 1.05) << exact;
  }
}

TEST_F(PeakMemory, IsThePlansFigureWithinFivePercentForARealModel) {
  const char* path = std::getenv("SLUICE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  const double ratio = PeakOverPlan(path, false, 100 * kMiB);
  EXPECT_GT(ratio, 0.95);
  EXPECT_LT(ratio, 1.05);
}

TEST_F(PeakMemory, IsThePlansFigureWithinFivePercentForARealModelInF32) {
  const char* path = std::getenv("SLUICE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  const double ratio = PeakOverPlan(path, true, 20 * kMiB);
  EXPECT_GT(ratio, 0.95);
  EXPECT_LT(ratio, 1.05);
}

}  // namespace
}  // namespace sluice
