// The angles per position of rotary embedding under each scaling: a pure function of the checkpoint's numbers.
#pragma once

#include <vector>

#include "model/checkpoint/config.h"

namespace sluice {

struct RopeFrequencies {
  std::vector<double> per_pair;  // [head_dim / 2], radians per position
  double magnitude = 1.0;        // multiplies cos and sin (YaRN)
};

// Formulas: transformers' modeling_rope_utils.py (linear, llama3, yarn).
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& rope, int head_dim);

// What q k^T is multiplied by: 1 / sqrt(head_dim), in DeepSeek's attention times YaRN's magnitude for mscale_all_dim
// squared (transformers' DeepseekV3Attention).
double AttentionScale(const ModelConfig& config);

// YaRN's 0.1 m ln(factor) + 1, and 1 where nothing is extended (Peng et al. 2023, equation 22).
double YarnMagnitude(double factor, double mscale);

}  // namespace sluice
