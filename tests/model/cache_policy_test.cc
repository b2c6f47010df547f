// Cache policies without a model: attention weights in, kept tokens out, against worked examples of an independent
// implementation and against sorting everything at every step.
#include "common/cache_policy.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/kept_prompt.h"
#include "model/kept_slots.h"
#include "model/kept_tokens.h"
#include "nlohmann/json.hpp"
#include "tests/model/policy_json.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const KvLayout kOneHead = KvLayout::Gqa(1, 1, 16);

json Replay() {
  std::ifstream file(SLUICE_TEST_DATA "/policies/replay.json");
  return json::parse(file)["cases"];
}

// A cache as the forward pass sees it: which token lies in which slot. Plays one list.
class Played {
 public:
  Played(const CachePolicy& policy, int64_t slots_max) : slots(policy, kOneHead, slots_max) {
    cache_.assign(static_cast<size_t>(slots_max), -1);
  }

  void Prompt(int64_t tokens, absl::Span<const float> scores) {
    slots.KeepPrompt(0, tokens, scores.data(), tokens);
    slots.FinishPrompt(tokens);
    const std::vector<int32_t> kept = slots.Positions(0, 0);
    std::copy(kept.begin(), kept.end(), cache_.begin());
  }

  // A step of one token; `weight` of every position that is attended to.
  template <typename F>
  void Step(const F& weight) {
    cache_.at(static_cast<size_t>(slots.SlotFor(0, 0, 0))) = static_cast<int32_t>(slots.position());
    std::vector<float> weights;
    for (int64_t slot = 0; slot <= slots.held(); ++slot) weights.push_back(weight(cache_[static_cast<size_t>(slot)]));
    attended.assign(cache_.begin(), cache_.begin() + slots.held() + 1);
    std::sort(attended.begin(), attended.end());
    slots.StepLayer(0, 1, weights.data(), static_cast<int64_t>(weights.size()));
    slots.FinishStep(1);
  }

  KeptSlots slots;
  std::vector<int32_t> attended;  // positions of the last step, ascending

 private:
  std::vector<int32_t> cache_;
};

void ExpectKept(const KeptSlots& slots, const json& after) {
  EXPECT_THAT(slots.Positions(0, 0), ElementsAreArray(after["keep"].get<std::vector<int32_t>>()));
  if (!after.contains("score")) return;
  const auto want = after["score"].get<std::vector<double>>();
  const std::vector<float> got = slots.Scores(0, 0);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

// Sums over the scored queries, one row each, of the weights of every token.
std::vector<float> ScoresOf(const CachePolicy& policy, const std::vector<std::vector<float>>& rows, int64_t tokens) {
  std::vector<float> scores(static_cast<size_t>(tokens));
  const auto scored = static_cast<size_t>(policy.QueriesScored(tokens));
  for (size_t r = rows.size() - std::min(scored, rows.size()); r < rows.size(); ++r) {
    for (size_t p = 0; p < rows[r].size(); ++p) scores[p] += rows[r][p];
  }
  return scores;
}

TEST(CachePolicy, KeepsWhatTheWorkedExamplesKeep) {
  int replayed = 0;
  for (const json& c : Replay()) {
    if (!c.contains("prefill_rows")) continue;
    SCOPED_TRACE(c["name"].get<std::string>());
    ++replayed;
    const CachePolicy policy = PolicyOf(c["policy"]);
    ASSERT_TRUE(Validate(policy).ok()) << Validate(policy);
    const auto rows = c["prefill_rows"].get<std::vector<std::vector<float>>>();
    const auto tokens = static_cast<int64_t>(rows.back().size());
    const auto steps = c["step_rows"].get<std::vector<std::vector<float>>>();
    Played played(policy, policy.Slots(tokens, static_cast<int64_t>(steps.size())));
    played.Prompt(tokens, ScoresOf(policy, rows, tokens));
    ExpectKept(played.slots, c["after"][0]);
    for (size_t step = 0; step < steps.size(); ++step) {
      std::vector<int32_t> attended = played.slots.Positions(0, 0);
      attended.push_back(static_cast<int32_t>(played.slots.position()));
      played.Step([&](int32_t position) {
        const auto at = std::find(attended.begin(), attended.end(), position) - attended.begin();
        return steps[step].at(static_cast<size_t>(at));
      });
      ExpectKept(played.slots, c["after"][step + 1]);
    }
  }
  EXPECT_EQ(replayed, 7);
}

TEST(CachePolicy, SnapKvPoolsOverTheTokensBeforeItsWindow) {
  for (const json& c : Replay()) {
    if (!c.contains("window_mean")) continue;
    SCOPED_TRACE(c["name"].get<std::string>());
    const CachePolicy policy = PolicyOf(c["policy"]);
    auto scores = c["window_mean"].get<std::vector<float>>();
    for (float& s : scores) s *= static_cast<float>(policy.window);
    const auto tokens = static_cast<int64_t>(scores.size());
    const std::vector<float> pooled = PooledMeans(policy, tokens, scores);
    const auto want = c["pooled"].get<std::vector<float>>();
    ASSERT_EQ(pooled.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(pooled[i], want[i], 1e-6) << i;
    EXPECT_THAT(KeepOfPrompt(policy, tokens, scores),
                ElementsAreArray(c["after"][0]["keep"].get<std::vector<int32_t>>()));
  }
}

TEST(CachePolicy, SinkWindowStreamsAsInTheWorkedExample) {
  for (const json& c : Replay()) {
    if (!c.contains("steps")) continue;
    const CachePolicy policy = PolicyOf(c["policy"]);
    Played played(policy, policy.Slots(0, 100));
    for (const json& step : c["steps"]) {
      const auto t = step["t"].get<int64_t>();
      while (played.slots.position() <= t) played.Step([](int32_t) { return 0.0f; });
      EXPECT_THAT(played.attended, ElementsAreArray(step["attends"].get<std::vector<int32_t>>())) << t;
      EXPECT_EQ(SinkQueryPosition(policy, t), step["query_position_for_sinks"].get<int64_t>());
      ExpectKept(played.slots, step);
    }
  }
}

// What a policy keeps, by sorting all there is.
class Oracle {
 public:
  explicit Oracle(const CachePolicy& policy) : policy_(policy) {}

  void Prompt(int64_t tokens, const std::vector<float>& scores) {
    newest_ = tokens - 1;
    for (int64_t p = 0; p < tokens; ++p) {
      kept_[p] = policy_.ranks() ? scores[static_cast<size_t>(p)] : 0;
    }
    std::map<int64_t, float> rank = kept_;
    if (policy_.kind == CachePolicyKind::kSnapKv) {
      const int64_t end = tokens - policy_.window;
      for (int64_t p = 0; p < end; ++p) {
        double sum = 0;
        for (int64_t q = p - 2; q <= p + 2; ++q) sum += q >= 0 && q < end ? scores[static_cast<size_t>(q)] : 0;
        rank[p] = static_cast<float>(sum);
      }
    }
    if (policy_.kind != CachePolicyKind::kFull && tokens > policy_.budget) Prune(rank);
  }

  template <typename F>
  void Step(const F& weight) {
    kept_[++newest_] = 0;
    for (auto& [p, score] : kept_) {
      score = policy_.kind == CachePolicyKind::kTova ? 0 : score * policy_.decay;
      score += weight(static_cast<int32_t>(p));
    }
    if (policy_.bounded() && static_cast<int64_t>(kept_.size()) > policy_.budget) Prune(kept_);
  }

  std::vector<int32_t> Kept() const {
    std::vector<int32_t> kept;
    for (const auto& [p, score] : kept_) kept.push_back(static_cast<int32_t>(p));
    return kept;
  }

 private:
  void Prune(const std::map<int64_t, float>& rank) {
    std::vector<std::pair<double, int64_t>> best;  // the first stay
    for (const auto& [p, score] : kept_) {
      const bool protected_token = p < policy_.sinks || p > newest_ - policy_.window;
      double r = policy_.ranks() ? rank.at(p) : static_cast<double>(p);
      if (policy_.by_age) r /= static_cast<double>(newest_ - p + 1);
      best.emplace_back(protected_token ? -INFINITY : -r, p);
    }
    std::sort(best.begin(), best.end());
    best.resize(static_cast<size_t>(policy_.budget));
    std::set<int64_t> stay;
    for (const auto& [rank_of, p] : best) stay.insert(p);
    std::erase_if(kept_, [&](const auto& item) { return !stay.contains(item.first); });
  }

  CachePolicy policy_;
  std::map<int64_t, float> kept_;
  int64_t newest_ = -1;
};

std::vector<CachePolicy> Policies() {
  using enum CachePolicyKind;
  return {{.kind = kSinkWindow, .budget = 9, .sinks = 2, .window = 7},
          {.kind = kSinkWindow, .budget = 8, .window = 8},
          {.kind = kSinkWindow, .budget = 1, .window = 1},
          {.kind = kH2o, .budget = 12, .window = 4},
          {.kind = kH2o, .budget = 12, .sinks = 3, .window = 4},
          {.kind = kH2o, .budget = 5, .sinks = 1, .window = 4},
          {.kind = kH2o, .budget = 12, .window = 1, .decay = 0.5f},
          {.kind = kH2o, .budget = 12, .window = 2, .by_age = true},
          {.kind = kSnapKv, .budget = 12, .window = 4, .pool = 5},
          {.kind = kTova, .budget = 12, .window = 1},
          {.kind = kTova, .budget = 12}};
}

// Weights are eighths, so that scores are exact in any order and tie often.
TEST(CachePolicy, AgreesWithSortingEverythingAtEveryStep) {
  for (const CachePolicy& policy : Policies()) {
    for (const int64_t tokens : {0, 1, 8, 9, 12, 13, 40}) {
      SCOPED_TRACE(absl::StrCat(ToString(policy), " after ", tokens));
      ASSERT_TRUE(Validate(policy).ok()) << Validate(policy);
      std::mt19937 random(static_cast<uint32_t>(tokens));
      std::vector<std::vector<float>> rows;
      for (int64_t q = 1; q <= tokens; ++q) {
        rows.emplace_back();
        for (int64_t p = 0; p < q; ++p) rows.back().push_back(static_cast<float>(random() % 8) / 8);
      }
      const std::vector<float> scores = ScoresOf(policy, rows, tokens);
      Played played(policy, policy.Slots(tokens, 50));
      Oracle oracle(policy);
      if (tokens > 0) {
        played.Prompt(tokens, scores);
        oracle.Prompt(tokens, scores);
      }
      ASSERT_EQ(played.slots.Positions(0, 0), oracle.Kept());
      for (int step = 0; step < 50; ++step) {
        std::map<int32_t, float> weights;
        for (int32_t p = 0; p <= played.slots.position(); ++p) weights[p] = static_cast<float>(random() % 8) / 8;
        const auto weight = [&](int32_t p) { return weights.at(p); };
        played.Step(weight);
        oracle.Step(weight);
        const std::vector<int32_t> kept = played.slots.Positions(0, 0);
        ASSERT_EQ(kept, oracle.Kept()) << "step " << step;
        // What holds of every policy.
        ASSERT_EQ(static_cast<int64_t>(kept.size()), played.slots.held());
        if (policy.bounded()) {
          ASSERT_LE(played.slots.held(), policy.budget);
        }
        for (int32_t p = 0; p < policy.sinks && p < played.slots.position(); ++p)
          ASSERT_EQ(kept[static_cast<size_t>(p)], p);
        if (policy.kind != CachePolicyKind::kTova || policy.window > 0) {
          ASSERT_EQ(kept.back(), played.slots.position() - 1);
        }
      }
    }
  }
}

TEST(CachePolicy, PositionsEndWithTheContextUnlessDistancesDo) {
  const auto policy = [](CachePolicyKind kind, int64_t budget) {
    return *Resolve({.kind = kind, .budget = budget}, 500);
  };
  for (const CachePolicyKind kind : {CachePolicyKind::kH2o, CachePolicyKind::kSnapKv, CachePolicyKind::kTova}) {
    EXPECT_EQ(policy(kind, 64).PositionsMax(1000), 1000);
    EXPECT_EQ(policy(kind, 64).Generated(900, 500, 1000), 100);
  }
  EXPECT_EQ(CachePolicy().Generated(900, 500, 1000), 100);
  EXPECT_EQ(CachePolicy().Generated(900, 50, 1000), 50);
  EXPECT_GT(policy(CachePolicyKind::kSinkWindow, 64).PositionsMax(1000), 1 << 24);
  EXPECT_EQ(policy(CachePolicyKind::kSinkWindow, 64).Generated(900, 500, 1000), 500);
  // A step runs on a slot more than stays.
  EXPECT_EQ(policy(CachePolicyKind::kSinkWindow, 999).Generated(900, 500, 1000), 500);
  EXPECT_EQ(policy(CachePolicyKind::kSinkWindow, 1000).Generated(900, 500, 1000), 100);
}

TEST(CachePolicy, AScoreThatIsNoNumberLeavesFirst) {
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 3, .window = 1};
  EXPECT_THAT(KeepOfPrompt(policy, 5, {1.0f, NAN, 0.5f, NAN, 0.1f}), ElementsAreArray({0, 2, 4}));
  EXPECT_EQ(SlotToLeave(policy, {0, 1, 2, 3}, {0.0f, NAN, 1.0f, 1.0f}, 3), 1);
}

// Lists are each kv head's where heads rank apart, and a layer's where they do not.
TEST(CachePolicy, ListsFollowTheKvHeadsNotTheQueryHeads) {
  const KvLayout gqa = KvLayout::Gqa(3, 2, 16);
  const KvLayout mla = KvLayout::Mla(3, 64, 16);
  const CachePolicy h2o = {.kind = CachePolicyKind::kH2o, .budget = 4, .window = 1};
  const CachePolicy tova = {.kind = CachePolicyKind::kTova, .budget = 4, .window = 1};
  EXPECT_EQ(KeptSlots(h2o, gqa, 5).lists(), 2);
  EXPECT_EQ(KeptSlots(h2o, mla, 5).lists(), 1);
  EXPECT_EQ(KeptSlots(tova, gqa, 5).lists(), 1);
  EXPECT_EQ(KeptSlots::Bytes(h2o, gqa, 100), 3u * 2 * (100 * 8 + 4));
}

TEST(CachePolicy, ListsOfLayersAndHeadsGoTheirOwnWays) {
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 3, .window = 1};
  KeptSlots slots(policy, KvLayout::Gqa(2, 2, 16), 4);
  const float scores[2][5] = {{4, 3, 0, 0, 0}, {0, 0, 3, 4, 0}};
  slots.KeepPrompt(0, 5, scores[0], 5);
  slots.KeepPrompt(1, 5, scores[0], 0);  // both heads alike
  slots.FinishPrompt(5);
  EXPECT_THAT(slots.Positions(0, 0), ElementsAreArray({0, 1, 4}));
  EXPECT_THAT(slots.Positions(0, 1), ElementsAreArray({2, 3, 4}));
  EXPECT_THAT(slots.Positions(1, 1), ElementsAreArray({0, 1, 4}));
  EXPECT_EQ(slots.dropped(), 2);
}

TEST(CachePolicy, AStepMayHaveManyTokensUntilOneHasToLeave) {
  const CachePolicy policy = {.kind = CachePolicyKind::kSinkWindow, .budget = 6, .sinks = 1, .window = 5};
  KeptSlots slots(policy, kOneHead, 7);
  EXPECT_EQ(slots.StepMax(), 6);
  slots.StepLayer(0, 4, nullptr, 0);
  slots.FinishStep(4);
  EXPECT_EQ(slots.StepMax(), 2);
  EXPECT_EQ(slots.SlotFor(0, 0, 1), 5);
  slots.StepLayer(0, 2, nullptr, 0);
  slots.FinishStep(2);
  EXPECT_EQ(slots.StepMax(), 1);
  EXPECT_EQ(slots.dropped(), 0);
}

// Scores of a prompt that differ by layer and list.
std::vector<float> SomeScores(int layer, int lists, int64_t tokens) {
  std::mt19937 random(static_cast<uint32_t>(layer));
  std::vector<float> scores;
  for (int64_t i = 0; i < lists * tokens; ++i) scores.push_back(static_cast<float>(random() % 100) / 8);
  return scores;
}

KeptSlots OfAPrompt(const CachePolicy& policy, const KvLayout& layout, int64_t tokens) {
  KeptSlots kept(policy, layout, policy.Slots(tokens, 8));
  for (int layer = 0; layer < layout.layers; ++layer) {
    kept.KeepPrompt(layer, tokens, SomeScores(layer, kept.lists(), tokens).data(), tokens);
  }
  kept.FinishPrompt(tokens);
  return kept;
}

// As many steps as there can be that need two bytes, and that need three.
TEST(KeptPrompt, HasABoundForWhateverStepsThereAre) {
  const KvLayout layout = KvLayout::Gqa(1, 1, 16);
  for (const int64_t step : {1, 127, 128, 129, 16383, 16384, 40000}) {
    const int64_t tokens = 80001;
    std::vector<int32_t> positions;
    for (int64_t position = 0; position < tokens - 1; position += step)
      positions.push_back(static_cast<int32_t>(position));
    positions.push_back(static_cast<int32_t>(tokens - 1));
    const auto kept_tokens = static_cast<int64_t>(positions.size());
    const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = kept_tokens, .window = 1};
    KeptSlots kept(policy, layout, policy.Slots(tokens, 8));
    kept.SetPrompt(0, 0, positions, std::vector<float>(positions.size(), 1.f));
    kept.FinishPrompt(tokens);
    EXPECT_LE(ToProto(kept, layout).ByteSizeLong(), KeptPromptBytesMax(policy, layout, tokens)) << step;
  }
}

TEST(KeptPrompt, OfAFifthOfALongContextOfAModelOf8BIsToldInOneMessage) {
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 131072 / 5, .window = 1024};
  EXPECT_LT(KeptPromptBytesMax(policy, KvLayout::Gqa(32, 8, 128), 131072), size_t{36} << 20);
}

TEST(KeptPrompt, TravelsWithPositionsAndScores) {
  for (const KvLayout& layout : {KvLayout::Gqa(3, 2, 16), KvLayout::Mla(2, 64, 16)}) {
    for (const CachePolicy& policy : Policies()) {
      for (const int64_t tokens : {1, 9, 12, 40}) {
        SCOPED_TRACE(absl::StrCat(ToString(policy), " of ", tokens));
        const KeptSlots sent = OfAPrompt(policy, layout, tokens);
        const proto::KeptPrompt message = ToProto(sent, layout);
        EXPECT_LE(message.ByteSizeLong(), KeptPromptBytesMax(policy, layout, tokens));
        auto got = FromProto(message, policy, layout, tokens, policy.Slots(tokens, 8));
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(got->position(), tokens);
        EXPECT_EQ(got->held(), sent.held());
        for (int layer = 0; layer < layout.layers; ++layer) {
          for (int list = 0; list < sent.lists(); ++list) {
            EXPECT_EQ(got->Positions(layer, list), sent.Positions(layer, list));
            EXPECT_EQ(got->Scores(layer, list), sent.Scores(layer, list));
            EXPECT_EQ(got->SlotFor(layer, list, 0), sent.SlotFor(layer, list, 0));
          }
        }
      }
    }
  }
}

TEST(KeptPrompt, WhatNoPolicyKeepsIsRefusedByNameAndValue) {
  const KvLayout layout = KvLayout::Gqa(2, 2, 16);
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 8, .sinks = 2, .window = 3};
  const proto::KeptPrompt good = ToProto(OfAPrompt(policy, layout, 20), layout);
  const auto problem = [&](const auto& change) {
    proto::KeptPrompt message = good;
    change(message);
    return std::string(FromProto(message, policy, layout, 20, 9).status().message());
  };
  EXPECT_EQ(problem([](auto&) {}), "");
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists()->RemoveLast(); }), HasSubstr("of 3 lists, not 4"));
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists(2)->add_steps(1); }),
              HasSubstr("list 2: 9 positions and 8 scores"));
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists(1)->clear_scores(); }), HasSubstr("8 positions and 0 scores"));
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists(1)->set_steps(7, 4000000000u); }), HasSubstr("in a prompt of 20"));
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists(1)->set_steps(3, 0); }), HasSubstr("in a prompt of 20"));
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists(0)->set_steps(0, 1); }), HasSubstr("list 0: "));
  EXPECT_THAT(problem([](auto& m) { m.mutable_lists(3)->set_scores(5, NAN); }), HasSubstr("list 3: a score is nan"));
}

TEST(CachePolicySpec, ResolvesForThePrompt) {
  const auto resolve = [](CachePolicyKind kind, const char* budget, int64_t prompt) {
    CachePolicySpec spec = {.kind = kind};
    EXPECT_TRUE(SetBudget(budget, &spec).ok());
    EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
    return ToString(Resolve(spec, prompt).value());
  };
  EXPECT_EQ(resolve(CachePolicyKind::kH2o, "20%", 8000), "h2o 1600 (sinks 0, window 800)");
  EXPECT_EQ(resolve(CachePolicyKind::kH2o, "2048", 8000), "h2o 2048 (sinks 0, window 1024)");
  EXPECT_EQ(resolve(CachePolicyKind::kSnapKv, "256", 8000), "snapkv 256 (sinks 0, window 32)");
  EXPECT_EQ(resolve(CachePolicyKind::kSinkWindow, "1024", 8000), "sink-window 4+1020");
  EXPECT_EQ(resolve(CachePolicyKind::kTova, "10%", 3), "tova 1 (sinks 0, window 1)");
}

TEST(CachePolicySpec, IsReadAsItIsSpelt) {
  EXPECT_EQ(*ParseCachePolicySpec("full"), CachePolicySpec());
  EXPECT_EQ(*ParseCachePolicySpec("h2o:20%"), (CachePolicySpec{.kind = CachePolicyKind::kH2o, .budget_share = 0.2}));
  EXPECT_EQ(*ParseCachePolicySpec("tova:512"), (CachePolicySpec{.kind = CachePolicyKind::kTova, .budget = 512}));
  const CachePolicySpec window = *ParseCachePolicySpec("sink-window:0+256");
  EXPECT_EQ(window, (CachePolicySpec{.kind = CachePolicyKind::kSinkWindow, .sinks = 0, .window = 256}));
  EXPECT_EQ(Resolve(window, 100)->budget, 256);
  for (const char* text :
       {"h3o:20%", "h2o", "h2o:", "h2o:0%", "full:20%", "sink-window:4+", "sink-window", "tova:-3"}) {
    EXPECT_FALSE(ParseCachePolicySpec(text).ok()) << text;
  }
  EXPECT_THAT(ParseCachePolicySpec("sink-window:a+b").status().message(), HasSubstr("sink-window:a+b"));
}

TEST(CachePolicySpec, AShareInWholePercentIsNotATokenLessForBeingADouble) {
  EXPECT_EQ(Resolve(*ParseCachePolicySpec("h2o:29%"), 100)->budget, 29);
  EXPECT_EQ(Resolve(*ParseCachePolicySpec("h2o:20%"), 2048)->budget, 409);
}

TEST(CachePolicySpec, ContradictionsAreNamedWithTheirValues) {
  const auto problem = [](const CachePolicySpec& spec) { return std::string(Validate(spec).message()); };
  using enum CachePolicyKind;
  EXPECT_THAT(problem({.kind = kFull, .budget = 5}), HasSubstr("full: has no budget, and 5 is given"));
  EXPECT_THAT(problem({.kind = kFull, .budget_share = 0.2, .sinks = 3}),
              HasSubstr("has no budget, and 20% is given; has no sinks, and 3 is given"));
  EXPECT_THAT(problem({.kind = kFull, .window = 7, .decay = 0.5f, .by_age = true}),
              HasSubstr("has no window, and 7 is given; has no decay, and 0.5 is given; has no by_age, and true"));
  EXPECT_THAT(problem({.kind = kH2o}), HasSubstr("needs a budget"));
  EXPECT_THAT(problem({.kind = kSinkWindow}), HasSubstr("needs a window or a budget"));
  EXPECT_THAT(problem({.kind = kSinkWindow, .budget = 10, .sinks = 4, .window = 7}),
              HasSubstr("budget is 10, sinks and window 11"));
  EXPECT_THAT(problem({.kind = kH2o, .budget = 10, .sinks = 4, .window = 7}), HasSubstr("window is 7, not 1 to 6"));
  EXPECT_THAT(problem({.kind = kH2o, .budget = 10, .window = 0}), HasSubstr("window is 0, not 1 to 10"));
  EXPECT_THAT(problem({.kind = kTova, .budget = 10, .sinks = 1}), HasSubstr("sinks is 1"));
  EXPECT_THAT(problem({.kind = kSnapKv, .budget = 10, .decay = 0.5f}), HasSubstr("decay is 0.5, and only h2o has one"));
  EXPECT_THAT(problem({.kind = kTova, .budget = 10, .by_age = true}), HasSubstr("by_age is true, and only h2o"));
  EXPECT_THAT(problem({.kind = kH2o, .budget = 10, .decay = 1.5f}), HasSubstr("decay is 1.5, not above 0 and up to 1"));
  // No range is empty.
  EXPECT_THAT(problem({.kind = kH2o, .budget = 0}), EndsWith("h2o: budget is 0, not 1 to 1073741824"));
  EXPECT_THAT(problem({.kind = kH2o, .budget = 4, .sinks = 4}), EndsWith("h2o: sinks is 4, not 0 to 3"));
  EXPECT_THAT(problem({.kind = kSinkWindow, .budget = 4}), EndsWith("sink-window: sinks is 4, not 0 to 3"));
  EXPECT_THAT(problem({.kind = kSinkWindow, .sinks = 4, .window = 0}), EndsWith("window is 0, not 1 or more"));
  EXPECT_TRUE(Validate(CachePolicySpec{.kind = kTova, .budget = 10, .window = 0}).ok());
  CachePolicySpec spec;
  for (const char* text : {"", "0", "-1", "0%", "101%", "%", "nan%", "12 slots"}) {
    EXPECT_THAT(std::string(SetBudget(text, &spec).message()), HasSubstr(absl::StrCat("'", text, "'"))) << text;
  }
}

}  // namespace
}  // namespace sluice
