// The transport between processes and machines: UCX active messages, from memory to landing by rendezvous where they
// are large, over whatever UCX finds (RDMA or TCP). The published port is a TCP listener of our own, where peers prove
// that they know the key and exchange hellos and UCX's addresses. The rejected choice is UCX's own listener: its
// socket protocol trusts the lengths that a stranger sends, so that garbage on the port could crash the process.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace sluice {

// Unavailable where the address cannot be listened on; FailedPrecondition or Unavailable where UCX does not start.
StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportOptions& options, Receiver* receiver);

}  // namespace sluice
