// Line plots as SVG: panels side by side, a line for each series.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by ascending x
};

struct PlotPanel {
  std::string title;
  std::vector<PlotLine> lines;
};

struct Plot {
  std::string x_label;
  std::string y_label;
  bool from_zero = false;    // else the vertical axis begins near the lowest value
  bool shared_scale = true;  // of the vertical axes; else each panel has its own
  std::vector<PlotPanel> panels;
};

// Lines of one name have one colour in all panels.
std::string ToSvg(const Plot& plot);

}  // namespace sluice
