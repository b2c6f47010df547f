// The tiny Hugging Face folders load, in both spellings of config.json.
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"

namespace sluice {
namespace {

std::string TinyPath(const std::string& name) { return SLUICE_TEST_DATA "/tiny/" + name; }

class TinyModel : public testing::TestWithParam<const char*> {};

TEST_P(TinyModel, LoadsWithEveryTensorInItsShape) {
  auto checkpoint = OpenCheckpoint(TinyPath(GetParam()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ((*checkpoint)->format(), "huggingface");
  EXPECT_EQ(config.rope.pairing, config.mla ? RopePairing::kInterleaved : RopePairing::kHalf);
  EXPECT_THAT(config.eos_ids, testing::ElementsAre(2));
  for (int w = 0; w < kWeightCount; ++w) {
    const auto weight = static_cast<Weight>(w);
    for (int expert = 0; expert < CountOf(weight, config, config.layers - 1); ++expert) {
      const auto view = (*checkpoint)->Tensor(weight, config.layers - 1, expert);
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ(view->rows, Shape(weight, config).rows);
      EXPECT_EQ(view->cols, Shape(weight, config).cols);
    }
  }
}

// A folder with the same weights but config.hub.json as its config.json.
std::string HubSpelling(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("hub-" + name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(TinyPath(name))) {
    const std::string file = entry.path().filename();
    if (file.starts_with("model")) fs::create_symlink(entry.path(), folder / file);
    if (file == "config.hub.json") fs::copy_file(entry.path(), folder / "config.json");
  }
  return folder;
}

TEST_P(TinyModel, IsTheSameModelInBothSpellingsOfItsConfig) {
  auto current = OpenCheckpoint(TinyPath(GetParam()));
  auto hub = OpenCheckpoint(HubSpelling(GetParam()));
  ASSERT_TRUE(current.ok()) << current.status();
  ASSERT_TRUE(hub.ok()) << hub.status();
  EXPECT_EQ((*current)->model_hash(), (*hub)->model_hash());
}

INSTANTIATE_TEST_SUITE_P(Models, TinyModel,
                         testing::Values("llama-gqa", "llama-mha", "llama-mqa-tied", "llama-rope-linear",
                                         "llama-rope-llama3", "deepseek-v2-lite", "deepseek-v2-qlora", "deepseek-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(TinyModels, SayWhatTheirConfigSays) {
  auto checkpoint = OpenCheckpoint(TinyPath("llama-gqa"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "llama-gqa");
  EXPECT_EQ((*OpenCheckpoint(TinyPath("llama-gqa/")))->config().name, "llama-gqa");
  EXPECT_EQ(config.vocab_size, 384);
  EXPECT_EQ(config.hidden_size, 96);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.heads, 6);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_EQ(config.context_tokens_max, 512);
  EXPECT_DOUBLE_EQ(config.rms_norm_eps, 1e-3);
  EXPECT_DOUBLE_EQ(config.rope.theta, 1e5);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ((*checkpoint)->tokenizer().kind, TokenizerKind::kNone);
  EXPECT_THAT((*checkpoint)->tokenizer().unsupported, testing::HasSubstr("has no tokenizer.json"));
}

TEST(TinyModels, ReadLlama3AndLinearRopeScaling) {
  auto llama3 = OpenCheckpoint(TinyPath("llama-rope-llama3"));
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  const RopeConfig& rope = (*llama3)->config().rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
  EXPECT_DOUBLE_EQ(rope.factor, 8);
  EXPECT_DOUBLE_EQ(rope.low_freq_factor, 1);
  EXPECT_DOUBLE_EQ(rope.high_freq_factor, 4);
  EXPECT_EQ(rope.original_context_tokens, 64);
  auto linear = OpenCheckpoint(TinyPath("llama-rope-linear"));
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ((*linear)->config().rope.scaling, RopeScaling::kLinear);
  EXPECT_DOUBLE_EQ((*linear)->config().rope.factor, 4);
}

TEST(TinyModels, UseTheEmbeddingAsHeadWhereTied) {
  auto checkpoint = OpenCheckpoint(TinyPath("llama-mqa-tied"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->config().tied_embeddings);
  EXPECT_EQ((*checkpoint)->Tensor(Weight::kOutput, 0)->data, (*checkpoint)->Tensor(Weight::kTokenEmbedding, 0)->data);
}

TEST(TinyModels, DifferInTheirHashes) {
  EXPECT_NE((*OpenCheckpoint(TinyPath("llama-mha")))->model_hash(),
            (*OpenCheckpoint(TinyPath("llama-rope-linear")))->model_hash());
}

}  // namespace
}  // namespace sluice
