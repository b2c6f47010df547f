// The gated activation of a Llama MLP.
#pragma once

#include <cstdint>

namespace sluice {

// out[i] = silu(gate[i]) up[i] with silu(x) = x / (1 + e^-x). `out` may be `gate` or `up`.
void SiluMulRow(const float* gate, const float* up, int64_t size, float* out);

}  // namespace sluice
