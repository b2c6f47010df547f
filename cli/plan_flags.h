// What the flags of `sluice plan` spell: shapes and rates. A text that cannot be read is InvalidArgument with
// the text and what was expected.
#pragma once

#include <string>

#include "common/status.h"
#include "model/kv_plan.h"

namespace sluice {

// "layers=80,heads=64,kv_heads=8,head_dim=128", or "layers=27,heads=16,latent=512,rope_dim=64" and, where the size of
// expanded heads is wanted, "nope_dim=128,value_dim=128". The result has passed Validate.
StatusOr<PlannedModel> ParseShape(const std::string& text);
// "10Gbit/s", "2.5MB/s", "1GiB/s" in bytes a second.
StatusOr<double> ParseLinkRate(const std::string& text);

}  // namespace sluice
