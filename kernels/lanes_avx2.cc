// Eight lanes of AVX2 with FMA, and every kernel that is written over lanes, compiled for them.
#include "kernels/simd_kernels.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "kernels/attention_simd.h"
#include "kernels/elementwise_simd.h"

namespace sluice {
namespace {

struct Avx2 {
  static constexpr int kWidth = 8;
  // Rows that share a pass: as many accumulators as 16 registers hold.
  static constexpr int kScoreRows = 6;
  static constexpr int kValueRows = 3;
  using F = __m256;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }  // b where either is NaN
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static float First(F x) { return _mm256_cvtss_f32(x); }

  static __m256i FirstMask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // The first n lanes, the others zero; memory beyond them is not read.
  static F LoadFirst(const float* p, int n) { return n == kWidth ? Load(p) : _mm256_maskload_ps(p, FirstMask(n)); }
  static void StoreFirst(float* p, int n, F x) {
    if (n == kWidth) return Store(p, x);
    float lanes[kWidth];  // masked stores are microcoded on some machines
    Store(lanes, x);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static F LoadWords(const void* p, int n) { return LoadFirst(static_cast<const float*>(p), n); }
  static F KeepFirst(F x, int n, F others) { return _mm256_blendv_ps(others, x, _mm256_castsi256_ps(FirstMask(n))); }

  static F LowHalfToF32(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16)); }
  static F HighHalfToF32(F x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(~0xffff))); }
  static F LoadBf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // To nearest even; finite values saturate, NaN becomes 7FC0: as F32ToBf16 of common/dtype.h.
  static void StoreBf16(uint16_t* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN));
    const __m256i magnitude = _mm256_xor_si256(bits, sign);
    const __m256i infinity = _mm256_set1_epi32(0x7f800000);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i r = _mm256_min_epi32(rounded, _mm256_set1_epi32(0x7f7f));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7f80), _mm256_cmpeq_epi32(magnitude, infinity));
    r = _mm256_or_si256(r, _mm256_srli_epi32(sign, 16));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), _mm256_cmpgt_epi32(magnitude, infinity));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  static F SwapPairs(F x) { return _mm256_permute_ps(x, 0xb1); }
  static F ScaleByPowerOfTwo(F x, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  static F ZeroWhereLess(F x, F a, F b) { return _mm256_andnot_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), x); }

  static float ReduceAdd(F x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float ReduceMax(F x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static void Transpose(F (&r)[kWidth]) {
    F t[kWidth];
#pragma GCC unroll 4
    for (int i = 0; i < kWidth; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    F u[kWidth];
#pragma GCC unroll 2
    for (int i = 0; i < kWidth; i += 4) {
      u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }
};

constexpr SimdKernels kKernels = {AttendSpan<Avx2>, MergeSpan<Avx2>,  RmsNormRow<Avx2>,
                                  RopeHead<Avx2>,   SiluMulRow<Avx2>, F32ToBf16Row<Avx2>};

}  // namespace

const SimdKernels* Avx2Kernels() { return &kKernels; }

}  // namespace sluice

#else

namespace sluice {
const SimdKernels* Avx2Kernels() { return nullptr; }
}  // namespace sluice

#endif
