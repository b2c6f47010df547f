// The gateway as a process.
#pragma once

#include "gateway/options.h"

namespace sluice {

// Opens the model's tokenizer, listens, serves, and returns after SIGTERM or SIGINT once what ran has finished or
// options.drain_ms are over. Workers may be down at start. Errors: the options, the checkpoint or the address.
Status RunGateway(const GatewayOptions& options);

}  // namespace sluice
