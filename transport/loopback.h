// The transport within one process: transports find each other by address in a table of the process, and a payload is
// copied into the landing by the receiving transport's thread. For tests and for simulation-like setups; the semantics
// are those of the real ones, except that a peer cannot fall silent.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace sluice {

// AlreadyExists where the address is taken. Port 0 picks a free number; no socket is opened.
StatusOr<std::unique_ptr<Transport>> CreateLoopbackTransport(const TransportOptions& options, Receiver* receiver);

}  // namespace sluice
