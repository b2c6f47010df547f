// The gRPC face of a prefill process: converts, checks, and enqueues for the worker. Holds no state of its own, so its
// handlers run on any of gRPC's threads.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"
#include "model/ticket.h"
#include "prefill/admission.h"
#include "prefill/metrics.h"
#include "prefill/worker.h"

namespace sluice::prefill {

struct ServiceOptions {
  std::string listen;
  int request_bytes_max = 0;
  proto::WorkerStatus fixed_status;  // what never changes of GetStatus
  AdmissionLimits limits;
};

// A running gRPC server. The destructor ends open calls at once.
class Service {
 public:
  // Unavailable where the address cannot be listened on. `worker` and the others outlive it.
  static StatusOr<std::unique_ptr<Service>> Create(const ServiceOptions& options, const ClusterKey& key, Worker* worker,
                                                   PrefillMetrics* metrics, const Clock* clock);
  virtual ~Service() = default;

  virtual const std::string& address() const = 0;  // with the real port
  // No new calls; those that run may end until `deadline`, then they are cancelled. Blocks.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace sluice::prefill
