// The GGUF container: what is accepted, and a sentence for everything that is not.
#include "model/checkpoint/gguf_file.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/gguf_model.h"
#include "tests/model/checkpoint/small_gguf.h"

namespace sluice {
namespace {

using testing::HasSubstr;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

StatusOr<GgufFile> Parse(const std::string& bytes) { return GgufFile::Parse(AsBytes(bytes), "x.gguf"); }

std::string Refusal(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  return std::string(Parse(bytes).status().message());
}

class GgufVersions : public testing::TestWithParam<uint32_t> {};

TEST_P(GgufVersions, ReadBackWhatWasWritten) {
  GgufWriter writer = SmallGguf();
  writer.version = GetParam();
  const std::string bytes = writer.Bytes();
  auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version(), GetParam());
  EXPECT_EQ(*file->String("general.name"), "small");
  EXPECT_EQ(*file->Int("llama.block_count", 0, 10), 2);
  EXPECT_FLOAT_EQ(*file->Float("llama.attention.layer_norm_rms_epsilon"), 1e-5f);
  EXPECT_THAT(*file->Strings("tokenizer.ggml.merges"), testing::ElementsAre("a b", "ab c"));
  const StoredTensor* down = file->FindTensor("blk.1.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_THAT(down->shape, testing::ElementsAre(64, 96));
  EXPECT_EQ(down->type, DType::kQ8_0);
  EXPECT_EQ(down->bytes.size(), 64u * 3 * 34);
}

INSTANTIATE_TEST_SUITE_P(TwoAndThree, GgufVersions, testing::Values(2, 3));

TEST(GgufFile, RefusesOtherVersionsAndBigEndianFiles) {
  GgufWriter writer = SmallGguf();
  for (const uint32_t version : {0u, 1u, 4u}) {
    writer.version = version;
    EXPECT_THAT(Refusal(writer), HasSubstr(absl::StrCat("x.gguf: GGUF version ", version)));
  }
  writer.version = 0x03000000;
  EXPECT_THAT(Refusal(writer), HasSubstr("big-endian"));
  EXPECT_THAT(std::string(Parse("GGML....").status().message()), HasSubstr("does not begin with"));
}

TEST(GgufFile, IsRefusedWhereverItIsTruncated) {
  const std::string bytes = SmallGguf().Bytes();
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); size += size < 4000 ? 1 : 97) {
    const std::string part = bytes.substr(0, size);
    const Status status = Parse(part).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "cut to " << size << " bytes";
    EXPECT_THAT(std::string(status.message()), HasSubstr("x.gguf: ")) << size;
  }
}

TEST(GgufFile, NeverReadsOutsideItsBytesWhateverIsFlipped) {
  const std::string good = SmallGguf().Bytes();
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (int flips = 1 + round % 3; flips > 0; --flips) {
      const size_t at = random() % 3000;
      bytes[at] = static_cast<char>(round % 2 == 0 ? 0xFF : random());
    }
    // An own allocation of the exact size, so that a sanitizer sees a read beyond it.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    auto file = GgufFile::Parse({reinterpret_cast<const std::byte*>(exact.data()), exact.size()}, "x");
    if (!file.ok()) continue;
    auto config = ReadGgufConfig(*file);
    if (config.ok()) ReadGgufTokenizer(*file, *config).IgnoreError();
  }
}

TEST(GgufFile, RefusesCountsThatTheFileCannotHold) {
  std::string bytes = SmallGguf().Bytes();
  for (const size_t at : {8, 16}) {
    std::string wrong = bytes;
    std::memset(wrong.data() + at, 0xFF, 8);
    EXPECT_THAT(std::string(Parse(wrong).status().message()), HasSubstr("is above the limit of 65536"));
  }
  GgufWriter writer;
  writer.Raw("strings", GgufType::kArray, GgufWriter::ArrayHead(GgufType::kString, uint64_t{1} << 62));
  EXPECT_THAT(Refusal(writer), HasSubstr("metadata strings: truncated"));
  GgufWriter numbers;
  numbers.Raw("numbers", GgufType::kArray, GgufWriter::ArrayHead(GgufType::kUint64, uint64_t{1} << 61));
  EXPECT_THAT(Refusal(numbers), HasSubstr("metadata numbers: truncated"));
}

TEST(GgufFile, RefusesDeeplyNestedArraysAndUnknownTypes) {
  std::string nested;
  for (int depth = 0; depth < 100; ++depth) nested += GgufWriter::ArrayHead(GgufType::kArray, 1);
  GgufWriter writer;
  writer.Raw("nested", GgufType::kArray, nested);
  EXPECT_THAT(Refusal(writer), HasSubstr("metadata nested: arrays nest deeper than 4"));
  GgufWriter unknown;
  unknown.Raw("odd", static_cast<GgufType>(13), "");
  EXPECT_THAT(Refusal(unknown), HasSubstr("metadata odd: value type 13 is unknown"));
}

TEST(GgufFile, AcceptsArraysOfArrays) {
  std::string nested = GgufWriter::ArrayHead(GgufType::kArray, 2);
  for (int i = 0; i < 2; ++i) nested += GgufWriter::ArrayHead(GgufType::kUint8, 3) + "abc";
  GgufWriter writer;
  writer.Raw("nested", GgufType::kArray, nested);
  writer.Uint32("after", 7);
  const std::string bytes = writer.Bytes();
  auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->Int("after", 0, 10), 7);
}

TEST(GgufFile, RefusesAKeyOrATensorThatStandsTwice) {
  GgufWriter writer = SmallGguf();
  writer.Uint32("llama.block_count", 2);
  EXPECT_THAT(Refusal(writer), HasSubstr("metadata llama.block_count: the key stands in the file twice"));
  GgufWriter tensors = SmallGguf();
  tensors.tensors.push_back(tensors.tensors.front());
  EXPECT_THAT(Refusal(tensors), HasSubstr("tensor token_embd.weight stands in the file twice"));
}

TEST(GgufFile, NamesATypeThatItDoesNotSupport) {
  GgufWriter writer = SmallGguf();
  writer.tensors[0].type = 6;
  EXPECT_THAT(Refusal(writer), HasSubstr("tensor token_embd.weight: type Q5_0 (6) is not supported"));
  writer.tensors[0].type = 99;
  EXPECT_THAT(Refusal(writer), HasSubstr("tensor token_embd.weight: type 99 is unknown"));
}

TEST(GgufFile, RefusesShapesThatOverflowOrBreakBlocks) {
  const auto refusal = [](std::vector<int64_t> shape) {
    GgufWriter writer = SmallGguf();
    writer.tensors[0].shape = std::move(shape);
    return Refusal(writer);
  };
  EXPECT_THAT(refusal({int64_t{1} << 40, int64_t{1} << 40}), HasSubstr("is empty or too large"));
  EXPECT_THAT(refusal({-1, 64}), HasSubstr("is empty or too large"));
  EXPECT_THAT(refusal({0, 64}), HasSubstr("is empty or too large"));
  EXPECT_THAT(refusal({12, 65}), HasSubstr("rows of 65 elements are not whole Q8_0 blocks of 32"));
  EXPECT_THAT(refusal({1, 1, 1, 12, 64}), HasSubstr("5 dimensions, 1 to 4 are supported"));
  EXPECT_THAT(refusal({int64_t{1} << 50, 64}), HasSubstr("truncated"));
}

TEST(GgufFile, RefusesOffsetsThatOverlapAreMisalignedOrOutside) {
  const auto refusal = [](int64_t offset) {
    GgufWriter writer = SmallGguf();
    writer.tensors[3].offset = offset;
    return Refusal(writer);
  };
  EXPECT_THAT(refusal(0), HasSubstr("overlap"));
  EXPECT_THAT(refusal(33), HasSubstr("offset 33 is not a multiple of the alignment 32"));
  EXPECT_THAT(refusal(int64_t{1} << 40), HasSubstr("truncated"));
  EXPECT_THAT(refusal(INT64_MAX - 31), HasSubstr("truncated"));
}

TEST(GgufFile, KnowsTheSizeOfEveryType) {
  for (int t = 0; t < kDTypeCount; ++t) {
    const DType type = static_cast<DType>(t);
    if (type == DType::kF8E4M3) continue;  // not one of GGUF's
    GgufWriter writer;
    writer.tensors = {ZeroTensor("a", {3, 512}, type)};
    std::string bytes = writer.Bytes();
    auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tensors()[0].type, type);
    EXPECT_EQ(file->tensors()[0].bytes.size(), 3 * RowBytes(type, 512));
    bytes.pop_back();
    EXPECT_FALSE(Parse(bytes).ok()) << Traits(type).name;
  }
}

TEST(GgufFile, HonoursItsOwnAlignment) {
  GgufWriter writer;
  writer.alignment = 256;
  writer.Uint32("general.alignment", 256);
  writer.tensors = {ZeroTensor("a", {8}), ZeroTensor("b", {8})};
  const std::string bytes = writer.Bytes();
  auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->FindTensor("b")->bytes.data() - file->FindTensor("a")->bytes.data(), 256);
  for (const uint32_t alignment : {0u, 4u, 48u, 0x80000000u}) {
    GgufWriter wrong;
    wrong.Uint32("general.alignment", alignment);
    EXPECT_THAT(Refusal(wrong), HasSubstr("general.alignment")) << alignment;
  }
}

TEST(GgufFile, NamesKeyTypeAndValueOfWhatItCannotUse) {
  GgufWriter writer = SmallGguf();
  writer.Raw("bool", GgufType::kBool, std::string(1, '\2'));
  writer.Raw("huge", GgufType::kUint64, std::string(8, '\xFF'));
  writer.Float32("nan", std::nanf(""));
  const std::string bytes = writer.Bytes();
  auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(file->Int("general.name", 0, 1)),
            "x.gguf: metadata general.name is of type string, an integer is needed");
  EXPECT_EQ(message(file->Int("llama.block_count", 3, 9)),
            "x.gguf: metadata llama.block_count is 2, 3 to 9 are allowed");
  EXPECT_THAT(message(file->Ints("tokenizer.ggml.tokens")), HasSubstr("is of type array of string"));
  EXPECT_THAT(message(file->Strings("tokenizer.ggml.token_type")), HasSubstr("an array of strings is needed"));
  EXPECT_THAT(message(file->Bool("bool")), HasSubstr("is a bool of value 2"));
  EXPECT_THAT(message(file->Int("huge", 0, INT64_MAX)), HasSubstr("huge"));
  EXPECT_THAT(message(file->Float("nan")), HasSubstr("a finite number is needed"));
  EXPECT_EQ(file->String("absent").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice
