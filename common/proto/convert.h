// Between protos and the plain structs that the code works with.
#pragma once

#include "common/proto/sampling.pb.h"
#include "common/sampling_params.h"

namespace sluice {

proto::SamplingParams ToProto(const SamplingParams& params);
// Takes any values: whoever acts on them calls Validate().
SamplingParams FromProto(const proto::SamplingParams& message);

}  // namespace sluice
