#include "common/crc32c.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Crc32c, EqualsThePublishedVectors) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);  // RFC 3720 B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62A8AB43u);
}

// Bit by bit, as the polynomial says.
uint32_t Slowly(const unsigned char* p, size_t n) {
  uint32_t crc = ~0u;
  for (; n > 0; --n, ++p) {
    crc ^= *p;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1u ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, EqualsTheDefinitionAtEveryLengthAndAlignment) {
  std::vector<unsigned char> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i * 31 >> 3);
  for (size_t first = 0; first < 17; ++first) {
    for (size_t n = 0; n < 300; ++n) ASSERT_EQ(Crc32c(&bytes[first], n), Slowly(&bytes[first], n)) << first << " " << n;
    ASSERT_EQ(Crc32c(&bytes[first], 4097), Slowly(&bytes[first], 4097));
  }
}

TEST(Crc32c, ContinuesWhereItStopped) {
  const std::string text = "a frame's header and then its payload";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t head = Crc32c(text.data(), cut);
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, head), Crc32c(text.data(), text.size()));
  }
}

}  // namespace
}  // namespace sluice
