#include "transport/fault_policy.h"

#include "gmock/gmock.h"

namespace sluice {

namespace {

using testing::HasSubstr;

std::vector<bool> Strikes(const FaultPolicy& policy, FaultKind kind, int messages) {
  FaultDice dice(policy);
  std::vector<bool> strikes;
  for (int i = 0; i < messages; ++i) strikes.push_back(dice.Throw("header", 100).has(kind));
  return strikes;
}

TEST(FaultPolicy, ATextNamesKindProbabilityMessageAndDuration) {
  const StatusOr<FaultPolicy> policy = FaultPolicy::Parse("seed=7,drop=0.25,stall@12:2s,reorder=1@3:5ms,kill@30");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->seed, 7u);
  ASSERT_EQ(policy->rules.size(), 4u);
  EXPECT_EQ(policy->rules[0].kind, FaultKind::kDrop);
  EXPECT_EQ(policy->rules[0].probability, 0.25);
  EXPECT_EQ(policy->rules[0].at_message, std::nullopt);
  EXPECT_EQ(policy->rules[1].kind, FaultKind::kStall);
  EXPECT_EQ(policy->rules[1].at_message, 12u);
  EXPECT_EQ(policy->rules[1].duration, absl::Seconds(2));
  EXPECT_EQ(policy->rules[2].at_message, 3u);
  EXPECT_EQ(policy->rules[2].duration, absl::Milliseconds(5));
  EXPECT_EQ(policy->rules[3].kind, FaultKind::kKill);
}

TEST(FaultPolicy, EveryKindHasANameThatIsParsed) {
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    const StatusOr<FaultPolicy> policy = FaultPolicy::Parse(std::string(kFaultNames[kind]) + "@0");
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(static_cast<size_t>(policy->rules[0].kind), kind);
  }
}

TEST(FaultPolicy, AWrongTextIsAnErrorThatNamesThePart) {
  const std::pair<const char*, const char*> wrong[] = {
      {"drop=0.1,flood=1", "flood=1"},
      {"drop", "neither"},
      {"drop=2", "[0, 1]"},
      {"drop=nan", "[0, 1]"},
      {"drop=x", "drop=x"},
      {"drop@x", "drop@x"},
      {"seed=x", "seed=x"},
      {"stall@1:fast", "stall@1:fast"},
      {"delay@1:-1s", "duration of delay"},
      {"=1", "=1"},
  };
  for (const auto& [text, words] : wrong) {
    const Status status = FaultPolicy::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words)) << text;
  }
}

TEST(FaultDice, TheSameSeedStrikesTheSameMessages) {
  FaultPolicy policy{.seed = 5, .rules = {{.kind = FaultKind::kDrop, .probability = 0.5}}};
  const std::vector<bool> first = Strikes(policy, FaultKind::kDrop, 200);
  EXPECT_EQ(Strikes(policy, FaultKind::kDrop, 200), first);
  policy.seed = 6;
  EXPECT_NE(Strikes(policy, FaultKind::kDrop, 200), first);
}

// 10000 messages at 0.2: 2000 with a deviation of 40; the seed is fixed, so this either holds or does not.
TEST(FaultDice, AProbabilityIsTheShareThatIsStruck) {
  FaultDice dice({.rules = {{.kind = FaultKind::kDelay, .probability = 0.2}}});
  for (int i = 0; i < 10'000; ++i) dice.Throw("header", 100);
  EXPECT_NEAR(static_cast<double>(dice.counts()[static_cast<size_t>(FaultKind::kDelay)]), 2000, 200);
}

TEST(FaultDice, RulesStrikeApartFromEachOther) {
  const FaultRule half = {.kind = FaultKind::kDelay, .probability = 0.5};
  FaultRule other = half;
  other.kind = FaultKind::kReorder;
  FaultDice dice({.rules = {half, other}});
  int both = 0;
  for (int i = 0; i < 1000; ++i) {
    const FaultPlan plan = dice.Throw("header", 100);
    both += plan.has(FaultKind::kDelay) && plan.has(FaultKind::kReorder) ? 1 : 0;
  }
  EXPECT_NEAR(both, 250, 70);
}

TEST(FaultDice, AMessagesNumberCountsWhatTheRuleMatches) {
  const auto is_b = [](std::string_view header, size_t) { return header == "b"; };
  FaultDice dice({.rules = {{.kind = FaultKind::kDrop, .at_message = 1, .matches = is_b}}});
  std::string dropped;
  int number = 0;
  for (const char* header : {"a", "b", "a", "a", "b", "b"}) {
    if (dice.Throw(header, 0).has(FaultKind::kDrop)) dropped += std::to_string(number);
    ++number;
  }
  EXPECT_EQ(dropped, "4");
}

TEST(FaultDice, RulesOnPayloadsDoNotSeeMessagesWithout) {
  FaultDice dice({.rules = {{.kind = FaultKind::kCorruptPayload, .at_message = 1},
                            {.kind = FaultKind::kTruncate, .at_message = 0}}});
  EXPECT_TRUE(dice.Throw("a", 0).is_clean());
  EXPECT_TRUE(dice.Throw("b", 8).has(FaultKind::kTruncate));
  EXPECT_TRUE(dice.Throw("c", 0).is_clean());
  EXPECT_TRUE(dice.Throw("d", 8).has(FaultKind::kCorruptPayload));
}

TEST(FaultDice, WhatIsKilledOrDroppedSuffersNothingElse) {
  FaultDice dice({.rules = {{.kind = FaultKind::kDelay, .probability = 1},
                            {.kind = FaultKind::kDrop, .probability = 1},
                            {.kind = FaultKind::kKill, .at_message = 1}}});
  const FaultPlan first = dice.Throw("a", 8), second = dice.Throw("b", 8);
  EXPECT_TRUE(first.has(FaultKind::kDrop));
  EXPECT_FALSE(first.has(FaultKind::kDelay));
  EXPECT_TRUE(second.has(FaultKind::kKill));
  EXPECT_FALSE(second.has(FaultKind::kDrop));
  FaultCounts expected = {};
  expected[static_cast<size_t>(FaultKind::kDrop)] = 1;
  expected[static_cast<size_t>(FaultKind::kKill)] = 1;
  EXPECT_EQ(dice.counts(), expected);
}

}  // namespace

}  // namespace sluice
