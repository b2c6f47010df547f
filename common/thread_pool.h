// Fork-join over a fixed set of threads, for kernels. Results never depend on which thread runs which item: kernels
// write disjoint outputs and reduce in an order that their arguments fix.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sluice {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts none. Owned and driven by one thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, thread) for every item in [0, items), each once, on any of the threads (thread < threads());
  // returns when all are done. Items are handed out one at a time, in order. Not reentrant.
  void ParallelFor(int64_t items, absl::FunctionRef<void(int64_t item, int thread)> body);

 private:
  void WorkerLoop(int thread);
  void RunItems(int thread);

  std::vector<std::thread> workers_;
  // One region at a time: its number, what to run, how many items are claimed, how many workers are still inside.
  std::atomic<uint32_t> region_{0};
  std::atomic<bool> stop_{false};
  const absl::FunctionRef<void(int64_t, int)>* body_ = nullptr;
  int64_t items_ = 0;
  alignas(64) std::atomic<int64_t> next_item_{0};
  alignas(64) std::atomic<uint32_t> busy_{0};
};

}  // namespace sluice
