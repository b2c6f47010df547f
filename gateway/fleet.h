// What the gateway knows of its workers: it asks each for its status on a timer of its own, with a deadline, and tells
// those who listen when one is lost. Lives on the loop's thread.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "gateway/event_loop.h"
#include "gateway/options.h"
#include "gateway/promised_load.h"
#include "gateway/router.h"
#include "gateway/workers.h"

namespace sluice {

// What a worker must have to serve the gateway's model.
struct FleetModel {
  std::string model_hash;
  int vocab_size = 0;
  int64_t context_tokens_max = 0;
};

class Fleet {
 public:
  // A listener; destroying it ends the calls.
  class Subscription {
   public:
    virtual ~Subscription() = default;
  };
  // `worker` has restarted, or has been silent for worker_lost_ms: nothing that it was doing will be finished.
  using OnLost = std::function<void(WorkerRef worker, const Status& why)>;

  // All outlive it. Starts asking at once.
  Fleet(const GatewayOptions* options, EventLoop* loop, Workers* workers, FleetModel model);
  ~Fleet();

  FleetSnapshot snapshot() const;
  // Empty where some prefill and some decode worker take work and fit each other; otherwise why none do.
  std::string NotReadyReason() const;
  // The model's, or less where workers take less.
  int64_t context_tokens_max() const;
  // The cache policies of decode workers that take work, of requests that name none; each once.
  std::vector<CachePolicySpec> decode_policies() const;

  // When a report last showed that some prefill worker had computed since the one before.
  absl::Time prefill_progress() const { return prefill_progress_; }

  // Decode is asked for a request's pages. They count against it until a report must contain them.
  void PromisePages(int decode, const RequestShape& shape);
  // Prefill is going to be given `tokens` to compute. They count until what is returned is gone or, once they were
  // sent, until a report must contain them.
  std::unique_ptr<PromisedLoad::Hold> PromisePrefill(int prefill, int64_t tokens);
  // Asks for a worker's status now instead of when its time comes.
  void Refresh(WorkerRef worker);
  // A request failed because of `worker`, which others are preferred to for a while: 0.5 s, doubled up to 30 s with
  // each failure in a row. Its status is asked at once.
  void ReportFailure(WorkerRef worker);
  void ReportSuccess(WorkerRef worker);

  std::unique_ptr<Subscription> Listen(OnLost listener);
  // Called whenever a worker comes, goes or changes what it says about taking work.
  void SetOnChange(std::function<void()> on_change) { on_change_ = std::move(on_change); }
  // Called after each answer of a worker, and after each question that got none.
  void SetOnReport(std::function<void()> on_report) { on_report_ = std::move(on_report); }

 private:
  struct Worker;
  class Listener;

  void Ask(Worker& worker);
  void OnAnswer(Worker& worker, const StatusOr<proto::WorkerStatus>& answer);
  void OnStatus(Worker& worker, const proto::WorkerStatus& status);
  void OnSilence(Worker& worker, const Status& error);
  void Lose(Worker& worker, const Status& why);
  std::string WhyUnusable(const Worker& worker, const proto::WorkerStatus& status) const;
  WorkerSnapshot Snapshot(const Worker& worker) const;
  Worker& at(WorkerRef ref);

  const GatewayOptions* const options_;
  EventLoop* const loop_;
  Workers* const calls_;
  const FleetModel model_;
  std::vector<std::unique_ptr<Worker>> prefill_;
  std::vector<std::unique_ptr<Worker>> decode_;
  std::list<Listener*> listeners_;
  std::function<void()> on_change_;
  std::function<void()> on_report_;
  absl::Time prefill_progress_ = absl::InfinitePast();
};

}  // namespace sluice
