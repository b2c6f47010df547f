// What a cache policy keeps, as pure functions of positions and attention weights. Candidates rank by score, the higher
// first; of equal ones the lower position stays.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/cache_policy.h"

namespace sluice {

// Positions of a prompt of `tokens` tokens that one list keeps, ascending. `scores`, where the policy ranks, has a
// value for each of them: the sum over the scored queries of the attention weights' mean over the list's query heads. A
// score that is no number ranks last.
std::vector<int32_t> KeepOfPrompt(const CachePolicy& policy, int64_t tokens, absl::Span<const float> scores);

// What snapkv ranks a prompt's tokens before the window by: scores over the number of queries, averaged over `pool`
// neighbours, zero beyond both ends. [tokens - window].
std::vector<float> PooledMeans(const CachePolicy& policy, int64_t tokens, absl::Span<const float> scores);

// The slot whose token leaves after the step of the token at `newest`: of equal scores the later token's. `positions`
// and `scores` are by slot, in any order.
// REQUIRES: bounded(), and one slot more than the budget.
int64_t SlotToLeave(const CachePolicy& policy, absl::Span<const int32_t> positions, absl::Span<const float> scores,
                    int64_t newest);

// sink-window: where the query of the token at `position` is rotated to when it meets a key of a sink. Other keys meet
// it where it is: among themselves, and from it, the window's distances are right as they are.
int64_t SinkQueryPosition(const CachePolicy& policy, int64_t position);

}  // namespace sluice
