#include "gateway/process.h"

#include <unistd.h>

#include <random>

#include "gateway/asio_loop.h"
#include "gateway/fleet.h"
#include "gateway/grpc_workers.h"
#include "gateway/http_server.h"
#include "gateway/metrics.h"
#include "gateway/openai_service.h"
#include "gateway/readiness.h"
#include "gateway/served_model.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {

constexpr absl::Duration kDrainPoll = absl::Milliseconds(20);

void Announce(int fd, const std::string& address) {
  if (fd < 0) return;
  const std::string line =
      nlohmann::ordered_json{{"role", "gateway"}, {"http", address}, {"pid", getpid()}}.dump() + "\n";
  // A supervisor that has gone is noticed by its signal, not here.
  [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
  close(fd);
}

uint64_t RandomKey() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Waits until nothing runs any more, or time is over.
class Drain {
 public:
  Drain(AsioLoop* loop, HttpServer* server, OpenAiService* service, absl::Duration at_most)
      : loop_(loop), server_(server), service_(service), at_most_(at_most) {}

  void Start() {
    if (timer_ != nullptr) return loop_->Stop();
    spdlog::info("draining: {} requests run, for at most {}", server_->exchanges(), absl::FormatDuration(at_most_));
    until_ = loop_->Now() + at_most_;
    service_->Drain();
    server_->Drain();
    Check();
  }

 private:
  void Check() {
    if (server_->exchanges() == 0 || loop_->Now() >= until_) return loop_->Stop();
    timer_ = loop_->After(kDrainPoll, [this] { Check(); });
  }

  AsioLoop* const loop_;
  HttpServer* const server_;
  OpenAiService* const service_;
  const absl::Duration at_most_;
  absl::Time until_;
  std::unique_ptr<EventLoop::Timer> timer_;
};

}  // namespace

Status RunGateway(const GatewayOptions& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_ASSIGN_OR_RETURN(const ServedModel model, OpenServedModel(options.model_path, options.model_name));
  // Destroyed in the opposite order: connections, then the flows' ground, then the calls, then the loop.
  AsioLoop loop(options.prepare_threads);
  const std::unique_ptr<Workers> workers = MakeGrpcWorkers(options, &loop);
  GatewayMetrics metrics;
  Fleet fleet(
      &options, &loop, workers.get(),
      {.model_hash = model.model_hash, .vocab_size = model.vocab_size, .context_tokens_max = model.context_tokens_max});
  const FlowEnvironment environment{
      .options = &options, .loop = &loop, .workers = workers.get(), .fleet = &fleet, .metrics = &metrics};
  Readiness readiness(environment);
  fleet.SetOnChange([&readiness] { readiness.OnFleetChange(); });
  OpenAiService service(environment, &model, &readiness, RandomKey());
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server, HttpServer::Create(options, &loop, &service));
  service.SetServer(server.get());
  Drain drain(&loop, server.get(), &service, absl::Milliseconds(options.drain_ms));
  loop.OnTerminate([&drain] { drain.Start(); });

  spdlog::info("gateway of {} listens on http://{}", model.name, server->address());
  Announce(options.announce_fd, server->address());
  loop.Run();
  return absl::OkStatus();
}

}  // namespace sluice
