#include <algorithm>

#include "common/dtype.h"
#include "kernels/codec/codecs.h"
#include "kernels/codec/float16.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void ToBf16Portable(const float* x, int64_t n, uint16_t* out) { std::transform(x, x + n, out, F32ToBf16); }
void FromBf16Portable(const uint16_t* in, int64_t n, float* x) { std::transform(in, in + n, x, Bf16ToF32); }

namespace {

struct Bf16Format {
  static constexpr uint32_t kLargestBits = 0x7F7F0000u;
  static constexpr uint16_t kInfinity = 0x7F80;
  static constexpr auto kEncode = &CodecKernels::to_bf16;
  static constexpr auto kDecode = &CodecKernels::from_bf16;
};

}  // namespace

const KvCodecInfo kBf16Codec = Float16Codec<Bf16Format>::Info(KvCodec::kBf16, "bf16", 2);

}  // namespace sluice
