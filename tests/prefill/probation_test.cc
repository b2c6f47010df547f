#include "prefill/probation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
const PeerKey kPeer = {"d:1", 7};

TEST(Probation, WhoHasNotFailedMayBeTried) { EXPECT_TRUE(Probation(4).MayTry(kPeer, kNow).ok()); }

TEST(Probation, TheWaitDoublesWithEachFailureAndIsBounded) {
  Probation probation(4);
  absl::Time now = kNow;
  absl::Duration wait = Probation::kFirst;
  for (int i = 0; i < 12; ++i) {
    probation.OnFailed(kPeer, now, absl::UnavailableError("away"));
    EXPECT_FALSE(probation.MayTry(kPeer, now + wait - absl::Milliseconds(1)).ok()) << i;
    EXPECT_TRUE(probation.MayTry(kPeer, now + wait).ok()) << i;
    now += wait;
    wait = std::min(wait * 2, Probation::kLongest);
  }
}

TEST(Probation, TheReasonIsThatOfTheLastFailure) {
  Probation probation(4);
  probation.OnFailed(kPeer, kNow, absl::FailedPreconditionError("other model"));
  const Status status = probation.MayTry(kPeer, kNow);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("other model"));
}

TEST(Probation, SuccessAndAnotherIncarnationHaveACleanRecord) {
  Probation probation(4);
  for (int i = 0; i < 5; ++i) probation.OnFailed(kPeer, kNow, absl::UnavailableError("away"));
  EXPECT_TRUE(probation.MayTry({"d:1", 8}, kNow).ok());
  probation.OnReached(kPeer);
  EXPECT_TRUE(probation.MayTry(kPeer, kNow).ok());
  probation.OnFailed(kPeer, kNow, absl::UnavailableError("away"));
  EXPECT_TRUE(probation.MayTry(kPeer, kNow + Probation::kFirst).ok());
}

TEST(Probation, RecordsAreBounded) {
  Probation probation(2);
  for (uint64_t epoch = 0; epoch < 5; ++epoch)
    probation.OnFailed({"d:1", epoch}, kNow + absl::Milliseconds(static_cast<int64_t>(epoch)),
                       absl::UnavailableError(""));
  int remembered = 0;
  for (uint64_t epoch = 0; epoch < 5; ++epoch) remembered += !probation.MayTry({"d:1", epoch}, kNow).ok();
  EXPECT_EQ(remembered, 2);
}

}  // namespace
}  // namespace sluice::prefill
