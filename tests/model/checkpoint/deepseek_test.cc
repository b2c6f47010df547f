// DeepSeek folders: what their config.json says, FP8 weights with their scales, layers that are not the model's.
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/huggingface_config.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint/temp_file.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string TinyPath(const std::string& name) { return SLUICE_TEST_DATA "/tiny/" + name; }

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

json TinyConfig(const std::string& model) { return json::parse(ReadFile(TinyPath(model) + "/config.json")); }

StatusOr<ModelConfig> Read(const json& config) {
  auto read = ReadHuggingFaceConfig(config.dump(), "", "folder");
  if (!read.ok()) return read.status();
  return read->model;
}

std::string Refusal(const std::string& model, const char* field, const json& value) {
  json config = TinyConfig(model);
  config[field] = value;
  return std::string(Read(config).status().message());
}

TEST(DeepSeekConfig, ReadsV2LiteAndV2) {
  auto lite = Read(TinyConfig("deepseek-v2-lite"));
  ASSERT_TRUE(lite.ok()) << lite.status();
  EXPECT_EQ(lite->architecture, "deepseek_v2");
  ASSERT_TRUE(lite->mla.has_value());
  EXPECT_EQ(lite->mla->query_rank, 0);
  EXPECT_EQ(lite->mla->latent, 32);
  EXPECT_EQ(lite->mla->nope_dim, 24);
  EXPECT_EQ(lite->mla->rope_dim, 16);
  EXPECT_EQ(lite->mla->value_dim, 24);
  EXPECT_EQ(lite->head_dim, 40);
  EXPECT_EQ(lite->rope.mscale, 0.707);
  EXPECT_EQ(lite->rope.mscale_all_dim, 0.707);
  ASSERT_TRUE(lite->moe.has_value());
  EXPECT_EQ(lite->moe->experts, 8);
  EXPECT_EQ(lite->moe->experts_per_token, 3);
  EXPECT_EQ(lite->moe->shared_experts, 2);
  EXPECT_EQ(lite->moe->choice, MoeChoice::kGreedy);
  EXPECT_EQ(lite->moe->scoring, MoeScoring::kSoftmax);
  EXPECT_FALSE(lite->moe->normalise);
  EXPECT_FALSE(lite->sparse(0));
  EXPECT_EQ(lite->mlp_size(0), 160);
  EXPECT_TRUE(lite->sparse(1));
  EXPECT_EQ(lite->mlp_size(1), 96);
  auto full = Read(TinyConfig("deepseek-v2-qlora"));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->mla->query_rank, 40);
  EXPECT_EQ(full->moe->choice, MoeChoice::kGroupLimitedGreedy);
  EXPECT_EQ(full->moe->groups, 4);
  EXPECT_EQ(full->moe->groups_kept, 2);
  EXPECT_EQ(full->moe->scale, 4.0);
}

TEST(DeepSeekConfig, ReadsV3AndItsPairing) {
  auto v3 = Read(TinyConfig("deepseek-v3"));
  ASSERT_TRUE(v3.ok()) << v3.status();
  EXPECT_EQ(v3->architecture, "deepseek_v3");
  EXPECT_EQ(v3->moe->choice, MoeChoice::kNoAuxTc);
  EXPECT_EQ(v3->moe->scoring, MoeScoring::kSigmoid);
  EXPECT_TRUE(v3->moe->normalise);
  EXPECT_EQ(v3->moe->scale, 2.5);
  EXPECT_EQ(v3->rope.pairing, RopePairing::kInterleaved);
  json half = TinyConfig("deepseek-v3");
  half["rope_interleave"] = false;
  EXPECT_EQ(Read(half)->rope.pairing, RopePairing::kHalf);
}

// V2 divides by the sum or multiplies by the factor, as its authors' code does.
TEST(DeepSeekConfig, V2DoesNotScaleWhatItNormalises) {
  json config = TinyConfig("deepseek-v2-qlora");
  config["norm_topk_prob"] = true;
  EXPECT_TRUE(Read(config)->moe->normalise);
  EXPECT_EQ(Read(config)->moe->scale, 1.0);
}

TEST(DeepSeekConfig, V2ScalesTheWeightOfAnOnlyExpert) {
  json config = TinyConfig("deepseek-v2-qlora");
  config["norm_topk_prob"] = true;
  config["num_experts_per_tok"] = 1;
  EXPECT_FALSE(Read(config)->moe->normalise);
  EXPECT_EQ(Read(config)->moe->scale, config["routed_scaling_factor"]);
}

TEST(DeepSeekConfig, HasNoMixtureWhereNoLayerIsSparse) {
  json config = TinyConfig("deepseek-v2-lite");
  config["first_k_dense_replace"] = 3;
  EXPECT_FALSE(Read(config)->moe.has_value());
  config["first_k_dense_replace"] = 1;
  config["n_routed_experts"] = nullptr;
  EXPECT_FALSE(Read(config)->moe.has_value());
}

TEST(DeepSeekConfig, NamesFieldAndValueOfWhatItRefuses) {
  const std::string v2 = "deepseek-v2-qlora";
  EXPECT_EQ(Refusal(v2, "kv_lora_rank", nullptr), "folder/config.json: kv_lora_rank is missing");
  EXPECT_THAT(Refusal(v2, "qk_rope_head_dim", 15), HasSubstr("the rotated part of a head is odd (15)"));
  EXPECT_THAT(Refusal(v2, "num_key_value_heads", 2),
              HasSubstr("num_key_value_heads (2) is not num_attention_heads (4)"));
  EXPECT_THAT(Refusal(v2, "n_group", 3), HasSubstr("8 experts do not divide into 3 groups"));
  EXPECT_THAT(Refusal(v2, "topk_group", 5), HasSubstr("5 groups of experts are kept of 4"));
  EXPECT_THAT(Refusal(v2, "num_experts_per_tok", 5), HasSubstr("5 experts a token of 4 that can be chosen"));
  json wide = TinyConfig(v2);
  wide["n_shared_experts"] = 1024;
  wide["moe_intermediate_size"] = 1 << 21;
  EXPECT_THAT(std::string(Read(wide).status().message()), HasSubstr("intermediate size is 2147483648"));
  EXPECT_THAT(Refusal(v2, "topk_method", "aux"), HasSubstr("topk_method is \"aux\""));
  EXPECT_THAT(Refusal(v2, "scoring_func", "relu"), HasSubstr("scoring_func is \"relu\""));
  EXPECT_THAT(Refusal(v2, "moe_layer_freq", 2), HasSubstr("moe_layer_freq is 2, only 1"));
  EXPECT_THAT(Refusal("deepseek-v3", "n_group", 8), HasSubstr("8 groups of 8 experts have one each"));
  EXPECT_THAT(Refusal(v2, "quantization_config", {{"quant_method", "awq"}}), HasSubstr("quant_method is \"awq\""));
  EXPECT_THAT(Refusal(v2, "quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {64, 128}}}),
              HasSubstr("weight_block_size is not [128, 128]"));
  EXPECT_THAT(
      Refusal(v2, "quantization_config", {{"quant_method", "fp8"}, {"fmt", "e5m2"}, {"weight_block_size", {128, 128}}}),
      HasSubstr("fmt is \"e5m2\", only e4m3 is supported"));
}

TEST(DeepSeekFolder, RefusesShapesThatTheConfigContradicts) {
  for (const auto& [field, value, words] :
       {std::tuple{"kv_lora_rank", 34, "has shape [48, 64], the configuration asks for [50, 64]"},
        std::tuple{"v_head_dim", 22, "has shape [64, 96], the configuration asks for [64, 88]"},
        std::tuple{"n_routed_experts", 16, "has shape [8, 64], the configuration asks for [16, 64]"},
        std::tuple{"n_shared_experts", 1, "has shape [96, 64], the configuration asks for [48, 64]"}}) {
    TempFolder folder;
    json config = TinyConfig("deepseek-v2-lite");
    config[field] = value;
    folder.Write("config.json", config.dump());
    folder.Link(TinyPath("deepseek-v2-lite/model.safetensors"));
    EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()), HasSubstr(words)) << field;
  }
}

// The FP8 folder with its file's header changed.
class Fp8Folder : public testing::Test {
 protected:
  void SetUp() override {
    file_ = ReadFile(TinyPath("deepseek-v3-fp8/model.safetensors"));
    uint64_t bytes = 0;
    std::memcpy(&bytes, file_.data(), sizeof bytes);
    header_ = json::parse(file_.substr(8, bytes));
    data_ = file_.substr(8 + bytes);
    folder_.Link(TinyPath("deepseek-v3-fp8/config.json"));
  }
  std::string RefusalOfHeader() {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t bytes = header.size();
    folder_.Write("model.safetensors", std::string(reinterpret_cast<const char*>(&bytes), 8) + header + data_);
    return std::string(OpenCheckpoint(folder_.path()).status().message());
  }
  void Rename(const std::string& from, const std::string& to) {
    header_[to] = header_[from];
    header_.erase(from);
  }

  TempFolder folder_;
  std::string file_;
  std::string data_;
  json header_;
};

TEST_F(Fp8Folder, HasAScaleForEachBlockAndSkipsThePredictionLayer) {
  ASSERT_EQ(RefusalOfHeader(), "");
  auto checkpoint = *OpenCheckpoint(folder_.path());
  EXPECT_EQ(checkpoint->config().prediction_layers, 1);
  const auto view = checkpoint->Tensor(Weight::kLatentUp, 1);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->type, DType::kF8E4M3);
  ASSERT_NE(view->block_scales, nullptr);
  EXPECT_GT(view->block_scales[0], 0);
  EXPECT_EQ(checkpoint->Tensor(Weight::kRouter, 1)->type, DType::kBf16);
  EXPECT_EQ(checkpoint->Tensor(Weight::kRouterBias, 1)->type, DType::kF32);
}

TEST_F(Fp8Folder, IsRefusedWhereAScaleIsMissingOrBelongsToNothing) {
  const json good = header_;
  const std::string weight = "model.layers.1.mlp.experts.3.up_proj.weight";
  Rename(weight + "_scale_inv", "model.layers.2.spare");  // a name that is skipped
  EXPECT_THAT(RefusalOfHeader(), HasSubstr(weight + "_scale_inv is missing"));
  header_ = good;
  Rename("model.layers.2.eh_proj.weight_scale_inv", "model.layers.1.input_layernorm.weight_scale_inv");
  EXPECT_THAT(RefusalOfHeader(), HasSubstr("input_layernorm.weight_scale_inv is not part of a deepseek_v3 model"));
}

TEST_F(Fp8Folder, IsRefusedWhereScalesHaveAnotherShapeOrType) {
  const json good = header_;
  json& scales = header_["model.layers.0.mlp.gate_proj.weight_scale_inv"];
  scales["shape"] = {4, 1};
  EXPECT_THAT(RefusalOfHeader(), HasSubstr("is F32 [4, 1], blocks of 128 of a shape of [176, 160] need F32 [2, 2]"));
  scales["shape"] = {2, 2};
  scales["dtype"] = "I32";
  EXPECT_THAT(RefusalOfHeader(), HasSubstr("is I32 [2, 2]"));
  header_ = good;
  header_["model.layers.2.enorm.weight"]["dtype"] = "F16";
  EXPECT_EQ(RefusalOfHeader(), "");  // skipped layers may hold anything
}

// Of as many bytes and shape as E4M3 has: only its name tells it.
TEST_F(Fp8Folder, IsRefusedWhereAWeightIsE5m2) {
  const std::string weight = "model.layers.0.mlp.gate_proj.weight";
  header_[weight]["dtype"] = "F8_E5M2";
  EXPECT_THAT(RefusalOfHeader(), HasSubstr("tensor " + weight +
                                           " is of type F8_E5M2, which cannot be a weight's; of 8 bits F8_E4M3 is "
                                           "supported"));
}

TEST_F(Fp8Folder, IsRefusedWhereFurtherLayersAreNotAnnounced) {
  json config = TinyConfig("deepseek-v3-fp8");
  config["num_nextn_predict_layers"] = nullptr;
  std::filesystem::remove(folder_.path() + "/config.json");
  folder_.Write("config.json", config.dump());
  EXPECT_THAT(RefusalOfHeader(), HasSubstr("tensor model.layers.2."));
}

}  // namespace
}  // namespace sluice
