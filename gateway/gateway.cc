#include "gateway/gateway.h"

#include "common/process.h"
#include "gateway/grpc_workers.h"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {
constexpr absl::Duration kDrainPoll = absl::Milliseconds(20);
}

Gateway::Gateway(const GatewayOptions& options, ServedModel model, AsioLoop* loop)
    : options_(options),
      model_(std::move(model)),
      loop_(loop),
      workers_(MakeGrpcWorkers(options_, loop)),
      prefixes_(static_cast<size_t>(options_.prefix_pages_max)),
      fleet_(&options_, loop, workers_.get(), {model_.model_hash, model_.vocab_size, model_.context_tokens_max}),
      queue_(&options_, loop, &fleet_),
      readiness_(Environment()),
      service_(Environment(), &model_, &readiness_, NewEpoch().value) {
  lost_ = fleet_.Listen([this](WorkerRef worker, const Status&) { prefixes_.Forget(worker); });
  fleet_.SetOnChange([this] { readiness_.OnFleetChange(); });
}

// A client may have left, and its exchange with it, while its body is still being prepared with our model.
Gateway::~Gateway() { loop_->FinishOffloaded(); }

FlowEnvironment Gateway::Environment() {
  return {.options = &options_,
          .loop = loop_,
          .workers = workers_.get(),
          .fleet = &fleet_,
          .queue = &queue_,
          .prefixes = &prefixes_,
          .metrics = &metrics_};
}

StatusOr<std::unique_ptr<Gateway>> Gateway::Create(const GatewayOptions& options, ServedModel model, AsioLoop* loop) {
  std::unique_ptr<Gateway> gateway(new Gateway(options, std::move(model), loop));
  SLUICE_ASSIGN_OR_RETURN(gateway->server_, HttpServer::Create(gateway->options_, loop, &gateway->service_));
  gateway->service_.SetServer(gateway->server_.get());
  return gateway;
}

void Gateway::Drain() {
  if (drain_timer_ != nullptr) return;
  spdlog::info("draining: {} requests run, for at most {} ms", server_->exchanges(), options_.drain_ms);
  drain_until_ = loop_->Now() + absl::Milliseconds(options_.drain_ms);
  service_.Drain();
  server_->Drain();
  CheckDrained();
}

void Gateway::CheckDrained() {
  if (server_->exchanges() == 0 || loop_->Now() >= drain_until_) return loop_->Stop();
  drain_timer_ = loop_->After(kDrainPoll, [this] { CheckDrained(); });
}

}  // namespace sluice
