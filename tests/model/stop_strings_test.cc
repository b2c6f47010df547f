#include "model/stop_strings.h"

#include <algorithm>

#include "common/rng.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

// The slow way: at each end of the text, whether a stop string ends there.
struct Naive {
  std::string text;
  int match = -1;
};
Naive Scan(const std::string& text, const std::vector<std::string>& stops, size_t not_before) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends_here =
          end >= stops[i].size() && text.compare(end - stops[i].size(), stops[i].size(), stops[i]) == 0;
      if (ends_here && (best < 0 || stops[i].size() > stops[best].size())) best = static_cast<int>(i);
    }
    if (best >= 0 && end > not_before) return {text.substr(0, end - stops[best].size()), best};
  }
  return {text, -1};
}

// The longest end of the text that is a beginning, and not the whole, of a stop string.
size_t MustHold(const std::string& text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t k = 1; k < stop.size() && k <= text.size(); ++k) {
      if (text.compare(text.size() - k, k, stop, 0, k) == 0) held = std::max(held, k);
    }
  }
  return held;
}

std::string RandomText(Rng& rng, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + rng.Bits() % 2);
  return text;
}

TEST(StopStrings, AgreesWithANaiveScanHoweverTheTextIsCut) {
  Rng rng(1);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t i = rng.Bits() % 4; i-- > 0;) stops.push_back(RandomText(rng, 1 + rng.Bits() % 5));
    const std::string text = RandomText(rng, rng.Bits() % 24);
    const size_t not_before = rng.Bits() % 2 ? 0 : rng.Bits() % (text.size() + 1);
    const Naive expected = Scan(text, stops, not_before);
    StopStrings matcher(stops);
    std::string sent;
    int match = -1;
    for (size_t at = 0; at < text.size() && match < 0;) {
      size_t size = std::min(text.size() - at, 1 + rng.Bits() % 4);
      if (at < not_before)
        size = std::min(size, not_before - at);  // a part is allowed to stop as a whole or not at all
      const StopStrings::Fed fed = matcher.Feed(text.substr(at, size), at >= not_before);
      sent += fed.sendable;
      match = fed.match;
      at += size;
      if (match < 0) {
        EXPECT_EQ(matcher.held().size(), MustHold(text.substr(0, at), stops));
      }
    }
    EXPECT_EQ(match < 0 ? sent + matcher.held() : sent, expected.text);
    ASSERT_EQ(match, expected.match) << text;
  }
}

TEST(StopStrings, HoldsNothingWithoutStopStrings) {
  StopStrings matcher({});
  EXPECT_EQ(matcher.Feed("any text", true).sendable, "any text");
  EXPECT_EQ(matcher.held(), "");
}

TEST(StopStrings, TheLongestOfSeveralThatEndTogetherCounts) {
  StopStrings matcher({"c", "bc"});
  const StopStrings::Fed fed = matcher.Feed("abcd", true);
  EXPECT_EQ(fed.match, 1);
  EXPECT_EQ(fed.sendable, "a");
}

}  // namespace
}  // namespace sluice
