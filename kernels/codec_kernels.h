// What each instruction set implements for the codecs of KV rows, a row or a part of one at a time; the codecs' files
// in codec/ call these and decide about zero, poisoned and saturated rows. The plain forms stand in those files too and
// are the specification. All of them give the same bits.
//
// Included by the files that are compiled for one instruction set: nothing with inline code of the standard library.
#pragma once

#include <stdint.h>

namespace sluice {

struct CodecKernels {
  // The largest magnitude among x as bits: from 7F800000 on there is an infinity or a NaN.
  uint32_t (*max_magnitude)(const float* x, int64_t n);
  // The same among 16-bit floats of either kind.
  uint16_t (*max_magnitude_16)(const uint16_t* x, int64_t n);
  // Rounded as F32ToBf16 and F32ToF16 of common/dtype.h do.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*from_bf16)(const uint16_t* in, int64_t n, float* x);
  void (*to_f16)(const float* x, int64_t n, uint16_t* out);
  void (*from_f16)(const uint16_t* in, int64_t n, float* x);

  // Of rows whose width is a multiple of 16.
  // Walsh-Hadamard of consecutive blocks of `block` elements, a power of two from 16 on that divides n. y may be x.
  void (*rotate)(const float* x, int n, int block, float* y);
  void (*to_fp8)(const float* x, int n, float factor, uint8_t* codes);  // E4M3(x factor)
  void (*from_fp8)(const uint8_t* codes, int n, float scale, float* x);
  void (*to_int8)(const float* x, int n, float factor, int8_t* codes);  // REQUIRES: |x factor| < 127.5, no NaN
  void (*from_int8)(const int8_t* codes, int n, float scale, float* x);
  // Groups of 32: 16 bytes and an f16 scale each. REQUIRES: finite x.
  void (*to_int4)(const float* x, int groups, uint8_t* codes, uint16_t* scales);
  void (*from_int4)(const uint8_t* codes, int groups, const uint16_t* scales, float* x);
};

inline constexpr int kInt4Group = 32;
inline constexpr int kMlaTile = 128;  // channels of a latent that share a scale

}  // namespace sluice
