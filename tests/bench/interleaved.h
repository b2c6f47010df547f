// Runs several loops in turn, round after round, and keeps each one's median: what disturbs the machine for a while
// disturbs all of them, so that their ratios stand.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace sluice {

struct TimedLoop {
  std::string name;
  double bytes = 0;  // that one call of `body` reads, or whatever the rate is to be of
  std::function<void()> body;
};

// Bytes a second of each loop, whose body keeps `threads` threads busy. In seconds of processor time, which waits for
// memory and not for other programs.
std::vector<double> MedianRates(const std::vector<TimedLoop>& loops, int rounds, int threads);

}  // namespace sluice
