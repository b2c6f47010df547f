// Between protos and the plain structs that the code works with.
#pragma once

#include "common/cache_policy.h"
#include "common/proto/cache_policy.pb.h"
#include "common/proto/sampling.pb.h"
#include "common/sampling_params.h"

namespace sluice {

proto::SamplingParams ToProto(const SamplingParams& params);
// Takes any values: whoever acts on them calls Validate().
SamplingParams FromProto(const proto::SamplingParams& message);

proto::CachePolicySpec ToProto(const CachePolicySpec& spec);
proto::CachePolicy ToProto(const CachePolicy& policy);
// InvalidArgument for an unknown kind, or what Validate says of the numbers.
StatusOr<CachePolicySpec> FromProto(const proto::CachePolicySpec& message);
StatusOr<CachePolicy> FromProto(const proto::CachePolicy& message);

}  // namespace sluice
