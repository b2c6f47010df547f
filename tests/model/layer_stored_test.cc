// When a batch says that a layer's KV is stored: for each layer once, in order, and early.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/engine_fixture.h"

namespace sluice {
namespace {

using Kv = std::vector<std::vector<float>>;  // of some sequences in one layer: K, V, K, V, ...

class LayerStoredTest : public ::testing::Test {
 protected:
  Kv ReadLayer(const std::vector<Sequence*>& sequences, int layer) {
    Kv kv;
    for (const Sequence* sequence : sequences) {
      for (const bool value : {false, true}) kv.push_back(engine_.ReadKv(*sequence, layer, value));
    }
    return kv;
  }

  Engine engine_{TinyModel("llama-gqa"), {}};
  const std::vector<TokenId> ids_ = {5, 17, 300, 2, 2, 9, 41, 7, 120, 3, 64, 64, 8, 1, 0, 33, 21, 20, 19, 18, 4};
};

TEST_F(LayerStoredTest, EachLayersKvIsFinalAtItsCallAndTheNextOnesIsStillToCome) {
  const int layers = engine_.config().layers;
  Sequence first = engine_.NewSequence(), second = engine_.NewSequence();
  Batch batch;
  batch.sequences = {engine_.Chunk(first, ids_, LogitsFor::kNone),
                     engine_.Chunk(second, absl::MakeSpan(ids_).first(3), LogitsFor::kLast)};
  const std::vector<Sequence*> sequences = {&first, &second};
  const Kv before = ReadLayer(sequences, layers - 1);
  std::vector<int> calls;
  std::vector<Kv> at_call;
  batch.on_layer_stored = [&](int layer) {
    calls.push_back(layer);
    at_call.push_back(ReadLayer(sequences, layer));
    if (layer + 1 == layers) return;
    EXPECT_EQ(ReadLayer(sequences, layers - 1), before) << "layer " << layer;
  };
  engine_.Forward(batch);
  ASSERT_EQ(at_call.size(), static_cast<size_t>(layers));
  for (int layer = 0; layer < layers; ++layer) {
    EXPECT_EQ(calls[static_cast<size_t>(layer)], layer);
    EXPECT_EQ(at_call[static_cast<size_t>(layer)], ReadLayer(sequences, layer)) << "layer " << layer;
  }
  EXPECT_NE(at_call.back(), before);
}

TEST_F(LayerStoredTest, ABatchWithoutLogitsSaysItOfEveryLayerToo) {
  Sequence sequence = engine_.NewSequence();
  Batch batch;
  batch.sequences = {engine_.Chunk(sequence, ids_, LogitsFor::kNone)};
  int calls = 0;
  batch.on_layer_stored = [&](int) { ++calls; };
  engine_.Forward(batch);
  EXPECT_EQ(calls, engine_.config().layers);
}

}  // namespace
}  // namespace sluice
