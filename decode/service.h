// The gRPC face of a decode process: converts and enqueues for the engine thread. Holds no state but that of open
// Generate calls.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/status.h"
#include "decode/worker.h"

namespace sluice::decode {

// A running gRPC server. The destructor ends open calls at once.
class Service {
 public:
  // Unavailable where the address cannot be listened on. `worker` outlives it, and has stopped when it is destroyed:
  // only then is every call answered.
  static StatusOr<std::unique_ptr<Service>> Create(const std::string& listen, Worker* worker);
  virtual ~Service() = default;

  virtual const std::string& address() const = 0;  // with the real port
  // No new calls; those that run may end until `deadline`, then they are cancelled. Blocks.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace sluice::decode
