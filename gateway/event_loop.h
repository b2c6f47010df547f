// The one thread that owns everything mutable of a gateway, as an interface, so that tests run the same code under
// simulated time. Whoever holds an EventLoop* lives and dies on its thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace sluice {

class EventLoop {
 public:
  using Task = std::function<void()>;

  // A pending call; destroying it cancels the call, which then certainly does not happen.
  class Timer {
   public:
    virtual ~Timer() = default;
  };

  virtual ~EventLoop() = default;

  virtual absl::Time Now() const = 0;
  // Runs `task` on the loop's thread, later, in order. Any thread may call it.
  virtual void Post(Task task) = 0;
  // Runs `task` on the loop's thread after `delay`.
  virtual std::unique_ptr<Timer> After(absl::Duration delay, Task task) = 0;
  // Runs `work` where it may take long, then `then` on the loop's thread.
  virtual void Offload(Task work, Task then) = 0;
};

}  // namespace sluice
