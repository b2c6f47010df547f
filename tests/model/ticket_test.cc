#include "model/ticket.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const char kKey[] = "0123456789abcdef";

ClusterKey Key(const std::string& bytes = kKey) { return *ClusterKey::Load(bytes, ""); }

proto::Ticket SomeTicket() {
  proto::Ticket ticket;
  ticket.set_request_id(7);
  ticket.set_reservation_id(8);
  ticket.set_decode_epoch(9);
  ticket.set_generation(1);
  ticket.set_kv_address("127.0.0.1:4000");
  ticket.set_prompt_tokens(100);
  return ticket;
}

class KeyFile {
 public:
  explicit KeyFile(const std::string& content)
      : path_(::testing::TempDir() + "sluice_key_" + std::to_string(getpid())) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~KeyFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Ticket, OpensToWhatWasSealed) {
  const auto opened = Open(Seal(SomeTicket(), Key()), Key());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->SerializeAsString(), SomeTicket().SerializeAsString());
}

// The expected value comes from another implementation (Python's hmac over the bytes that the proto encoding fixes).
TEST(Ticket, SealIsHmacSha256OverTheSerialisedTicket) {
  proto::TicketEnvelope envelope;
  ASSERT_TRUE(envelope.ParseFromString(Seal(SomeTicket(), Key())));
  std::string hex;
  for (const unsigned char c : envelope.mac()) absl::StrAppend(&hex, absl::Hex(c, absl::kZeroPad2));
  EXPECT_EQ(hex, "56e2b6baf1ecf7c3b618660e2ae1968dcf872469a19ddd3bcc8a4e01758d38d2");
}

TEST(Ticket, EveryChangedBitIsUnauthenticated) {
  std::string envelope = Seal(SomeTicket(), Key());
  for (size_t bit = 0; bit < envelope.size() * 8; ++bit) {
    envelope[bit / 8] = static_cast<char>(envelope[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(Open(envelope, Key()).status().code(), absl::StatusCode::kUnauthenticated) << "bit " << bit;
    envelope[bit / 8] = static_cast<char>(envelope[bit / 8] ^ (1 << (bit % 8)));
  }
}

TEST(Ticket, AnotherKeysSealIsUnauthenticated) {
  EXPECT_EQ(Open(Seal(SomeTicket(), Key("fedcba9876543210")), Key()).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST(Ticket, TruncatedOversizedAndEmptyEnvelopesAreUnauthenticated) {
  const std::string envelope = Seal(SomeTicket(), Key());
  for (size_t n = 0; n < envelope.size(); ++n)
    EXPECT_EQ(Open(envelope.substr(0, n), Key()).status().code(), absl::StatusCode::kUnauthenticated) << n;
  EXPECT_EQ(Open(std::string(kTicketEnvelopeBytesMax + 1, 'x'), Key()).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST(ClusterKey, ComesFromTheArgumentTheFileOrTheEnvironmentInThisOrder) {
  ASSERT_EQ(setenv("SLUICE_CLUSTER_KEY", "from the environment", 1), 0);
  const KeyFile file("  from the file, 1\n");
  EXPECT_EQ(ClusterKey::Load("from the argument", "")->bytes(), "from the argument");
  EXPECT_EQ(ClusterKey::Load("", file.path())->bytes(), "from the file, 1");
  EXPECT_EQ(ClusterKey::Load("", "")->bytes(), "from the environment");
  ASSERT_EQ(unsetenv("SLUICE_CLUSTER_KEY"), 0);
  EXPECT_EQ(ClusterKey::Load("", "").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ClusterKey, UnusableSourcesAreRefusedWithoutShowingTheKey) {
  const Status both = ClusterKey::Load("0123456789abcdef", "/tmp/x").status();
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  const Status brief = ClusterKey::Load("secret", "").status();
  EXPECT_EQ(brief.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(brief.message()), HasSubstr("6 bytes, expected 16 to 1024"));
  EXPECT_THAT(std::string(brief.message()), Not(HasSubstr("secret")));
  EXPECT_EQ(ClusterKey::Load("", "/no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ClusterKey::Load("", "/").status().code(), absl::StatusCode::kNotFound);
  const KeyFile endless(std::string(5000, 'k'));
  EXPECT_EQ(ClusterKey::Load("", endless.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClusterKey, GeneratedOnesDifferAndCanBeLoadedAgain) {
  const ClusterKey a = ClusterKey::Generate();
  EXPECT_EQ(a.bytes().size(), 64u);
  EXPECT_NE(a.bytes(), ClusterKey::Generate().bytes());
  EXPECT_TRUE(ClusterKey::Load(a.bytes(), "").ok());
}

}  // namespace
}  // namespace sluice
