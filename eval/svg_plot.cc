#include "eval/svg_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice {
namespace {

constexpr double kWidth = 300, kHeight = 220, kLeft = 54, kTop = 34, kGap = 44, kBelow = 44, kLegendLine = 15;
constexpr size_t kMarkedPoints = 24;
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f", "#c77d0a",
                                    "#444444", "#17a2a2", "#a8552b", "#7a9e1f", "#d070b0"};
constexpr const char* kDashes[] = {"none", "6 3", "2 3"};

std::string Text(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

struct Range {
  double low = HUGE_VAL;
  double high = -HUGE_VAL;
  void Take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double span() const { return high > low ? high - low : 1; }
};

// 1, 2 or 5 times a power of ten, so that there are about four to nine steps.
double TickStep(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / 4)));
  for (const double factor : {5.0, 2.0}) {
    if (power * factor <= span / 4) return power * factor;
  }
  return power;
}

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    for (const PlotPanel& panel : plot.panels) {
      for (const PlotLine& line : panel.lines) {
        if (std::find(names_.begin(), names_.end(), line.name) == names_.end()) names_.push_back(line.name);
        for (const auto& point : line.points) x_.Take(point.first);
      }
    }
    if (x_.high < x_.low) x_ = {0, 1};
  }

  std::string Draw() {
    const double width = kLeft + static_cast<double>(plot_.panels.size()) * (kWidth + kGap);
    const double legend = kTop + kHeight + kBelow;
    absl::StrAppendFormat(&out_,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                          "font-family=\"sans-serif\" font-size=\"11\">\n"
                          "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                          width, legend + static_cast<double>(names_.size()) * kLegendLine + 8);
    absl::StrAppendFormat(&out_,
                          "<text transform=\"translate(13,%.0f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
                          kTop + kHeight / 2, Text(plot_.y_label));
    for (size_t i = 0; i < plot_.panels.size(); ++i) DrawPanel(i);
    for (size_t i = 0; i < names_.size(); ++i) {
      const double y = legend + (static_cast<double>(i) + 0.5) * kLegendLine;
      absl::StrAppendFormat(&out_, "<path d=\"M%.0f %.1fh24\" %s/><text x=\"%.0f\" y=\"%.1f\">%s</text>\n", kLeft, y,
                            Stroke(i), kLeft + 30, y + 4, Text(names_[i]));
    }
    return out_ + "</svg>\n";
  }

 private:
  double X(double x) const { return (x - x_.low) / x_.span() * kWidth; }
  double Y(double y) const { return kHeight - (y - y_.low) / y_.span() * kHeight; }
  static const char* Colour(size_t name) { return kColours[name % std::size(kColours)]; }
  static std::string Stroke(size_t name) {
    return absl::StrFormat("fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"", Colour(name),
                           kDashes[name / std::size(kColours) % std::size(kDashes)]);
  }

  // Over the panels whose vertical axis is the one of `index`.
  Range VerticalRange(size_t index) const {
    Range range;
    for (size_t i = 0; i < plot_.panels.size(); ++i) {
      if (i != index && !plot_.shared_scale) continue;
      for (const PlotLine& line : plot_.panels[i].lines) {
        for (const auto& point : line.points) range.Take(point.second);
      }
    }
    if (range.high < range.low) range = {0, 1};
    if (plot_.from_zero) range.Take(0);
    const double margin = range.span() * 0.04;
    if (!plot_.from_zero) range.low -= margin;
    range.high += margin;
    return range;
  }

  void DrawAxes(bool labelled) {
    const double y_step = TickStep(y_.span());
    for (double y = std::ceil(y_.low / y_step) * y_step; y <= y_.high; y += y_step) {
      absl::StrAppendFormat(&out_, "<path d=\"M0 %.1fH%.0f\" stroke=\"#ddd\"/>\n", Y(y), kWidth);
      if (!labelled) continue;
      absl::StrAppendFormat(&out_, "<text x=\"-6\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", Y(y) + 4,
                            std::abs(y) < y_step / 2 ? 0 : y);
    }
    const double x_step = TickStep(x_.span());
    for (double x = std::ceil(x_.low / x_step) * x_step; x <= x_.high; x += x_step) {
      absl::StrAppendFormat(&out_, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.6g</text>\n", X(x),
                            kHeight + 15, x);
    }
    absl::StrAppendFormat(&out_, "<rect width=\"%.0f\" height=\"%.0f\" fill=\"none\" stroke=\"#888\"/>\n", kWidth,
                          kHeight);
  }

  void DrawPanel(size_t index) {
    const PlotPanel& panel = plot_.panels[index];
    absl::StrAppendFormat(&out_, "<g transform=\"translate(%.0f,%.0f)\">\n",
                          kLeft + static_cast<double>(index) * (kWidth + kGap), kTop);
    absl::StrAppendFormat(&out_, "<text x=\"%.0f\" y=\"-12\" text-anchor=\"middle\" font-size=\"13\">%s</text>\n",
                          kWidth / 2, Text(panel.title));
    y_ = VerticalRange(index);
    DrawAxes(index == 0 || !plot_.shared_scale);
    for (const PlotLine& line : panel.lines) {
      const size_t name = static_cast<size_t>(std::find(names_.begin(), names_.end(), line.name) - names_.begin());
      std::string points;
      std::string marks;
      for (const auto& [x, y] : line.points) {
        absl::StrAppendFormat(&points, "%.1f,%.1f ", X(x), Y(y));
        absl::StrAppendFormat(&marks, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", X(x), Y(y),
                              Colour(name));
      }
      absl::StrAppendFormat(&out_, "<polyline points=\"%s\" %s/>\n", points, Stroke(name));
      if (line.points.size() <= kMarkedPoints) out_ += marks;
    }
    absl::StrAppendFormat(&out_, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n</g>\n", kWidth / 2,
                          kHeight + 32, Text(plot_.x_label));
  }

  const Plot& plot_;
  std::vector<std::string> names_;
  Range x_;
  Range y_;  // of the panel that is drawn
  std::string out_;
};

}  // namespace

std::string ToSvg(const Plot& plot) { return Drawing(plot).Draw(); }

}  // namespace sluice
