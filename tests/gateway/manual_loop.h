// An event loop under simulated time: everything happens in Advance(), on the test's thread, in order.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "gateway/event_loop.h"

namespace sluice {

class ManualLoop final : public EventLoop {
 public:
  absl::Time Now() const override { return now_; }
  void Post(Task task) override { queue_.push_back(std::move(task)); }
  std::unique_ptr<Timer> After(absl::Duration delay, Task task) override {
    auto shared = std::make_shared<Task>(std::move(task));
    timers_.emplace(std::pair(now_ + delay, ++serial_), shared);
    return std::make_unique<Handle>(std::move(shared));
  }
  void Offload(Task work, Task then) override {
    Post([work = std::move(work), then = std::move(then)] {
      work();
      then();
    });
  }

  void Advance(absl::Duration by) {
    const absl::Time until = now_ + by;
    RunPosted();
    while (!timers_.empty() && timers_.begin()->first.first <= until) {
      const auto first = timers_.begin();
      now_ = first->first.first;
      const std::shared_ptr<Task> task = first->second.lock();
      timers_.erase(first);
      if (task != nullptr) (*task)();
      RunPosted();
    }
    now_ = until;
  }
  void Settle() { Advance(absl::ZeroDuration()); }

 private:
  class Handle final : public Timer {
   public:
    explicit Handle(std::shared_ptr<Task> task) : task_(std::move(task)) {}

   private:
    std::shared_ptr<Task> task_;
  };

  void RunPosted() {
    while (!queue_.empty()) {
      const Task task = std::move(queue_.front());
      queue_.pop_front();
      task();
    }
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  uint64_t serial_ = 0;
  std::deque<Task> queue_;
  std::map<std::pair<absl::Time, uint64_t>, std::weak_ptr<Task>> timers_;
};

}  // namespace sluice
