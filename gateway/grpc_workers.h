// Workers over gRPC, through its callback API: no thread waits for a call.
#pragma once

#include "gateway/event_loop.h"
#include "gateway/options.h"
#include "gateway/workers.h"

namespace sluice {

// `loop` outlives it. The destructor gives calls that were abandoned two seconds to end, then cancels them.
std::unique_ptr<Workers> MakeGrpcWorkers(const GatewayOptions& options, EventLoop* loop);

}  // namespace sluice
