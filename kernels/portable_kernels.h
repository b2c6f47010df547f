// The plain references behind the table of simd_kernels.h, each defined in its stem's .cc: the specification in code.
#pragma once

#include "kernels/simd_kernels.h"

namespace sluice {

void AttendSpanPortable(const AttentionSpan& span);                                                   // attention.cc
void MergeSpanPortable(const AttentionMerge& merge);                                                  // attention.cc
void RmsNormRowPortable(const float* x, const float* weight, int64_t size, float eps, float* out);    // rms_norm.cc
void RopeHeadPortable(float* x, const float* cos, const float* sin, int head_dim, bool interleaved);  // rope.cc
void SiluMulRowPortable(const float* gate, const float* up, int64_t size, float* out);                // activation.cc
void F32ToBf16RowPortable(const float* x, int64_t size, uint16_t* out);                               // convert.cc

}  // namespace sluice
