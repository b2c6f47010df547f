#include "tests/bench/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "common/buffer.h"
#include "common/status.h"
#include "tests/bench/limit_loops.h"

namespace sluice {

namespace {

constexpr size_t kStreamBytes = size_t{256} << 20;
constexpr int64_t kLoops = 200'000;
constexpr int kTries = 7;

// Seconds from the first to the last of `threads` threads in `body(thread)`, the best of kTries.
double BestSeconds(int threads, const std::function<void(int)>& body) {
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    std::atomic<int> waiting{threads};
    std::vector<std::thread> workers;
    const auto run = [&](int t) {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      body(t);
    };
    const auto start = std::chrono::steady_clock::now();
    for (int t = 1; t < threads; ++t) workers.emplace_back(run, t);
    run(0);
    for (std::thread& w : workers) w.join();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

MachineLimits Measure(int threads) {
  StatusOr<Buffer> memory = Buffer::Create(kStreamBytes, /*touch=*/true);
  SLUICE_CHECK(memory.ok(), "memory ", memory.status().ToString());
  const size_t share = kStreamBytes / static_cast<size_t>(threads) / 4096 * 4096;
  MachineLimits limits;
  limits.stream_bytes_per_s = static_cast<double>(share) * threads / BestSeconds(threads, [&](int t) {
                                ReadStream(memory->data() + static_cast<size_t>(t) * share, share);
                              });
  limits.f32_macs_per_s = static_cast<double>(kLoops) * F32MacsPerLoop() * threads /
                          BestSeconds(threads, [](int) { MultiplyAddF32(kLoops); });
  limits.int8_macs_per_s = static_cast<double>(kLoops) * Int8MacsPerLoop() * threads /
                           BestSeconds(threads, [](int) { MultiplyAddInt8(kLoops); });
  return limits;
}

}  // namespace

const MachineLimits& LimitsOf(int threads) {
  static std::map<int, MachineLimits> known;
  const auto found = known.find(threads);
  return found != known.end() ? found->second : known.emplace(threads, Measure(threads)).first->second;
}

}  // namespace sluice
