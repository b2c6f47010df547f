#include "gateway/readiness.h"

#include "common/rng.h"
#include "spdlog/spdlog.h"

namespace sluice {

class Readiness::Canary final : public FlowClient {
 public:
  Canary(Readiness* readiness, uint64_t id)
      : readiness_(readiness), flow_(readiness->env_, Request(*readiness->env_.options, id), this) {}
  void Start() { flow_.Start(); }

  bool OnEvent(const proto::GenerateEvent&) override { return true; }
  void OnRestart() override {}
  void OnDone(const proto::GenerateEvent&) override { Report(absl::OkStatus()); }
  void OnFailed(const Status& status, absl::Duration) override { Report(status); }
  bool committed() const override { return false; }

 private:
  static FlowRequest Request(const GatewayOptions& options, uint64_t id) {
    FlowRequest request;
    request.id = id;
    request.prompt_ids = {0};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.sampling.ignore_eos = true;
    request.timeout = absl::Milliseconds(options.canary_timeout_ms);
    request.canary = true;
    return request;
  }

  // Later, since whoever hears it destroys the flow.
  void Report(const Status& status) {
    later_ = readiness_->env_.loop->After(absl::ZeroDuration(),
                                          [readiness = readiness_, status] { readiness->OnProbed(status); });
  }

  Readiness* const readiness_;
  std::unique_ptr<EventLoop::Timer> later_;
  RequestFlow flow_;
};

Readiness::Readiness(const FlowEnvironment& environment) : env_(environment) { Probe(); }
Readiness::~Readiness() = default;

void Readiness::NoteServed() {
  served_ = env_.loop->Now();
  proven_ = true;
}

void Readiness::Probe() {
  started_ = env_.loop->Now();
  // Without workers there is nothing to probe; the fleet's change brings the next one.
  if (env_.fleet->NotReadyReason().empty()) {
    canary_ = std::make_unique<Canary>(this, RandomBits(absl::ToUnixNanos(env_.loop->Now()), ++probes_));
    canary_->Start();
  }
  next_ = env_.loop->After(absl::Milliseconds(env_.options->canary_period_ms), [this] {
    if (canary_ == nullptr) Probe();
  });
}

void Readiness::OnProbed(const Status& status) {
  const bool was_ready = NotReadyReason().empty();
  Judge(status);
  canary_.reset();
  const bool ready = NotReadyReason().empty();
  if (ready && !was_ready) spdlog::info("ready");
  if (!ready && was_ready) spdlog::warn("not ready: {}", NotReadyReason());
  if (again_) {
    again_ = false;
    return Probe();
  }
  next_ = env_.loop->After(absl::Milliseconds(env_.options->canary_period_ms), [this] { Probe(); });
}

void Readiness::Judge(const Status& status) {
  if (status.ok()) {
    env_.metrics->CountCanary("ok");
    return NoteServed();
  }
  failure_ = status;
  if (absl::IsResourceExhausted(status)) {
    // A full cache is not a broken path; whether requests come through shows in those that hold it. They may do so for
    // long without a first token, where some are parked.
    env_.metrics->CountCanary("full");
    const absl::Time now = env_.loop->Now();
    if (proven_ && now - tokens_ < absl::Milliseconds(env_.options->canary_period_ms)) served_ = now;
  } else if (absl::IsDeadlineExceeded(status) && env_.fleet->prefill_progress() > started_) {
    // Nor is a canary that stands in a queue behind long prompts, as long as that queue moves.
    env_.metrics->CountCanary("busy");
    if (proven_) served_ = env_.loop->Now();
  } else {
    env_.metrics->CountCanary("failed");
    failed_ = env_.loop->Now();
  }
}

void Readiness::OnFleetChange() {
  if (canary_ != nullptr) {
    again_ = true;
  } else {
    Probe();
  }
}

std::string Readiness::NotReadyReason() const {
  const std::string fleet = env_.fleet->NotReadyReason();
  if (!fleet.empty()) return fleet;
  // Two periods and a timeout: one canary may be late, or find the cache full.
  const absl::Duration window =
      absl::Milliseconds(2 * int64_t{env_.options->canary_period_ms} + env_.options->canary_timeout_ms);
  if (served_ > failed_ && env_.loop->Now() - served_ < window) return "";
  return absl::StrCat("the canary fails: ", failure_.message());
}

}  // namespace sluice
