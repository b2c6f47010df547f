#include "kernels/isa.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

class IsaTest : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("SLUICE_CPU");
    ASSERT_TRUE(SetIsaFromEnvironment().ok());
  }
};

TEST_F(IsaTest, PortableRunsEverywhereAndTheBestIsLast) {
  EXPECT_EQ(SupportedIsas().front(), Isa::kPortable);
  EXPECT_EQ(ActiveIsa(), SupportedIsas().back());
}

TEST_F(IsaTest, TheEnvironmentForcesOne) {
  for (const Isa isa : SupportedIsas()) {
    setenv("SLUICE_CPU", std::string(Name(isa)).c_str(), 1);
    ASSERT_TRUE(SetIsaFromEnvironment().ok());
    EXPECT_EQ(ActiveIsa(), isa);
  }
}

TEST_F(IsaTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  setenv("SLUICE_CPU", "sse9", 1);
  const Status status = SetIsaFromEnvironment();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.ToString().find("sse9"), std::string::npos);
  EXPECT_NE(status.ToString().find("portable"), std::string::npos);
}

TEST_F(IsaTest, WhatTheMachineLacksIsRefused) {
  if (SupportedIsas().back() == Isa::kAvx512) GTEST_SKIP() << "this machine has everything";
  EXPECT_EQ(SetIsa(Isa::kAvx512).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice
