// Eight lanes of AVX2 with FMA, and every kernel that is written over lanes, compiled for them.
#include "kernels/simd_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "kernels/attention_simd.h"
#include "kernels/codec_simd.h"
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

  static F LoadF16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  // As F32ToF16 of common/dtype.h: the instruction would make infinities of large finite values.
  static void StoreF16(uint16_t* p, F x) {
    const F infinity = Set(__builtin_inff());
    const F magnitude = _mm256_andnot_ps(Set(-0.0f), x);
    F c = Max(Min(x, Set(65504.0f)), Set(-65504.0f));
    c = _mm256_blendv_ps(c, x, _mm256_cmp_ps(magnitude, infinity, _CMP_EQ_OQ));
    c = _mm256_blendv_ps(c, Set(__builtin_nanf("")), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(c, _MM_FROUND_TO_NEAREST_INT));
  }

  // The low bytes of eight words.
  static void StoreLowBytes(void* p, __m256i x) {
    const __m256i bytes =
        _mm256_shuffle_epi8(x, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8,
                                                12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), both);
  }
  static __m128i LoadBytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

  static F LoadInt8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(LoadBytes(p))); }
  static void StoreInt8(int8_t* p, F x) { StoreLowBytes(p, _mm256_cvtps_epi32(x)); }

  // Codes are the upper bits of an f16 2^8 times smaller, but for those of NaN.
  static F LoadSmallFp8(const uint8_t* p) {
    const __m128i codes = _mm_cvtepu8_epi16(LoadBytes(p));
    const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7c00));
    const __m128i sign = _mm_and_si128(_mm_slli_epi16(codes, 8), _mm_set1_epi16(INT16_MIN));
    return _mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), nan), sign));
  }
  static F LoadFp8(const uint8_t* p) { return Mul(LoadSmallFp8(p), Set(256.0f)); }
  // As F32ToE4m3 of common/dtype.h. Adding 2^14 rounds to multiples of 2^-9, the step of the subnormal codes.
  static void StoreFp8(uint8_t* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MAX));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(0x7ffff - 0x3c000000));
    const __m256i normal = _mm256_min_epi32(_mm256_srai_epi32(up, 20), _mm256_set1_epi32(0x7e));
    const F steps = Add(_mm256_castsi256_ps(magnitude), Set(0x1p14f));
    const __m256i tiny = _mm256_sub_epi32(_mm256_castps_si256(steps), _mm256_set1_epi32(0x46800000));
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude);
    __m256i code = _mm256_blendv_epi8(normal, tiny, is_tiny);
    code = _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    StoreLowBytes(p, _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), nan));
  }

  // The nibbles of eight bytes from bit `shift` on, less 8.
  static F LoadNibbles(const uint8_t* p, int shift) {
    const __m256i nibbles =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_cvtepu8_epi32(LoadBytes(p)), shift), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(nibbles, _mm256_set1_epi32(8)));
  }
  // Each rounded to a whole number of [-8, 7].
  static void StoreNibbles(uint8_t* p, F low, F high) {
    const auto nibble = [](F x) {
      const F bounded = Min(Max(x, Set(-8.0f)), Set(7.0f));
      return _mm256_add_epi32(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(8));
    };
    StoreLowBytes(p, _mm256_or_si256(nibble(low), _mm256_slli_epi32(nibble(high), 4)));
  }

  // Words, which F carries as bits. Of a word's bytes 0 .. 3 the even or the odd ones as two signed halves; of its
  // nibbles those at `shift` and `shift` + 16.
  static F SetWord(uint32_t x) { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(x))); }
  static F AddWords(F a, F b) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static F WordsToF32(F x) { return _mm256_cvtepi32_ps(_mm256_castps_si256(x)); }
  static F EvenBytes(F x) {
    return _mm256_castsi256_ps(_mm256_srai_epi16(_mm256_slli_epi16(_mm256_castps_si256(x), 8), 8));
  }
  static F OddBytes(F x) { return _mm256_castsi256_ps(_mm256_srai_epi16(_mm256_castps_si256(x), 8)); }
  static F NibblePairs(F x, int shift) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), shift), _mm256_set1_epi32(0x000f000f)));
  }
  // Bytes only with 16-bit sums that saturate: so pairs.
  static constexpr bool kDotsBytes = false;
  // sum + a's halves times b's.
  static F DotPairs(F sum, F a, F b) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(sum), _mm256_madd_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b))));
  }
  // Of each four rounded x the pairs (0, 2) and (1, 3).
  static void StorePairs(int32_t* p, F x) {
    const __m256i words = _mm256_cvtps_epi32(x);
    const __m256i others = _mm256_slli_epi32(_mm256_shuffle_epi32(words, 0x4e), 16);
    const __m256i pairs = _mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi32(0xffff)), others);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08)));
  }
  static F SetF16(uint16_t x) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(x))); }

  // Largest magnitudes as bits, of floats and of 16-bit floats in pairs.
  static F MaxMagnitude(F max, F x) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(INT32_MAX));
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(max), magnitude));
  }
  static uint32_t ReduceMaxBits(F x) {
    const __m256i all = _mm256_castps_si256(x);
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(s));
  }
  static uint32_t WhereMagnitude(F x, uint32_t bits) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(INT32_MAX));
    const __m256i equal = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(bits)));
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal)));
  }
  static F MaxMagnitude16(F max, F x) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi16(INT16_MAX));
    return _mm256_castsi256_ps(_mm256_max_epi16(_mm256_castps_si256(max), magnitude));
  }
  static uint32_t ReduceMaxPairs(F x) {
    const __m256i all = _mm256_castps_si256(x);
    __m128i s = _mm_max_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    s = _mm_max_epi16(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi16(s, _mm_shuffle_epi32(s, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(s));
  }

  // Walsh-Hadamard stages 1, 2 and 4: the lane that is h away plus or minus the own, a product with 1 or -1 being
  // exact.
  static F RotateWithin(F x) {
    x = Fma(x, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), _mm256_permute_ps(x, 0xb1));
    x = Fma(x, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1), _mm256_permute_ps(x, 0x4e));
    return Fma(x, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1), _mm256_permute2f128_ps(x, x, 0x01));
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

constexpr SimdKernels kKernels = {WeighKeys<Avx2>,  SumValues<Avx2>, SumColumns<Avx2>, MergeSpan<Avx2>,
                                  RmsNormRow<Avx2>, RopeHead<Avx2>,  SiluMulRow<Avx2>, CodecKernelsOf<Avx2>()};

}  // namespace

const SimdKernels* Avx2Kernels() { return &kKernels; }

}  // namespace sluice

#else

namespace sluice {
const SimdKernels* Avx2Kernels() { return nullptr; }
}  // namespace sluice

#endif
