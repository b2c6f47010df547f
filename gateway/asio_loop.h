// The event loop of a running gateway: an asio io_context driven by the thread that calls Run(), and a few threads for
// offloaded work.
#pragma once

#include "gateway/event_loop.h"

namespace boost::asio {
class io_context;
}

namespace sluice {

class AsioLoop final : public EventLoop {
 public:
  explicit AsioLoop(int offload_threads);
  ~AsioLoop() override;  // waits for offloaded work; tasks that have not run are dropped

  absl::Time Now() const override;
  void Post(Task task) override;
  std::unique_ptr<Timer> After(absl::Duration delay, Task task) override;
  void Offload(Task work, Task then) override;

  // Runs tasks until Stop(). The caller is the loop's thread.
  void Run();
  void Stop();  // any thread
  // Waits for offloaded work; nothing is offloaded afterwards. For whoever owns what that work reads.
  void FinishOffloaded();

  // Calls `task` on each SIGTERM and SIGINT, which from here on do nothing else.
  void OnTerminate(Task task);

  boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
