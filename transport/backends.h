// The transports there are, as one visible array. What one cannot do is data here, never a method that refuses.
#pragma once

#include <memory>
#include <string_view>

#include "absl/types/span.h"
#include "transport/transport.h"

namespace sluice {

struct TransportBackend {
  std::string_view name;
  bool crosses_processes;    // and uses network interfaces; else peers live in one process
  bool peers_can_be_silent;  // and are then closed after peer_silence_max
  bool takes_faults;         // for tests only
  StatusOr<std::unique_ptr<Transport>> (*create)(const TransportOptions& options, Receiver* receiver);
};

absl::Span<const TransportBackend> TransportBackends();

// Validates the options and starts the transport. `receiver` outlives it. NotFound names the backends there are.
StatusOr<std::unique_ptr<Transport>> CreateTransport(std::string_view backend, const TransportOptions& options,
                                                     Receiver* receiver);

}  // namespace sluice
