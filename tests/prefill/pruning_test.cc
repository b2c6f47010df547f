#include "prefill/pruning.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/kept_prompt.h"

namespace sluice::prefill {
namespace {

constexpr int kPageTokens = 4;
const KvLayout kLayout = KvLayout::Gqa(2, 2, 16);

class PruningTest : public testing::Test {
 protected:
  // Every row says which token, layer, tensor and head it is of.
  float Mark(int64_t token, int layer, int tensor, int head) {
    return static_cast<float>(token + 100 * layer + 1000 * tensor + 2000 * head);
  }
  void FillPrompt(int64_t tokens) {
    prompt_ = *pool_->Lease(pool_->PagesFor(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int layer = 0; layer < kLayout.layers; ++layer) {
        for (int tensor = 0; tensor < 2; ++tensor) {
          for (int head = 0; head < 2; ++head)
            *RowAt(prompt_.pages(), t, layer, tensor, head) = Mark(t, layer, tensor, head);
        }
      }
    }
  }
  float* RowAt(absl::Span<const PageIndex> pages, int64_t slot, int layer, int tensor, int head) {
    const KvPlane plane = pool_->Plane(pages[static_cast<size_t>(slot / kPageTokens)], layer, tensor);
    return reinterpret_cast<float*>(plane.codes) + (slot % kPageTokens * 2 + head) * 16;
  }

  std::unique_ptr<KvPool> pool_ =
      *KvPool::Create({.layout = kLayout, .codec = KvCodec::kF32, .page_tokens = kPageTokens, .pages = 64});
  PageLease prompt_;
};

TEST_F(PruningTest, PacksWhatEachLayerAndHeadKeeps) {
  constexpr int64_t kTokens = 30;
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 9, .sinks = 1, .window = 3};
  FillPrompt(kTokens);
  ASSERT_EQ(Pruning::PagesFor(policy, *pool_, kTokens), 3);
  Pruning pruning(policy, pool_.get(), kTokens, *pool_->Lease(3));
  ASSERT_TRUE(pruning.prunes());
  for (int layer = 0; layer < kLayout.layers; ++layer) {
    float* scores = pruning.scores()->layer(layer);
    for (int64_t i = 0; i < 2 * pruning.scores()->stride(); ++i)
      scores[i] = static_cast<float>((i * 7 + layer * 5) % 11);
    pruning.KeepLayer(layer, prompt_.pages());
  }
  const auto kept = FromProto(pruning.Finish(), policy, kLayout, kTokens, 10);
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (int layer = 0; layer < kLayout.layers; ++layer) {
    for (int head = 0; head < 2; ++head) {
      const std::vector<int32_t> positions = kept->Positions(layer, head);
      ASSERT_EQ(positions.size(), 9u);
      for (size_t slot = 0; slot < positions.size(); ++slot) {
        for (int tensor = 0; tensor < 2; ++tensor) {
          EXPECT_EQ(*RowAt(pruning.pages(), static_cast<int64_t>(slot), layer, tensor, head),
                    Mark(positions[slot], layer, tensor, head));
        }
      }
    }
  }
  // The prompt's own pages stay as they were, for whoever has the same beginning.
  for (int64_t t = 0; t < kTokens; ++t) EXPECT_EQ(*RowAt(prompt_.pages(), t, 1, 1, 1), Mark(t, 1, 1, 1));
  EXPECT_NE(kept->Positions(0, 0), kept->Positions(1, 1));
}

TEST_F(PruningTest, APromptWithinTheBudgetNeedsNoPagesButItsScoresGo) {
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 9, .window = 3};
  FillPrompt(8);
  EXPECT_EQ(Pruning::PagesFor(policy, *pool_, 8), 0);
  Pruning pruning(policy, pool_.get(), 8, *pool_->Lease(0));
  EXPECT_FALSE(pruning.prunes());
  for (int layer = 0; layer < kLayout.layers; ++layer) {
    pruning.scores()->layer(layer)[3] = 5;
    pruning.KeepLayer(layer, prompt_.pages());
  }
  const auto kept = FromProto(pruning.Finish(), policy, kLayout, 8, 10);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->held(), 8);
  EXPECT_EQ(kept->Scores(1, 0)[3], 5);
}

// A score a token and list, and of what stays a position and a score; then the message with both, and its bytes.
TEST(PruningBytes, AreThoseOfScoresAndListsAndThenOfTheMessage) {
  constexpr int64_t kTokens = 1600, kLists = 4;
  const CachePolicy h2o = {.kind = CachePolicyKind::kH2o, .budget = 160, .window = 80};
  EXPECT_EQ(Pruning::BytesToCompute(h2o, kLayout, kTokens), kLists * (kTokens * 4 + 160 * 8 + 4));
  EXPECT_EQ(Pruning::BytesToCompute({.kind = CachePolicyKind::kTova, .budget = 160, .window = 1}, kLayout, kTokens),
            kLayout.layers * (kTokens * 4 + 160 * 8 + 4));
  EXPECT_EQ(Pruning::BytesToCompute({}, kLayout, kTokens), 0);

  const auto pool = *KvPool::Create({.layout = kLayout, .codec = KvCodec::kF32, .page_tokens = 16, .pages = 110});
  const PageLease prompt = *pool->Lease(pool->PagesFor(kTokens));
  Pruning pruning(h2o, pool.get(), kTokens, *pool->Lease(10));
  for (int layer = 0; layer < kLayout.layers; ++layer) pruning.KeepLayer(layer, prompt.pages());
  const proto::KeptPrompt message = pruning.Finish();
  EXPECT_LE(static_cast<int64_t>(message.SpaceUsedLong() + message.ByteSizeLong()),
            Pruning::BytesToHandOver(h2o, kLayout, kTokens));
}

TEST(PruningBytes, NoPolicyTakesMoreThanIsPlannedFor) {
  for (const KvLayout& layout : {kLayout, KvLayout::Mla(3, 32, 16)}) {
    const int64_t most = Pruning::BytesMax(layout, 500);
    for (const int64_t tokens : {1, 17, 499, 500}) {
      for (const CachePolicyKind kind : kCachePolicyKinds) {
        for (const int64_t budget : {1, 100, 500, 9000}) {
          EXPECT_LE(Pruning::BytesToCompute({.kind = kind, .budget = budget}, layout, tokens), most);
          EXPECT_LE(Pruning::BytesToHandOver({.kind = kind, .budget = budget}, layout, tokens), most);
        }
      }
    }
  }
}

TEST_F(PruningTest, SinkWindowNeedsNoScores) {
  const CachePolicy policy = {.kind = CachePolicyKind::kSinkWindow, .budget = 6, .sinks = 2, .window = 4};
  FillPrompt(20);
  Pruning pruning(policy, pool_.get(), 20, *pool_->Lease(2));
  EXPECT_EQ(pruning.scores(), nullptr);
  for (int layer = 0; layer < kLayout.layers; ++layer) pruning.KeepLayer(layer, prompt_.pages());
  EXPECT_EQ(pruning.Finish().lists_size(), 0);
  const int64_t expected[] = {0, 1, 16, 17, 18, 19};
  for (int64_t slot = 0; slot < 6; ++slot)
    EXPECT_EQ(*RowAt(pruning.pages(), slot, 1, 0, 1), Mark(expected[slot], 1, 0, 1));
}

}  // namespace
}  // namespace sluice::prefill
