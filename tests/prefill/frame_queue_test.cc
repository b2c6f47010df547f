#include "prefill/frame_queue.h"

#include <map>
#include <set>

#include "common/rng.h"
#include "gtest/gtest.h"

namespace sluice {
bool operator==(const KvRange& a, const KvRange& b) {
  return a.layer == b.layer && a.layers == b.layers && a.first_token == b.first_token && a.tokens == b.tokens;
}
void PrintTo(const KvRange& r, std::ostream* out) {
  *out << "layers " << r.layer << "+" << r.layers << " tokens " << r.first_token << "+" << r.tokens;
}
}  // namespace sluice

namespace sluice::prefill {
namespace {

// In bf16 a token of one layer has 128 bytes, and bodies have no gaps.
constexpr KvLayout kLayout = KvLayout::Gqa(6, 2, 16);
constexpr size_t kTokenBytes = 128;

FrameLimits Limits(size_t bytes_min, size_t bytes_max) {
  return {.layout = kLayout, .codec = KvCodec::kBf16, .bytes_min = bytes_min, .bytes_max = bytes_max};
}

KvRange Layer(int layer, int64_t first_token, int64_t tokens) {
  return {.layer = layer, .layers = 1, .first_token = first_token, .tokens = tokens};
}

// Everything that is ready.
std::vector<KvRange> TakeAll(FrameQueue& queue, const FrameLimits& limits) {
  std::vector<KvRange> frames;
  while (const auto frame = queue.Next(limits)) {
    frames.push_back(*frame);
    queue.Pop(*frame);
  }
  return frames;
}

using Frames = std::vector<KvRange>;

TEST(FrameQueue, LayersThatAreLargeEnoughLeaveOneByOneAsTheyCome) {
  FrameQueue queue;
  for (int layer = 0; layer < kLayout.layers; ++layer) {
    queue.Add(Layer(layer, 0, 8));
    EXPECT_EQ(TakeAll(queue, Limits(8 * kTokenBytes, 1 << 20)), (Frames{Layer(layer, 0, 8)}));
  }
  EXPECT_TRUE(queue.empty());
}

TEST(FrameQueue, SmallLayersShareAFrameUntilItIsLargeEnoughOrTheLast) {
  FrameQueue queue;
  const FrameLimits limits = Limits(3 * 4 * kTokenBytes + 1, 1 << 20);  // four layers of four tokens
  for (const int layer : {0, 1, 2}) {
    queue.Add(Layer(layer, 0, 4));
    EXPECT_EQ(TakeAll(queue, limits), Frames{}) << "layer " << layer;
  }
  queue.Add(Layer(3, 0, 4));
  EXPECT_EQ(TakeAll(queue, limits), (Frames{{.layer = 0, .layers = 4, .first_token = 0, .tokens = 4}}));
  queue.Add(Layer(4, 0, 4));
  EXPECT_EQ(TakeAll(queue, limits), Frames{});
  queue.Add(Layer(5, 0, 4));
  EXPECT_EQ(TakeAll(queue, limits), (Frames{{.layer = 4, .layers = 2, .first_token = 0, .tokens = 4}}));
}

TEST(FrameQueue, ExactlyTheLeastSizeIsEnough) {
  for (const int surplus : {0, 1}) {
    FrameQueue queue;
    queue.Add(Layer(0, 0, 4));
    queue.Add(Layer(1, 0, 4));
    const auto frames = TakeAll(queue, Limits(2 * 4 * kTokenBytes + static_cast<size_t>(surplus), 1 << 20));
    EXPECT_EQ(frames.size(), surplus == 0 ? 1u : 0u);
  }
}

TEST(FrameQueue, NoFrameIsLargerThanTheLargestEvenWhereTheLeastSizeAsksForMore) {
  FrameQueue queue;
  queue.Add({.layer = 0, .layers = 6, .first_token = 0, .tokens = 4});
  const auto frames = TakeAll(queue, Limits(5 * 4 * kTokenBytes, 2 * 4 * kTokenBytes + 8));
  EXPECT_EQ(frames, (Frames{{.layer = 0, .layers = 2, .tokens = 4},
                            {.layer = 2, .layers = 2, .tokens = 4},
                            {.layer = 4, .layers = 2, .tokens = 4}}));
}

TEST(FrameQueue, TheNextChunkEndsTheWaitForMoreLayers) {
  FrameQueue queue;
  const FrameLimits limits = Limits(1 << 20, 1 << 20);
  queue.Add(Layer(0, 0, 4));
  EXPECT_EQ(TakeAll(queue, limits), Frames{});
  queue.Add(Layer(0, 4, 4));
  EXPECT_EQ(TakeAll(queue, limits), (Frames{Layer(0, 0, 4)}));
}

TEST(FrameQueue, ClosingEndsTheWaitForMoreLayers) {
  FrameQueue queue;
  queue.Add(Layer(0, 0, 4));
  queue.Close(/*kv_tokens=*/4);
  EXPECT_EQ(TakeAll(queue, Limits(1 << 20, 1 << 20)), (Frames{Layer(0, 0, 4)}));
}

TEST(FrameQueue, ALayerBeyondTheLargestFrameIsCutEvenlyByTokens) {
  FrameQueue queue;
  queue.Add({.layer = 0, .layers = 2, .first_token = 10, .tokens = 10});
  const auto frames = TakeAll(queue, Limits(1, 4 * kTokenBytes));
  EXPECT_EQ(frames, (Frames{Layer(0, 10, 4), Layer(0, 14, 3), Layer(0, 17, 3), Layer(1, 10, 4), Layer(1, 14, 3),
                            Layer(1, 17, 3)}));
}

TEST(FrameQueue, PartsOfACutLayerDoNotWaitForMoreLayers) {
  FrameQueue queue;
  queue.Add(Layer(0, 0, 10));
  EXPECT_EQ(TakeAll(queue, Limits(8 * kTokenBytes, 8 * kTokenBytes)), (Frames{Layer(0, 0, 5), Layer(0, 5, 5)}));
}

TEST(FrameQueue, ClosingForgetsWhatTheRecordDoesNotName) {
  FrameQueue queue;
  queue.Add({.layer = 0, .layers = 6, .first_token = 0, .tokens = 8});
  queue.Add({.layer = 0, .layers = 6, .first_token = 8, .tokens = 8});
  queue.Close(/*kv_tokens=*/6);
  EXPECT_EQ(TakeAll(queue, Limits(1 << 20, 1 << 20)),
            (Frames{{.layer = 0, .layers = 6, .first_token = 0, .tokens = 6}}));
  EXPECT_TRUE(queue.empty());
}

TEST(FrameQueue, AFrameThatIsWantedAgainGoesFirstAndAsItWas) {
  FrameQueue queue;
  queue.Add({.layer = 0, .layers = 6, .first_token = 0, .tokens = 8});
  const KvRange again = {.layer = 1, .layers = 2, .first_token = 0, .tokens = 8};
  queue.AddAgain(again);
  const FrameLimits limits = Limits(8 * kTokenBytes, 1 << 20);
  ASSERT_EQ(queue.Next(limits), again);
  queue.Pop(again);
  EXPECT_EQ(TakeAll(queue, limits).size(), 6u);
}

TEST(FrameQueue, OnlyWhatWasAddedCanBeWantedAgain) {
  FrameQueue queue;
  for (const int layer : {0, 1, 2}) queue.Add(Layer(layer, 4, 8));
  TakeAll(queue, Limits(1, 1 << 20));
  EXPECT_TRUE(queue.WasAdded({.layer = 0, .layers = 3, .first_token = 4, .tokens = 8}));
  EXPECT_TRUE(queue.WasAdded(Layer(2, 6, 2)));
  EXPECT_FALSE(queue.WasAdded({.layer = 1, .layers = 3, .first_token = 4, .tokens = 8}));
  EXPECT_FALSE(queue.WasAdded(Layer(0, 3, 2)));
  EXPECT_FALSE(queue.WasAdded(Layer(0, 11, 2)));
}

// Whatever becomes final when, each token of each layer leaves once, in frames within the limits, and the frames are
// the same whether they are taken as soon as they can be or at the end.
TEST(FrameQueue, EveryTokenOfEveryLayerLeavesOnceForAnySizes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    auto draw = [&, i = uint64_t{0}](uint64_t bound) mutable { return RandomBits(seed, i++) % bound; };
    const size_t bytes_max = kTokenBytes * (1 + draw(40));
    const FrameLimits limits = Limits(1 + draw(bytes_max), bytes_max);
    FrameQueue eager, lazy;
    Frames frames;
    int64_t prompt_tokens = 0;
    for (uint64_t chunk = 0; chunk <= draw(4); ++chunk) {
      const auto tokens = static_cast<int64_t>(1 + draw(30));
      for (int layer = 0; layer < kLayout.layers; ++layer) {
        eager.Add(Layer(layer, prompt_tokens, tokens));
        lazy.Add(Layer(layer, prompt_tokens, tokens));
        for (const KvRange& frame : TakeAll(eager, limits)) frames.push_back(frame);
      }
      prompt_tokens += tokens;
    }
    EXPECT_TRUE(eager.empty()) << "seed " << seed;
    EXPECT_EQ(TakeAll(lazy, limits), frames) << "seed " << seed;
    std::set<std::pair<int, int64_t>> sent;
    for (const KvRange& frame : frames) {
      EXPECT_LE(BodyBytes(kLayout, limits.codec, frame.layers, frame.tokens), bytes_max);
      for (int layer = frame.layer; layer < frame.layer + frame.layers; ++layer)
        for (int64_t t = frame.first_token; t < frame.first_token + frame.tokens; ++t)
          EXPECT_TRUE(sent.emplace(layer, t).second) << "seed " << seed << ": twice";
    }
    EXPECT_EQ(sent.size(), static_cast<size_t>(kLayout.layers * prompt_tokens)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::prefill
