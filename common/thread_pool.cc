#include "common/thread_pool.h"

#include <sched.h>

#include "common/status.h"

namespace sluice {

namespace {
// A decode step has some hundred regions a few ten microseconds apart: sleeping between them would cost more than
// they do. Spin for about that long, then yield a while (another process may hold the core), then sleep.
constexpr int kSpins = 4000;
constexpr int kYields = 50;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` differs from `old`.
uint32_t AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins + kYields; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    if (i < kSpins) {
      Pause();
    } else {
      sched_yield();
    }
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}
}  // namespace

ThreadPool::ThreadPool(int threads) {
  SLUICE_CHECK(threads >= 1, "threads ", threads);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::ParallelFor(int64_t items, absl::FunctionRef<void(int64_t, int)> body) {
  if (workers_.empty() || items <= 1) {
    for (int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  items_ = items;
  next_item_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  RunItems(0);
  for (uint32_t left = busy_.load(std::memory_order_acquire); left != 0;) left = AwaitChange(busy_, left);
}

void ThreadPool::RunItems(int thread) {
  for (;;) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) return;
    (*body_)(item, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = AwaitChange(region_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    RunItems(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace sluice
