// Which tokens of a prompt were kept and sent, as it travels from prefill to decode with the commit. Only of policies
// that rank: what sink-window keeps follows from the prompt's length.
#pragma once

#include <cstddef>

#include "common/proto/cache_policy.pb.h"
#include "common/status.h"
#include "model/kept_slots.h"

namespace sluice {

// Bytes that no message of a prompt of `prompt_tokens` tokens exceeds.
size_t KeptPromptBytesMax(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens);

// Memory of such a message and of what it is on the wire, at most.
size_t KeptPromptMemoryBytes(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens);

// REQUIRES: FinishPrompt, and no step since.
proto::KeptPrompt ToProto(const KeptSlots& kept, const KvLayout& layout);

// The slots of a prompt whose KV has come, with room for `slots_max`. The message came over a wire: InvalidArgument,
// naming the list and the value, where it has another number of lists, positions or scores than the policy keeps, where
// positions do not ascend within the prompt, where a sink or one of the newest is missing, or a score is no number.
StatusOr<KeptSlots> FromProto(const proto::KeptPrompt& message, const CachePolicy& policy, const KvLayout& layout,
                              int64_t prompt_tokens, int64_t slots_max);

}  // namespace sluice
