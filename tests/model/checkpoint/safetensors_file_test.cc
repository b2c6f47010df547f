// The safetensors container: what is accepted, and a sentence for everything that is not.
#include "model/checkpoint/safetensors_file.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/checkpoint/gguf_writer.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::string File(std::string header, size_t data_bytes) {
  while (header.size() % 8 != 0) header += ' ';
  std::string bytes;
  AppendString(bytes, header);
  return bytes + std::string(data_bytes, 'x');
}

StatusOr<std::vector<StoredTensor>> Parse(const std::string& bytes) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "x.safetensors");
}

std::string Refusal(const std::string& bytes) { return std::string(Parse(bytes).status().message()); }

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

constexpr char kTwo[] = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},)"
                        R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";

TEST(SafetensorsFile, ReadsTensorsInTheirTypesAndShapes) {
  const std::string bytes = File(kTwo, 28);
  auto tensors = Parse(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].type, DType::kF32);
  EXPECT_EQ((*tensors)[1].type_name, "BF16");
  EXPECT_THAT((*tensors)[1].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ((*tensors)[1].bytes.data() - (*tensors)[0].bytes.data(), 16);
  EXPECT_EQ((*tensors)[1].bytes.size(), 12u);
}

TEST(SafetensorsFile, IsRefusedWhereverItIsTruncated) {
  const std::string bytes = File(kTwo, 28);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(Refusal(bytes.substr(0, size)), HasSubstr("x.safetensors: ")) << "cut to " << size;
  }
}

TEST(SafetensorsFile, NeverReadsOutsideItsBytesWhateverIsFlipped) {
  const std::string good = File(kTwo, 28);
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<char> bytes(good.begin(), good.end());
    for (int flips = 1 + round % 3; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    Parse(std::string(bytes.begin(), bytes.end())).IgnoreError();
  }
}

TEST(SafetensorsFile, RefusesRangesThatDoNotFit) {
  EXPECT_THAT(Refusal(File(Entry("F32", "[4]", "[0,20]"), 16)), HasSubstr("is outside the 16 bytes of data"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[4]", "[16,0]"), 16)), HasSubstr("is outside the 16 bytes of data"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[5]", "[0,16]"), 16)), HasSubstr("spans 16 bytes, shape [5] of F32 needs 5"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[4]", "[0,16]"), 24)), HasSubstr("take 16 bytes but the data section has 24"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[1]", "[2,6]"), 6)), HasSubstr("not a multiple of the 4 bytes of F32"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[4]", "[0,18446744073709551615]"), 16)), HasSubstr("data_offsets"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[4294967296,4294967296]", "[0,16]"), 16)), HasSubstr("too large"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[0]", "[0,0]"), 0)), HasSubstr("is empty or too large"));
}

TEST(SafetensorsFile, RefusesTensorsThatOverlapOrStandTwice) {
  EXPECT_THAT(Refusal(File(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                           8)),
              HasSubstr("tensors a and b overlap"));
  EXPECT_THAT(Refusal(File(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                           8)),
              HasSubstr("a stands there twice"));
}

TEST(SafetensorsFile, RefusesHeadersOfAnotherForm) {
  EXPECT_THAT(Refusal(File("[]", 0)), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal(File("{", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refusal(File(std::string(10000, '['), 0)), HasSubstr("nests 10000 levels deep"));
  EXPECT_THAT(Refusal(File(R"({"a":3})", 0)), HasSubstr("tensor a: the entry is not an object"));
  EXPECT_THAT(Refusal(File(Entry("F4", "[4]", "[0,16]"), 16)), HasSubstr("tensor a: dtype \"F4\" is unknown"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[-4]", "[0,16]"), 16)), HasSubstr("shape holds something else"));
  EXPECT_THAT(Refusal(File(Entry("F32", "[4]", "[0]"), 16)), HasSubstr("needs a begin and an end"));
  EXPECT_THAT(Refusal(File(Entry("F32", "4", "[0,16]"), 16)), HasSubstr("shape is not an array"));
  std::string huge;
  AppendNumber(huge, UINT64_MAX);
  EXPECT_THAT(Refusal(huge), HasSubstr("the header at byte 0 is 18446744073709551615 bytes long"));
}

}  // namespace
}  // namespace sluice
