#include <algorithm>

#include "common/dtype.h"
#include "kernels/codec/codecs.h"
#include "kernels/codec/float16.h"
#include "kernels/portable_kernels.h"

namespace sluice {

void ToF16Portable(const float* x, int64_t n, uint16_t* out) { std::transform(x, x + n, out, F32ToF16); }
void FromF16Portable(const uint16_t* in, int64_t n, float* x) { std::transform(in, in + n, x, F16ToF32); }

namespace {

struct F16Format {
  static constexpr uint32_t kLargestBits = 0x477FE000u;  // 65504
  static constexpr uint16_t kInfinity = 0x7C00;
  static constexpr auto kEncode = &CodecKernels::to_f16;
  static constexpr auto kDecode = &CodecKernels::from_f16;
};

}  // namespace

const KvCodecInfo kF16Codec = Float16Codec<F16Format>::Info(KvCodec::kF16, "f16", 3);

}  // namespace sluice
