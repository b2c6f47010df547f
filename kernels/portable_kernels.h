// The plain references behind the table of simd_kernels.h, each defined in its stem's .cc: the specification in code.
#pragma once

#include "kernels/simd_kernels.h"

namespace sluice {

// In attention_portable.cc.
void WeighKeysPortable(const AttentionSpan& span);
void SumValuesPortable(const AttentionSpan& span);
void SumColumnsPortable(const AttentionColumns& columns);
void MergeSpanPortable(const AttentionMerge& merge);
void RmsNormRowPortable(const float* x, const float* weight, int64_t size, float eps, float* out);    // rms_norm.cc
void RopeHeadPortable(float* x, const float* cos, const float* sin, int head_dim, bool interleaved);  // rope.cc
void SiluMulRowPortable(const float* gate, const float* up, int64_t size, float* out);                // activation.cc

// In codec/, each in the file of its codec; magnitudes in codec/magnitude.cc, the rotation in codec/hadamard.cc.
uint32_t MaxMagnitudePortable(const float* x, int64_t n);
uint16_t MaxMagnitude16Portable(const uint16_t* x, int64_t n);
void ToBf16Portable(const float* x, int64_t n, uint16_t* out);
void FromBf16Portable(const uint16_t* in, int64_t n, float* x);
void ToF16Portable(const float* x, int64_t n, uint16_t* out);
void FromF16Portable(const uint16_t* in, int64_t n, float* x);
void RotatePortable(const float* x, int n, int block, float* y);
void ToFp8Portable(const float* x, int n, float factor, uint8_t* codes);
void FromFp8Portable(const uint8_t* codes, int n, float scale, float* x);
void ToInt8Portable(const float* x, int n, float factor, int8_t* codes);
void FromInt8Portable(const int8_t* codes, int n, float scale, float* x);
void ToInt4Portable(const float* x, int groups, uint8_t* codes, uint16_t* scales);
void FromInt4Portable(const uint8_t* codes, int groups, const uint16_t* scales, float* x);

}  // namespace sluice
