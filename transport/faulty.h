// A real transport with faults: a decorator that does to messages what TransportOptions::faults says, as its receiver
// is offered them. For tests. With an empty policy it is the transport that it wraps.
//
// A message that nothing happens to lands where the receiver says, as ever. One that is to be held, changed or doubled
// lands in memory of the decorator and is offered from there, so its sender is told of success before its receiver has
// seen it. Messages are numbered as the real transport offers them, over all connections of the transport.
//
// Threads: what was held comes from a thread of the decorator, all else from that of the real transport; never both at
// once.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace sluice {

using TransportFactory = StatusOr<std::unique_ptr<Transport>> (*)(const TransportOptions& options, Receiver* receiver);

// `real` makes what is wrapped; its errors are this function's. `receiver` outlives the transport.
StatusOr<std::unique_ptr<Transport>> CreateFaultyTransport(TransportFactory real, const TransportOptions& options,
                                                           Receiver* receiver);

}  // namespace sluice
