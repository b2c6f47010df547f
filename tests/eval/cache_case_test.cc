#include "eval/cache_case.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(CacheCase, ReadsWhatIsAskedFor) {
  const auto window = ParseCacheCase("sink-window:0+256");
  EXPECT_EQ(window->policy, (CachePolicySpec{.kind = CachePolicyKind::kSinkWindow, .sinks = 0, .window = 256}));
  EXPECT_EQ(window->name, "sink-window:0+256");
  EXPECT_FALSE(ParseCacheCase("h3o:20%").ok());
}

}  // namespace
}  // namespace sluice
