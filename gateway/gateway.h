// The parts of a gateway, put together: everything but the process around them. Lives on the loop's thread, or before
// and after the loop runs.
#pragma once

#include <memory>
#include <string>

#include "gateway/admission_queue.h"
#include "gateway/asio_loop.h"
#include "gateway/fleet.h"
#include "gateway/http_server.h"
#include "gateway/metrics.h"
#include "gateway/openai_service.h"
#include "gateway/options.h"
#include "gateway/readiness.h"
#include "gateway/served_model.h"
#include "gateway/workers.h"

namespace sluice {

class Gateway {
 public:
  // Listens and begins to ask its workers. `loop` outlives it. REQUIRES: options are valid.
  static StatusOr<std::unique_ptr<Gateway>> Create(const GatewayOptions& options, ServedModel model, AsioLoop* loop);
  // Cancels what still runs. REQUIRES: the loop no longer runs.
  ~Gateway();

  std::string address() const { return server_->address(); }

  // Takes no more requests, and stops the loop once those that run have been answered or options.drain_ms are over.
  void Drain();

 private:
  Gateway(const GatewayOptions& options, ServedModel model, AsioLoop* loop);
  FlowEnvironment Environment();
  void CheckDrained();

  // Destroyed from below: connections, then what their requests stand on, then the calls to workers.
  const GatewayOptions options_;
  const ServedModel model_;
  AsioLoop* const loop_;
  const std::unique_ptr<Workers> workers_;
  GatewayMetrics metrics_;
  PrefixRecords prefixes_;
  Fleet fleet_;
  AdmissionQueue queue_;
  std::unique_ptr<Fleet::Subscription> lost_;
  Readiness readiness_;
  OpenAiService service_;
  std::unique_ptr<HttpServer> server_;
  absl::Time drain_until_;
  std::unique_ptr<EventLoop::Timer> drain_timer_;
};

}  // namespace sluice
