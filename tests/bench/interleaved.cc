#include "tests/bench/interleaved.h"

#include <algorithm>
#include <chrono>

namespace sluice {

std::vector<double> MedianRates(const std::vector<TimedLoop>& loops, int rounds) {
  std::vector<std::vector<double>> seconds(loops.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < loops.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      loops[i].body();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (round > 0) seconds[i].push_back(taken.count());  // the first round warms up
    }
  }
  std::vector<double> rates;
  for (size_t i = 0; i < loops.size(); ++i) {
    std::nth_element(seconds[i].begin(), seconds[i].begin() + rounds / 2, seconds[i].end());
    rates.push_back(loops[i].bytes / seconds[i][static_cast<size_t>(rounds / 2)]);
  }
  return rates;
}

}  // namespace sluice
