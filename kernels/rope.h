// Rotary position embedding (Su et al. 2021) of one head, in either pairing.
#pragma once

#include "absl/types/span.h"

namespace sluice {

// Fills cos and sin, [head_dim] each, for one position: element i is multiplied by cos[i] and gets its partner times
// sin[i], so sin carries the sign of the rotation. Pairs are (i, i + head_dim / 2), or (2i, 2i + 1) if interleaved.
// `frequencies` are the head_dim / 2 angles per position; `magnitude` multiplies both (YaRN; 1 otherwise). Angles are
// computed in double: an f32 angle of some thousand radians is off by 1e-4.
void RopeAngles(absl::Span<const double> frequencies, double magnitude, double position, bool interleaved, float* cos,
                float* sin);

// x[i] = x[i] cos[i] + x[partner(i)] sin[i], in place.
void RopeHead(float* x, const float* cos, const float* sin, int head_dim, bool interleaved);

}  // namespace sluice
