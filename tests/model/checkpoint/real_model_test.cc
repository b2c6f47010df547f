// SmolLM2-135M-Instruct from its GGUF file, where the environment names it.
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"

namespace sluice {
namespace {

class RealModel : public testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("SLUICE_TEST_MODEL");
    if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
    auto opened = OpenCheckpoint(path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(RealModel, HasItsShape) {
  const ModelConfig& config = checkpoint_->config();
  EXPECT_EQ(checkpoint_->format(), "gguf");
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.context_tokens_max, 8192);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.rope.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_DOUBLE_EQ(config.rope.theta, 100000);
  EXPECT_THAT(config.eos_ids, testing::ElementsAre(2));
  EXPECT_EQ(checkpoint_->Tensor(Weight::kTokenEmbedding, 0)->type, DType::kQ8_0);
  EXPECT_EQ(checkpoint_->Tensor(Weight::kDown, 29)->type, DType::kQ4_1);
  EXPECT_EQ(checkpoint_->tensors().size(), 272u);
}

TEST_F(RealModel, HasItsTokenizer) {
  const TokenizerData& data = checkpoint_->tokenizer();
  EXPECT_EQ(data.kind, TokenizerKind::kByteLevelBpe);
  EXPECT_EQ(data.tokens.size(), 49152u);
  EXPECT_EQ(data.merges.size(), 48900u);
  EXPECT_EQ(data.split_patterns.size(), 2u);
  EXPECT_EQ(data.added.size(), 17u);
  EXPECT_TRUE(data.added[1].special);
  EXPECT_EQ(data.bos_text, "<|im_start|>");
  EXPECT_EQ(data.eos_text, "<|im_end|>");
  EXPECT_FALSE(data.add_bos);
  EXPECT_THAT(data.chat_template, testing::HasSubstr("You are a helpful AI assistant named SmolLM"));
}

}  // namespace
}  // namespace sluice
