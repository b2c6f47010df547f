#include "kernels/simd_kernels.h"

#include "kernels/isa.h"
#include "kernels/portable_kernels.h"

namespace sluice {

const SimdKernels* PortableKernels() {
  static constexpr SimdKernels kernels = {AttendSpanPortable, MergeSpanPortable,  RmsNormRowPortable,
                                          RopeHeadPortable,   SiluMulRowPortable, F32ToBf16RowPortable};
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
