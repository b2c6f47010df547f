// A whole prefill process: loads the model, serves until it is told to leave, and drains.
#pragma once

#include "common/status.h"
#include "prefill/options.h"

namespace sluice {

// Returns after SIGTERM or SIGINT and a bounded drain, or with the error that kept it from serving. Takes both signals
// for the whole process, so it is called before other threads are started.
Status RunPrefill(const PrefillOptions& options);

}  // namespace sluice
