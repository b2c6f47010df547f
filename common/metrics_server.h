// Serves a process's metrics over HTTP at /metrics, on threads of its own.
#pragma once

#include <memory>
#include <string>

#include "common/metrics.h"
#include "common/status.h"

namespace sluice {

class MetricsServer {
 public:
  // `listen` is "host:port", port 0 picks one. Unavailable where it cannot be had. Keeps the registry alive.
  static StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& listen, Metrics& metrics);
  virtual ~MetricsServer() = default;

  virtual const std::string& address() const = 0;  // with the real port
};

}  // namespace sluice
