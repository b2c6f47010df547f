// The flags of the processes of a service, each a field of that process's options.
#pragma once

#include "CLI/App.hpp"
#include "decode/options.h"
#include "gateway/options.h"
#include "prefill/options.h"

namespace sluice {

void AddPrefillFlags(CLI::App& app, PrefillOptions* options);
void AddDecodeFlags(CLI::App& app, DecodeOptions* options);
void AddGatewayFlags(CLI::App& app, GatewayOptions* options);

}  // namespace sluice
