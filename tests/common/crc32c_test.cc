#include "common/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Crc32c, EqualsThePublishedVectors) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);  // RFC 3720 B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62A8AB43u);
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
