#include "model/kv_layout.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Bytes a token over all layers, 16 bits an element.
TEST(KvLayout, BytesOfATokenAreThoseOfPublishedModels) {
  const struct {
    KvLayout layout;
    size_t bytes;
  } cases[] = {{KvLayout::Gqa(32, 32, 128), 524288},  // Llama-2-7B, MHA
               {KvLayout::Gqa(40, 40, 128), 819200},  // Llama-2-13B
               {KvLayout::Gqa(32, 8, 128), 131072},   // Llama-3-8B, GQA
               {KvLayout::Gqa(28, 8, 128), 114688},   // Llama-3.2-3B
               {KvLayout::Gqa(80, 8, 128), 327680},   // Llama-3-70B
               {KvLayout::Gqa(126, 8, 128), 516096},  // Llama-3.1-405B
               {KvLayout::Gqa(36, 8, 64), 73728},     // GPT-OSS-120B
               {KvLayout::Gqa(30, 3, 64), 23040}};    // SmolLM2-135M
  for (const auto& c : cases) {
    EXPECT_EQ(Bytes(c.layout, KvCodec::kBf16, 1), c.bytes);
    EXPECT_EQ(Bytes(c.layout, KvCodec::kF32, 1), 2 * c.bytes);
    EXPECT_EQ(Bytes(c.layout, KvCodec::kBf16, 4096), 4096 * c.bytes);
    EXPECT_EQ(LayerBytes(c.layout, KvCodec::kBf16, 16) * static_cast<size_t>(c.layout.layers), 16 * c.bytes);
  }
}

TEST(KvLayout, AutoIsTheCodecThatItsRowsCanHaveAtLittleCost) {
  EXPECT_EQ(*ChooseStoreCodec("auto", KvLayout::Gqa(30, 3, 64)), KvCodec::kInt8);
  EXPECT_EQ(*ChooseStoreCodec("auto", KvLayout::Gqa(2, 2, 24)), KvCodec::kBf16);
  EXPECT_EQ(*ChooseStoreCodec("auto", KvLayout::Mla(27, 512, 64)), KvCodec::kBf16);
  EXPECT_EQ(*ChooseStoreCodec("fp8", KvLayout::Gqa(30, 3, 64)), KvCodec::kFp8);
  EXPECT_THAT(std::string(ChooseStoreCodec("int8", KvLayout::Gqa(2, 2, 24)).status().message()), HasSubstr("24 + 0"));
  EXPECT_FALSE(ChooseStoreCodec("mla-fp8", KvLayout::Gqa(30, 3, 64)).ok());
}

TEST(KvLayout, ComesFromTheConfig) {
  ModelConfig config;
  config.layers = 30;
  config.kv_heads = 3;
  config.head_dim = 64;
  config.rope.pairing = RopePairing::kInterleaved;
  EXPECT_EQ(KvLayout::Of(config), KvLayout::Gqa(30, 3, 64, RopePairing::kInterleaved));
}

TEST(KvLayout, CodecNamesParseAndOthersAreRefused) {
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16}) EXPECT_EQ(*ParseKvCodec(Name(codec)), codec);
  EXPECT_THAT(std::string(ParseKvCodec("int3").status().message()), HasSubstr("int3"));
}

std::vector<proto::KvLayout> OneFieldDifferent(const proto::KvLayout& base) {
  std::vector<proto::KvLayout> all(8, base);
  all[0].set_layers(31);
  all[1].set_kv_heads(9);
  all[2].set_head_dim(128);
  all[3].set_kind("mla");
  all[4].set_rope_pairing("half");
  all[5].set_latent(512);
  all[6].set_tensor_parallel(2);
  all[7].set_rope_dim(64);
  return all;
}

TEST(KvLayout, HashDiffersWhereAnyFieldDiffers) {
  const proto::KvLayout base = ToProto(KvLayout::Gqa(30, 3, 64, RopePairing::kInterleaved));
  std::set<uint64_t> hashes = {LayoutHash(base)};
  for (const proto::KvLayout& other : OneFieldDifferent(base)) hashes.insert(LayoutHash(other));
  EXPECT_EQ(hashes.size(), 9u);
  EXPECT_EQ(LayoutHash(base), LayoutHash(ToProto(KvLayout::Gqa(30, 3, 64, RopePairing::kInterleaved))));
}

TEST(KvLayout, CompareNamesTheFieldAndBothValues) {
  const proto::KvLayout base = ToProto(KvLayout::Gqa(30, 3, 64, RopePairing::kInterleaved));
  EXPECT_TRUE(Compare(base, base).ok());
  for (const proto::KvLayout& other : OneFieldDifferent(base)) {
    EXPECT_EQ(Compare(base, other).code(), absl::StatusCode::kFailedPrecondition);
  }
  const std::string message(Compare(base, ToProto(KvLayout::Gqa(30, 9, 64, RopePairing::kHalf))).message());
  EXPECT_THAT(message, HasSubstr("kv_heads is 3 here and 9 there"));
  EXPECT_THAT(message, HasSubstr("rope_pairing is interleaved here and half there"));
  EXPECT_THAT(message, Not(HasSubstr("head_dim")));
}

}  // namespace
}  // namespace sluice
