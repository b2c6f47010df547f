// `sluice serve`: one gateway, N prefill and M decode processes on this machine, started and kept running.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"

namespace sluice {

struct ServeOptions {
  std::string model;
  std::string host = "127.0.0.1";  // of the gateway; workers always listen on loopback
  int port = 8080;
  int prefill_processes = 1;              // 1..64
  int decode_processes = 1;               // 1..64
  std::vector<std::string> worker_flags;  // given to every prefill and decode process
  std::vector<std::string> prefill_flags;
  std::vector<std::string> decode_flags;
  std::vector<std::string> gateway_flags;

  Status Validate() const;
};

// Returns after SIGINT or SIGTERM, when all children have stopped. Unavailable where one could not start.
Status RunServe(const ServeOptions& options);

}  // namespace sluice
