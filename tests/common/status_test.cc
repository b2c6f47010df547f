#include "common/status.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(x, " is odd"));
  return x / 2;
}

Status Quarter(int x, int* out) {
  SLUICE_ASSIGN_OR_RETURN(const int half, Half(x));
  SLUICE_ASSIGN_OR_RETURN(*out, Half(half));
  return absl::OkStatus();
}

TEST(Status, MacrosReturnTheFirstErrorAndSetOutputsOnlyOnSuccess) {
  int out = -1;
  EXPECT_EQ(Quarter(6, &out).message(), "3 is odd");
  EXPECT_EQ(out, -1);
  EXPECT_TRUE(Quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
}

TEST(Status, ContextKeepsTheCode) {
  const Status s = WithContext(absl::DataLossError("crc differs"), "frame 3");
  EXPECT_EQ(s.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(s.message(), "frame 3: crc differs");
  EXPECT_TRUE(WithContext(absl::OkStatus(), "frame 3").ok());
}

TEST(Status, ContextKeepsWhoseFaultItWas) {
  EXPECT_TRUE(IsAtPeer(WithContext(AtPeer(absl::UnavailableError("lost")), "decode at x")));
  EXPECT_FALSE(IsAtPeer(WithContext(absl::UnavailableError("lost"), "decode at x")));
}

TEST(Status, RetriesAreForPeersThatMaySucceed) {
  EXPECT_TRUE(IsRetriable(absl::UnavailableError("")));
  EXPECT_FALSE(IsRetriable(absl::InvalidArgumentError("")));
  EXPECT_EQ(HttpStatus(absl::StatusCode::kResourceExhausted), 429);
}

}  // namespace
}  // namespace sluice
