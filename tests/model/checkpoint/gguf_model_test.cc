// What a GGUF file says about a llama model: sizes, rope, tokenizer; and what is refused rather than ignored.
#include "model/checkpoint/gguf_model.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/checkpoint/small_gguf.h"
#include "tests/model/checkpoint/temp_file.h"

namespace sluice {
namespace {

using testing::HasSubstr;

StatusOr<std::unique_ptr<Checkpoint>> Open(const GgufWriter& writer) {
  TempFolder folder;
  return OpenCheckpoint(folder.Write("small.gguf", writer.Bytes()));
}

std::string Refusal(const GgufWriter& writer) { return std::string(Open(writer).status().message()); }

// A small file with something added to its metadata.
GgufWriter With(const std::function<void(GgufWriter&)>& add) {
  GgufWriter writer = SmallGguf();
  add(writer);
  return writer;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(GgufModel, OpensWithEveryTypeOfWeight) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    GgufWriter writer;
    AddSmallSizes(writer);
    AddSmallTensors(writer, type);
    auto checkpoint = Open(writer);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->Tensor(Weight::kUp, 1)->type, type);
    EXPECT_EQ((*checkpoint)->tokenizer().unsupported, "the file has no tokenizer");
  }
}

TEST(GgufModel, ReadsSizesWithTheirDefaults) {
  auto checkpoint = Open(SmallGguf());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 12);
  EXPECT_EQ(config.rope.pairing, RopePairing::kInterleaved);
  EXPECT_DOUBLE_EQ(config.rope.theta, 10000);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_THAT(config.eos_ids, testing::ElementsAre(1));
}

TEST(GgufModel, TiesTheHeadWhereTheFileHasNone) {
  GgufWriter writer = SmallGguf();
  std::erase_if(writer.tensors, [](const auto& tensor) { return tensor.name == "output.weight"; });
  auto checkpoint = Open(writer);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->config().tied_embeddings);
}

TEST(GgufModel, ReadsLinearAndYarnRopeScaling) {
  auto linear = Open(With([](auto& w) {
    w.String("llama.rope.scaling.type", "linear");
    w.Float32("llama.rope.scaling.factor", 4);
  }));
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ((*linear)->config().rope.scaling, RopeScaling::kLinear);
  EXPECT_DOUBLE_EQ((*linear)->config().rope.factor, 4);
  auto old_linear = Open(With([](auto& w) { w.Float32("llama.rope.scale_linear", 2); }));
  ASSERT_TRUE(old_linear.ok()) << old_linear.status();
  EXPECT_EQ((*old_linear)->config().rope.scaling, RopeScaling::kLinear);
  EXPECT_DOUBLE_EQ((*old_linear)->config().rope.factor, 2);
  auto yarn = Open(With([](auto& w) {
    w.String("llama.rope.scaling.type", "yarn");
    w.Float32("llama.rope.scaling.factor", 8);
    w.Uint32("llama.rope.scaling.original_context_length", 16);
    w.Float32("llama.rope.scaling.yarn_beta_fast", 16);
    w.Float32("llama.rope.scaling.attn_factor", 0.5);
  }));
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  const RopeConfig& rope = (*yarn)->config().rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.original_context_tokens, 16);
  EXPECT_DOUBLE_EQ(rope.beta_fast, 16);
  EXPECT_DOUBLE_EQ(rope.beta_slow, 1);
  ASSERT_TRUE(rope.attention_factor.has_value());
  EXPECT_NEAR(*rope.attention_factor, 0.5 * (0.1 * std::log(8.0) + 1), 1e-12);
}

TEST(GgufModel, ReadsRopeFrequencyFactors) {
  GgufWriter writer = SmallGguf();
  std::string factors;
  for (int i = 0; i < 8; ++i) AppendNumber(factors, 1.0f + static_cast<float>(i));
  writer.tensors.push_back({"rope_freqs.weight", {8}, 0, factors});
  auto checkpoint = Open(writer);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->config().rope.frequency_factors, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  writer.tensors.back().shape = {2, 4};
  EXPECT_THAT(Refusal(writer), HasSubstr("tensor rope_freqs.weight is F32 [2, 4], F32 [8] is needed"));
}

struct RefusalCase {
  const char* name;
  std::function<void(GgufWriter&)> change;
  const char* message;
};

TEST(GgufModel, RefusesWhatWouldChangeTheResult) {
  const RefusalCase cases[] = {
      {"longrope", [](auto& w) { w.String("llama.rope.scaling.type", "longrope"); },
       "llama.rope.scaling.type \"longrope\" is not supported"},
      {"experts", [](auto& w) { w.Uint32("llama.expert_count", 8); }, "llama.expert_count is 8"},
      {"partial rotation", [](auto& w) { w.Uint32("llama.rope.dimension_count", 8); },
       "llama.rope.dimension_count (8) differs from the head's 16"},
      {"value length", [](auto& w) { w.Uint32("llama.attention.value_length", 8); },
       "llama.attention.value_length (8) differs from the key length (16)"},
      {"vocabulary", [](auto& w) { w.Uint32("llama.vocab_size", 13); },
       "llama.vocab_size is 13 but tensor token_embd.weight has 12 rows"},
      {"key length", [](auto& w) { w.Uint32("llama.attention.key_length", 32); },
       "tensor blk.0.attn_q.weight has shape [64, 64], the configuration asks for [128, 64]"},
      {"bias", [](auto& w) { w.tensors.push_back(ZeroTensor("blk.0.attn_q.bias", {64})); },
       "tensor blk.0.attn_q.bias is not part of a llama model"},
      {"third layer", [](auto& w) { w.tensors.push_back(ZeroTensor("blk.2.attn_norm.weight", {64})); },
       "tensor blk.2.attn_norm.weight is not part of a llama model of 2 layers"},
      {"eos", [](auto& w) { w.Uint32("tokenizer.ggml.eot_token_id", 12); },
       "tokenizer.ggml.eot_token_id is 12, 0 to 11 are allowed"},
  };
  for (const RefusalCase& refused : cases) {
    EXPECT_THAT(Refusal(With(refused.change)), HasSubstr(refused.message)) << refused.name;
  }
}

TEST(GgufModel, NamesAMissingKeyAndAMissingTensor) {
  GgufWriter writer = SmallGguf();
  std::erase_if(writer.tensors, [](const auto& tensor) { return tensor.name == "blk.1.ffn_up.weight"; });
  EXPECT_THAT(Refusal(writer), HasSubstr("small.gguf: tensor blk.1.ffn_up.weight is missing"));
  GgufWriter empty;
  EXPECT_THAT(Refusal(empty), HasSubstr("small.gguf: metadata general.architecture is missing"));
  empty.String("general.architecture", "gemma3");
  EXPECT_THAT(Refusal(empty), HasSubstr("general.architecture \"gemma3\" is not supported, only \"llama\" is"));
  GgufWriter sizes;
  sizes.String("general.architecture", "llama");
  EXPECT_THAT(Refusal(sizes), HasSubstr("metadata llama.block_count is missing"));
}

TEST(GgufModel, NamesBothShapesWhereOneDiffers) {
  GgufWriter writer = SmallGguf();
  for (auto& tensor : writer.tensors) {
    if (tensor.name == "blk.0.attn_k.weight") tensor = ZeroTensor(tensor.name, {64, 32}, DType::kQ8_0);
  }
  EXPECT_THAT(Refusal(writer),
              HasSubstr("tensor blk.0.attn_k.weight has shape [64, 32], the configuration asks for [32, 64]"));
}

TEST(GgufModel, ReadsItsTokenizer) {
  auto checkpoint = Open(SmallGguf());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TokenizerData& data = (*checkpoint)->tokenizer();
  EXPECT_EQ(data.kind, TokenizerKind::kByteLevelBpe);
  EXPECT_EQ(data.tokens[6], "abc");
  EXPECT_EQ(data.merges[1], std::make_pair(std::string("ab"), std::string("c")));
  ASSERT_EQ(data.added.size(), 3u);
  EXPECT_TRUE(data.added[0].special);
  EXPECT_FALSE(data.added[2].special);
  EXPECT_EQ(data.added[2].text, "<x>");
  EXPECT_EQ(data.bos_text, "<s>");
  EXPECT_EQ(data.eos_id, 1);
  EXPECT_EQ(data.chat_template, "{{ messages }}");
  EXPECT_FALSE(data.add_bos);
}

TEST(GgufModel, KnowsHowLlama3SplitsText) {
  GgufWriter writer;
  AddSmallSizes(writer);
  AddSmallTokenizer(writer, "llama-bpe");
  AddSmallTensors(writer);
  auto checkpoint = Open(writer);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->tokenizer().ignore_merges);
  EXPECT_TRUE((*checkpoint)->tokenizer().add_bos);
  EXPECT_THAT((*checkpoint)->tokenizer().split_patterns, testing::ElementsAre(HasSubstr("\\p{N}{1,3}")));
}

TEST(GgufModel, OpensWithoutATokenizerThatItDoesNotKnowAndSaysWhy) {
  GgufWriter writer;
  AddSmallSizes(writer);
  AddSmallTokenizer(writer, "tekken");
  AddSmallTensors(writer);
  auto checkpoint = Open(writer);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tokenizer().kind, TokenizerKind::kNone);
  EXPECT_EQ((*checkpoint)->tokenizer().unsupported, "tokenizer.ggml.pre \"tekken\" is not known");
  GgufWriter pieces;
  AddSmallSizes(pieces);
  pieces.String("tokenizer.ggml.model", "llama");
  pieces.Strings("tokenizer.ggml.tokens", std::vector<std::string>(12, "x"));
  AddSmallTensors(pieces);
  checkpoint = Open(pieces);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->tokenizer().unsupported, HasSubstr("tokenizer.ggml.model \"llama\" is not supported"));
}

TEST(GgufModel, RefusesAVocabularyOfAnotherSize) {
  GgufWriter writer;
  AddSmallSizes(writer);
  writer.String("tokenizer.ggml.model", "gpt2");
  writer.Strings("tokenizer.ggml.tokens", {"a", "b"});
  AddSmallTensors(writer);
  EXPECT_THAT(Refusal(writer), HasSubstr("tokenizer.ggml.tokens has 2 entries but the embedding has 12 rows"));
}

TEST(GgufModel, ConvertedByTheGgufPackageHoldsTheHuggingFaceModel) {
  for (const char* name : {"llama-gqa", "llama-rope-llama3"}) {
    auto gguf = OpenCheckpoint(absl::StrCat(SLUICE_TEST_DATA, "/gguf/", name, "-bf16.gguf"));
    auto folder = OpenCheckpoint(absl::StrCat(SLUICE_TEST_DATA, "/tiny/", name));
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    ASSERT_TRUE(folder.ok()) << folder.status();
    const ModelConfig& config = (*folder)->config();
    const auto half = static_cast<size_t>(config.head_dim / 2);
    const ConstMatrixView interleaved = *(*gguf)->Tensor(Weight::kKey, 1);
    const ConstMatrixView halves = *(*folder)->Tensor(Weight::kKey, 1);
    // Row 2 i + j of a head in the GGUF is row j d/2 + i of the folder.
    for (size_t row = 0; row < static_cast<size_t>(interleaved.rows); ++row) {
      const size_t head = row / (2 * half) * 2 * half;
      const size_t in_head = row - head;
      const void* other = halves.row(static_cast<int64_t>(head + in_head % 2 * half + in_head / 2));
      EXPECT_EQ(std::memcmp(interleaved.row(static_cast<int64_t>(row)), other, halves.stride_bytes), 0) << row;
    }
    const ConstMatrixView up = *(*gguf)->Tensor(Weight::kUp, 0);
    EXPECT_EQ(std::memcmp(up.data, (*folder)->Tensor(Weight::kUp, 0)->data, up.bytes()), 0);
  }
}

TEST(GgufModel, IsTheSameInVersionTwoAndThree) {
  std::string bytes = ReadFile(SLUICE_TEST_DATA "/gguf/llama-gqa-bf16.gguf");
  TempFolder folder;
  auto third = OpenCheckpoint(folder.Write("3.gguf", bytes));
  ASSERT_EQ(bytes[4], 3);
  bytes[4] = 2;
  auto second = OpenCheckpoint(folder.Write("2.gguf", bytes));
  ASSERT_TRUE(third.ok()) << third.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->model_hash(), (*third)->model_hash());
}

TEST(GgufModel, HashesDifferWithWeightsAndConfiguration) {
  const std::string hash = (*Open(SmallGguf()))->model_hash();
  EXPECT_EQ((*Open(SmallGguf()))->model_hash(), hash);
  GgufWriter weights = SmallGguf();
  weights.tensors[5].bytes[100] = 1;
  EXPECT_NE((*Open(weights))->model_hash(), hash);
  EXPECT_NE((*Open(With([](auto& w) { w.Float32("llama.rope.freq_base", 5000); })))->model_hash(), hash);
}

}  // namespace
}  // namespace sluice
