// A whole decode process: loads the model, serves until it is told to leave, and drains.
#pragma once

#include "common/status.h"
#include "decode/options.h"

namespace sluice {

// Returns after SIGTERM or SIGINT and a bounded drain, or with the error that kept it from serving. Takes both signals
// for the whole process, so it is called before other threads are started.
Status RunDecode(const DecodeOptions& options);

}  // namespace sluice
