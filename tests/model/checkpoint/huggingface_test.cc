// Hugging Face folders: what config.json and the index may say, and a sentence for everything else.
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

json TinyConfig() { return json::parse(ReadFile(TinyPath("llama-mha/config.json"))); }

StatusOr<ModelConfig> Read(const json& config, const std::string& generation = "") {
  auto read = ReadHuggingFaceConfig(config.dump(), generation, "folder");
  if (!read.ok()) return read.status();
  return read->model;
}

std::string Refusal(const char* field, const json& value) {
  json config = TinyConfig();
  config[field] = value;
  return std::string(Read(config).status().message());
}

TEST(HuggingFaceConfig, TakesLlamasDefaultsWhereFieldsAreAbsent) {
  const json config = {{"model_type", "llama"},         {"vocab_size", 10},       {"hidden_size", 8},
                       {"intermediate_size", 16},       {"num_hidden_layers", 1}, {"num_attention_heads", 2},
                       {"num_key_value_heads", nullptr}};
  auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kv_heads, 2);
  EXPECT_EQ(read->head_dim, 4);
  EXPECT_EQ(read->context_tokens_max, 2048);
  EXPECT_DOUBLE_EQ(read->rms_norm_eps, 1e-6);
  EXPECT_DOUBLE_EQ(read->rope.theta, 10000);
  EXPECT_FALSE(read->tied_embeddings);
}

TEST(HuggingFaceConfig, ReadsYarnInBothSpellings) {
  const json scaling = {
      {"factor", 4.0}, {"original_max_position_embeddings", 128}, {"beta_fast", 24}, {"attention_factor", 1.25}};
  json current = TinyConfig();
  current["rope_parameters"] = scaling;
  current["rope_parameters"]["rope_type"] = "yarn";
  current["rope_parameters"]["rope_theta"] = 5000.0;
  json hub = TinyConfig();
  hub.erase("rope_parameters");
  hub["rope_theta"] = 5000.0;
  hub["rope_scaling"] = scaling;
  hub["rope_scaling"]["type"] = "yarn";
  for (const json& config : {current, hub}) {
    auto read = Read(config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->rope.scaling, RopeScaling::kYarn);
    EXPECT_DOUBLE_EQ(read->rope.theta, 5000);
    EXPECT_DOUBLE_EQ(read->rope.factor, 4);
    EXPECT_EQ(read->rope.original_context_tokens, 128);
    EXPECT_DOUBLE_EQ(read->rope.beta_fast, 24);
    EXPECT_DOUBLE_EQ(read->rope.beta_slow, 1);
    EXPECT_EQ(read->rope.attention_factor, 1.25);
    EXPECT_EQ(read->rope.mscale, std::nullopt);
  }
}

TEST(HuggingFaceConfig, JoinsEndTokensOfBothFiles) {
  auto read = Read(TinyConfig(), R"({"eos_token_id": [5, 2, 7]})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->eos_ids, testing::ElementsAre(2, 5, 7));
}

TEST(HuggingFaceConfig, NamesFileFieldAndValueOfWhatItRefuses) {
  EXPECT_EQ(Refusal("model_type", "falcon"),
            "folder/config.json: model_type \"falcon\" is not supported, there are llama, deepseek_v2, deepseek_v3");
  EXPECT_EQ(Refusal("vocab_size", -1), "folder/config.json: vocab_size is -1, 1 to 4194304 are allowed");
  EXPECT_EQ(Refusal("vocab_size", 18446744073709551615u),
            "folder/config.json: vocab_size is 18446744073709551615, 1 to 4194304 are allowed");
  EXPECT_EQ(Refusal("hidden_size", "many"), "folder/config.json: hidden_size is \"many\", an integer is needed");
  EXPECT_EQ(Refusal("hidden_size", nullptr), "folder/config.json: hidden_size is missing");
  EXPECT_EQ(Refusal("num_hidden_layers", 1.5), "folder/config.json: num_hidden_layers is 1.5, an integer is needed");
  EXPECT_THAT(Refusal("architectures", json::array({"LlamaForSequenceClassification"})), HasSubstr("architectures"));
  EXPECT_THAT(Refusal("attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(Refusal("hidden_act", "gelu"), HasSubstr("hidden_act is \"gelu\", only \"silu\" is supported"));
  EXPECT_THAT(Refusal("quantization_config", {{"bits", 4}}), HasSubstr("quantised safetensors of a llama"));
  EXPECT_THAT(Refusal("num_key_value_heads", 3), HasSubstr("heads (4) is not a multiple of kv_heads (3)"));
  EXPECT_THAT(Refusal("head_dim", 15), HasSubstr("head_dim (15) is odd"));
  EXPECT_THAT(Refusal("eos_token_id", 320), HasSubstr("ids below vocab_size (320)"));
  EXPECT_THAT(Refusal("rms_norm_eps", 0), HasSubstr("rms_norm_eps is 0"));
  EXPECT_THAT(Refusal("rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}),
              HasSubstr("config.json: rope_parameters: rope_type \"dynamic\" is not supported"));
  EXPECT_THAT(Refusal("rope_parameters", {{"rope_type", "linear"}}), HasSubstr("factor is missing"));
  EXPECT_THAT(Refusal("rope_parameters", {{"rope_type", "llama3"}, {"factor", 2}}),
              HasSubstr("original_max_position_embeddings is missing"));
  EXPECT_THAT(Refusal("rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}, {"truncate", false}}),
              HasSubstr("truncate is false"));
}

TEST(HuggingFaceFolder, RefusesShapesThatTheConfigContradicts) {
  TempFolder folder;
  json config = TinyConfig();
  config["intermediate_size"] = 177;
  folder.Write("config.json", config.dump());
  folder.Link(TinyPath("llama-mha/model.safetensors"));
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()),
              HasSubstr("gate_proj.weight has shape [176, 64], the configuration asks for [177, 64]"));
  config["intermediate_size"] = 176;
  config["num_hidden_layers"] = 1;
  folder.Write("config.json", config.dump());
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()),
              HasSubstr("is not part of a llama model of 1 layers"));
  config["num_hidden_layers"] = 100;
  folder.Write("config.json", config.dump());
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()), HasSubstr("is missing"));
}

TEST(HuggingFaceFolder, SaysWhichFileIsMissing) {
  TempFolder folder;
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()),
              HasSubstr("/config.json: there is no such file"));
  folder.Write("config.json", TinyConfig().dump());
  EXPECT_THAT(std::string(OpenCheckpoint(folder.path()).status().message()), HasSubstr("/model.safetensors: "));
  EXPECT_EQ(OpenCheckpoint(folder.path() + "/nowhere").status().code(), absl::StatusCode::kNotFound);
}

class IndexedFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
      folder_.Link(TinyPath("llama-gqa") + "/" + file);
    }
    index_ = json::parse(ReadFile(TinyPath("llama-gqa/model.safetensors.index.json")));
  }
  std::string RefusalOfIndex() {
    folder_.Write("model.safetensors.index.json", index_.dump());
    return std::string(OpenCheckpoint(folder_.path()).status().message());
  }

  TempFolder folder_;
  json index_;
};

TEST_F(IndexedFolder, IsRefusedWhereIndexAndFilesDisagree) {
  const json good = index_;
  EXPECT_EQ(RefusalOfIndex(), "");
  index_["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors";
  EXPECT_THAT(RefusalOfIndex(), HasSubstr("tensor model.norm.weight is "));
  index_ = good;
  index_["weight_map"].erase("model.norm.weight");
  EXPECT_THAT(RefusalOfIndex(), HasSubstr("tensor model.norm.weight is in model-00002-of-00002.safetensors but listed "
                                          "nowhere"));
  index_ = good;
  index_["weight_map"]["more"] = "model-00001-of-00002.safetensors";
  EXPECT_THAT(RefusalOfIndex(), HasSubstr("tensor more is not in model-00001-of-00002.safetensors"));
}

TEST_F(IndexedFolder, NeverLeavesTheFolder) {
  for (const char* name : {"../llama-mha/model.safetensors", "/etc/passwd", "", "config.json"}) {
    index_["weight_map"]["model.norm.weight"] = name;
    EXPECT_THAT(RefusalOfIndex(), HasSubstr("something else than the name of a .safetensors file")) << name;
  }
}

}  // namespace
}  // namespace sluice
