#include "gateway/asio_loop.h"

#include <csignal>

#include "absl/time/clock.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/signal_set.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/thread_pool.hpp"

namespace sluice {

namespace asio = boost::asio;

struct AsioLoop::Impl {
  explicit Impl(int offload_threads) : signals(context), work(context.get_executor()), pool(offload_threads) {}

  void AwaitSignal() {
    signals.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      on_terminate();
      AwaitSignal();
    });
  }

  asio::io_context context{1};
  asio::signal_set signals;
  EventLoop::Task on_terminate;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::thread_pool pool;
};

namespace {

class AsioTimer final : public EventLoop::Timer {
 public:
  AsioTimer(asio::io_context& context, absl::Duration delay, EventLoop::Task task)
      : timer_(context, absl::ToChronoNanoseconds(delay)), task_(std::make_shared<EventLoop::Task>(std::move(task))) {
    // Shared between this handle and asio's handler: an expired timer may be cancelled after its handler is queued.
    timer_.async_wait([weak = std::weak_ptr(task_)](const boost::system::error_code& error) {
      const std::shared_ptr<EventLoop::Task> task = weak.lock();
      if (!error && task != nullptr) (*task)();
    });
  }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<EventLoop::Task> task_;
};

}  // namespace

AsioLoop::AsioLoop(int offload_threads) : impl_(std::make_unique<Impl>(offload_threads)) {}

AsioLoop::~AsioLoop() { FinishOffloaded(); }

absl::Time AsioLoop::Now() const { return absl::Now(); }

void AsioLoop::Post(Task task) { asio::post(impl_->context, std::move(task)); }

std::unique_ptr<EventLoop::Timer> AsioLoop::After(absl::Duration delay, Task task) {
  return std::make_unique<AsioTimer>(impl_->context, delay, std::move(task));
}

void AsioLoop::Offload(Task work, Task then) {
  asio::post(impl_->pool, [this, work = std::move(work), then = std::move(then)]() mutable {
    work();
    Post(std::move(then));
  });
}

void AsioLoop::Run() { impl_->context.run(); }

void AsioLoop::Stop() { impl_->context.stop(); }

void AsioLoop::FinishOffloaded() { impl_->pool.join(); }

void AsioLoop::OnTerminate(Task task) {
  if (!impl_->on_terminate) {
    impl_->signals.add(SIGTERM);
    impl_->signals.add(SIGINT);
  }
  impl_->on_terminate = std::move(task);
  impl_->AwaitSignal();
}

asio::io_context& AsioLoop::context() { return impl_->context; }

}  // namespace sluice
