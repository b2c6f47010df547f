#include "decode/policy_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

using ::testing::HasSubstr;
using enum CachePolicyKind;

PolicyLimits Limits(const CachePolicySpec& deployments, std::vector<CachePolicyKind> allowed) {
  return {.deployments = deployments,
          .allowed = std::move(allowed),
          .layout = KvLayout::Gqa(2, 2, 16),
          .context_tokens_max = 8192,
          .kept_bytes_max = 1 << 20};
}

TEST(PolicyChoice, IsTheDeploymentsWhereTheRequestNamesNone) {
  const auto chosen = ChoosePolicy(Limits({.kind = kH2o, .budget_share = 0.2}, {}), std::nullopt, 500, 40);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(ToString(*chosen), "h2o 100 (sinks 0, window 50)");
}

TEST(PolicyChoice, IsTheRequestsWhereItIsAllowedAndNeedsNoMoreRoom) {
  const PolicyLimits limits = Limits({.kind = kH2o, .budget = 100}, {kSinkWindow, kSnapKv});
  const auto choose = [&](const CachePolicySpec& wanted, int64_t max_tokens = 41) {
    return ChoosePolicy(limits, wanted, 500, max_tokens);
  };
  EXPECT_EQ(ToString(*choose({.kind = kSinkWindow, .budget = 100})), "sink-window 4+96");
  // What the deployment does itself a request may name, whatever the list says.
  EXPECT_EQ(ToString(*choose({.kind = kH2o, .budget = 100})), "h2o 100 (sinks 0, window 50)");
  EXPECT_THAT(std::string(choose({.kind = kH2o, .budget = 99}).status().message()), HasSubstr("h2o is none that"));
  EXPECT_THAT(std::string(choose({}).status().message()),
              HasSubstr("full is none that a request may name here (sink-window, snapkv)"));
  EXPECT_THAT(std::string(choose({.kind = kSinkWindow, .budget = 101}).status().message()),
              HasSubstr("needs 102 slots, this deployment's h2o 100 (sinks 0, window 50) 101"));
  // snapkv grows with the answer.
  EXPECT_TRUE(choose({.kind = kSnapKv, .budget = 61}).ok());
  EXPECT_THAT(std::string(choose({.kind = kSnapKv, .budget = 61}, 42).status().message()),
              HasSubstr("needs 102 slots"));
  EXPECT_THAT(std::string(choose({.kind = kSinkWindow}).status().message()), HasSubstr("sinks is 4, not 0 to 3"));
}

TEST(PolicyChoice, CountsOfAnAnswerWhatItsPolicyLetsBeGenerated) {
  PolicyLimits limits = Limits({}, {kSinkWindow, kSnapKv});
  limits.context_tokens_max = 600;
  const auto choose = [&](const CachePolicySpec& wanted) { return ChoosePolicy(limits, wanted, 500, 1 << 24); };
  // Full has 599 slots here, however long the answer was to be.
  EXPECT_TRUE(choose({.kind = kSinkWindow, .budget = 598}).ok());
  EXPECT_TRUE(choose({.kind = kSnapKv, .budget = 500}).ok());
  limits.deployments = {.kind = kSinkWindow, .budget = 300};
  EXPECT_TRUE(choose({.kind = kSnapKv, .budget = 202}).ok());
  EXPECT_THAT(std::string(choose({.kind = kSnapKv, .budget = 203}).status().message()),
              HasSubstr("needs 302 slots, this deployment's sink-window 4+296 301"));
}

TEST(PolicyChoice, KeepsNoMoreTokensThanAMessageCanTellOf) {
  PolicyLimits limits = Limits({.kind = kH2o, .budget = 1000}, {});
  limits.kept_bytes_max = 4 * (500 * 5 + 3 + 18);  // 4 lists of 500, with 3 steps of more than 127 each
  EXPECT_TRUE(ChoosePolicy(limits, std::nullopt, 500, 40).ok());
  EXPECT_THAT(std::string(ChoosePolicy(limits, std::nullopt, 501, 40).status().message()),
              HasSubstr("may take 10104 bytes to tell, a message has at most 10084"));
  limits.deployments = {.kind = kSinkWindow, .budget = 1000};
  EXPECT_TRUE(ChoosePolicy(limits, std::nullopt, 5000, 40).ok());  // which those are follows from the prompt's length
}

}  // namespace
}  // namespace sluice::decode
