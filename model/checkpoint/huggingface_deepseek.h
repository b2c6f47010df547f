// What config.json of DeepSeek-V2 and V3 says beyond what all architectures have: latent attention, the mixture of
// experts, FP8 weights. Defaults are those of transformers' DeepseekV2Config and DeepseekV3Config.
#pragma once

#include "model/checkpoint/config.h"
#include "model/checkpoint/json_text.h"

namespace sluice {

// Read after sizes and rope. InvalidArgument names file, field and value.
Status ReadDeepSeekV2(const JsonFields& fields, ModelConfig& config);
Status ReadDeepSeekV3(const JsonFields& fields, ModelConfig& config);

}  // namespace sluice
