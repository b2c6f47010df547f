#include "eval/cache_case.h"

#include "gmock/gmock.h"

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(CacheCase, ReadsWhatIsAskedFor) {
  EXPECT_EQ(ParseCacheCase("full")->policy, CachePolicySpec());
  EXPECT_EQ(ParseCacheCase("h2o:20%")->policy, (CachePolicySpec{.kind = CachePolicyKind::kH2o, .budget_share = 0.2}));
  EXPECT_EQ(ParseCacheCase("tova:512")->policy, (CachePolicySpec{.kind = CachePolicyKind::kTova, .budget = 512}));
  const auto window = ParseCacheCase("sink-window:0+256");
  EXPECT_EQ(window->policy, (CachePolicySpec{.kind = CachePolicyKind::kSinkWindow, .sinks = 0, .window = 256}));
  EXPECT_EQ(window->name, "sink-window:0+256");
  EXPECT_EQ(Resolve(window->policy, 100)->budget, 256);
}

TEST(CacheCase, RefusesTheRestWithTheText) {
  for (const char* text :
       {"h3o:20%", "h2o", "h2o:", "h2o:0%", "full:20%", "sink-window:4+", "sink-window", "tova:-3"}) {
    EXPECT_FALSE(ParseCacheCase(text).ok()) << text;
  }
  EXPECT_THAT(ParseCacheCase("sink-window:a+b").status().message(), HasSubstr("sink-window:a+b"));
}

}  // namespace
}  // namespace sluice
