#include "eval/svg_plot.h"

#include "gmock/gmock.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(SvgPlot, HasALineOfEachSeriesAndOneColourOfEachName) {
  Plot plot = {.x_label = "x", .y_label = "a < b"};
  plot.panels = {{"left", {{"one", {{0, 1}, {10, 2}}}, {"two", {{0, 3}, {10, 4}}}}}, {"right", {{"two", {{5, 2}}}}}};
  const std::string svg = ToSvg(plot);
  for (const char* words : {"<svg ", "</svg>", ">left<", ">right<", ">one<", ">two<", "a &lt; b"}) {
    EXPECT_THAT(svg, HasSubstr(words));
  }
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 3u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgPlot, OfNothingOrOfOnePointIsStillAPlot) {
  EXPECT_THAT(ToSvg({}), Not(HasSubstr("nan")));
  Plot plot;
  plot.panels = {{"", {{"one", {{1, 1}}}}}};
  const std::string svg = ToSvg(plot);
  EXPECT_THAT(svg, HasSubstr("polyline"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace sluice
