#include "tests/bench/interleaved.h"

#include <algorithm>
#include <ctime>

namespace sluice {

namespace {

double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::vector<double> MedianRates(const std::vector<TimedLoop>& loops, int rounds, int threads) {
  std::vector<std::vector<double>> seconds(loops.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < loops.size(); ++i) {
      const double start = ProcessorSeconds();
      loops[i].body();
      if (round > 0) seconds[i].push_back((ProcessorSeconds() - start) / threads);  // the first round warms up
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
