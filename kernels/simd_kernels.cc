#include "kernels/simd_kernels.h"

#include "kernels/isa.h"
#include "kernels/portable_kernels.h"

namespace sluice {

const SimdKernels* PortableKernels() {
  static constexpr SimdKernels kernels = {WeighKeysPortable,
                                          SumValuesPortable,
                                          SumColumnsPortable,
                                          MergeSpanPortable,
                                          RmsNormRowPortable,
                                          RopeHeadPortable,
                                          SiluMulRowPortable,
                                          {.max_magnitude = MaxMagnitudePortable,
                                           .max_magnitude_16 = MaxMagnitude16Portable,
                                           .to_bf16 = ToBf16Portable,
                                           .from_bf16 = FromBf16Portable,
                                           .to_f16 = ToF16Portable,
                                           .from_f16 = FromF16Portable,
                                           .rotate = RotatePortable,
                                           .to_fp8 = ToFp8Portable,
                                           .from_fp8 = FromFp8Portable,
                                           .to_int8 = ToInt8Portable,
                                           .from_int8 = FromInt8Portable,
                                           .to_int4 = ToInt4Portable,
                                           .from_int4 = FromInt4Portable}};
  return &kernels;
}

const SimdKernels& ActiveKernels() {
  switch (ActiveIsa()) {
    case Isa::kAvx2:
      return *Avx2Kernels();
    case Isa::kAvx512:
      return *Avx512Kernels();
    case Isa::kPortable:
      break;
  }
  return *PortableKernels();
}

}  // namespace sluice
