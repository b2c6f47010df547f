// Sixteen lanes of AVX-512, and every kernel that is written over lanes, compiled for them.
#include "kernels/simd_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512VNNI__)

#include <immintrin.h>

#include "kernels/attention_simd.h"
#include "kernels/codec_simd.h"
#include "kernels/elementwise_simd.h"

namespace sluice {
namespace {

struct Avx512 {
  static constexpr int kWidth = 16;
  // Rows that share a pass: as many accumulators as 32 registers hold.
  static constexpr int kScoreRows = 12;
  static constexpr int kValueRows = 6;
  using F = __m512;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }  // b where either is NaN
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static float First(F x) { return _mm512_cvtss_f32(x); }

  static __mmask16 FirstMask(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  // The first n lanes, the others zero; memory beyond them is not read.
  static F LoadFirst(const float* p, int n) { return _mm512_maskz_loadu_ps(FirstMask(n), p); }
  static void StoreFirst(float* p, int n, F x) { _mm512_mask_storeu_ps(p, FirstMask(n), x); }
  static F LoadWords(const void* p, int n) { return _mm512_maskz_loadu_ps(FirstMask(n), p); }
  static F KeepFirst(F x, int n, F others) { return _mm512_mask_mov_ps(others, FirstMask(n), x); }

  static F LowHalfToF32(F x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16)); }
  static F HighHalfToF32(F x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(~0xffff)));
  }
  static F LoadBf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  // To nearest even; finite values saturate, NaN becomes 7FC0: as F32ToBf16 of common/dtype.h. (The instruction for it
  // flushes subnormals, and is absent from the first machines with AVX-512.)
  static void StoreBf16(uint16_t* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
    const __m512i magnitude = _mm512_xor_si512(bits, sign);
    const __m512i infinity = _mm512_set1_epi32(0x7f800000);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(magnitude, _mm512_set1_epi32(0x7fff)), odd), 16);
    __m512i r = _mm512_min_epi32(rounded, _mm512_set1_epi32(0x7f7f));
    r = _mm512_mask_mov_epi32(r, _mm512_cmpeq_epi32_mask(magnitude, infinity), _mm512_set1_epi32(0x7f80));
    r = _mm512_or_si512(r, _mm512_srli_epi32(sign, 16));
    r = _mm512_mask_mov_epi32(r, _mm512_cmpgt_epi32_mask(magnitude, infinity), _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
  }

  static F LoadF16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // As F32ToF16 of common/dtype.h: the instruction would make infinities of large finite values.
  static void StoreF16(uint16_t* p, F x) {
    const F bounded = Max(Min(x, Set(65504.0f)), Set(-65504.0f));
    const F magnitude = _mm512_abs_ps(x);
    F c = _mm512_mask_mov_ps(bounded, _mm512_cmp_ps_mask(magnitude, Set(__builtin_inff()), _CMP_EQ_OQ), x);
    c = _mm512_mask_mov_ps(c, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), Set(__builtin_nanf("")));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(c, _MM_FROUND_TO_NEAREST_INT));
  }

  static void StoreLowBytes(void* p, __m512i x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }
  static __m128i LoadBytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

  static F LoadInt8(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(LoadBytes(p))); }
  static void StoreInt8(int8_t* p, F x) { StoreLowBytes(p, _mm512_cvtps_epi32(x)); }

  // Codes are the upper bits of an f16 2^8 times smaller, but for those of NaN.
  static F LoadSmallFp8(const uint8_t* p) {
    const __m256i codes = _mm256_cvtepu8_epi16(LoadBytes(p));
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(codes, 8), _mm256_set1_epi16(INT16_MIN));
    const __m256i finite = _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(finite, nan, _mm256_set1_epi16(0x7e00)));
  }
  static F LoadFp8(const uint8_t* p) { return Mul(LoadSmallFp8(p), Set(256.0f)); }
  // As F32ToE4m3 of common/dtype.h. Adding 2^14 rounds to multiples of 2^-9, the step of the subnormal codes.
  static void StoreFp8(uint8_t* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(magnitude, odd), _mm512_set1_epi32(0x7ffff - 0x3c000000));
    const __m512i normal = _mm512_min_epi32(_mm512_srai_epi32(up, 20), _mm512_set1_epi32(0x7e));
    const F steps = Add(_mm512_castsi512_ps(magnitude), Set(0x1p14f));
    const __m512i tiny = _mm512_sub_epi32(_mm512_castps_si512(steps), _mm512_set1_epi32(0x46800000));
    const __mmask16 is_tiny = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x3c800000));
    __m512i code = _mm512_mask_mov_epi32(normal, is_tiny, tiny);
    code = _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80)));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    StoreLowBytes(p, _mm512_mask_mov_epi32(code, nan, _mm512_set1_epi32(0x7f)));
  }

  // The nibbles of sixteen bytes from bit `shift` on, less 8.
  static F LoadNibbles(const uint8_t* p, int shift) {
    const __m512i words = _mm512_srli_epi32(_mm512_cvtepu8_epi32(LoadBytes(p)), static_cast<unsigned>(shift));
    const __m512i nibbles = _mm512_and_si512(words, _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(nibbles, _mm512_set1_epi32(8)));
  }
  // Each rounded to a whole number of [-8, 7].
  static void StoreNibbles(uint8_t* p, F low, F high) {
    const auto nibble = [](F x) {
      const F bounded = Min(Max(x, Set(-8.0f)), Set(7.0f));
      return _mm512_add_epi32(_mm512_cvtps_epi32(bounded), _mm512_set1_epi32(8));
    };
    StoreLowBytes(p, _mm512_or_si512(nibble(low), _mm512_slli_epi32(nibble(high), 4)));
  }

  // Words, which F carries as bits.
  static F SetWord(uint32_t x) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x))); }
  static F AddWords(F a, F b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F XorWords(F a, F b) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F ShiftWordsLeft(F x, unsigned bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), bits));
  }
  static F WordsToF32(F x) { return _mm512_cvtepi32_ps(_mm512_castps_si512(x)); }
  static F RoundToWords(F x) { return _mm512_castsi512_ps(_mm512_cvtps_epi32(x)); }
  // Of each byte the four bits at `shift`.
  static F NibbleBytes(F x, unsigned shift) {
    const __m512i words = _mm512_srli_epi32(_mm512_castps_si512(x), shift);
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0x0f0f0f0f)));
  }

  // Four products a word: sum + a's bytes, which have no sign, times b's, which do.
  static constexpr bool kDotsBytes = true;
  // Written out: around the intrinsic GCC 12 copies sums from register to register.
  static F DotBytes(F sum, F a, F b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
  // Words of 16 bits as signed bytes, the low ones and the high ones of four words by turns.
  static void StoreHalves(int32_t* p, F x) {
    const __m512i words = _mm512_castps_si512(x);
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(words, _mm512_set1_epi32(128)), 8);
    const __m128i l = _mm512_cvtepi32_epi8(words);
    const __m128i h = _mm512_cvtepi32_epi8(high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(l, h));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + 1, _mm_unpackhi_epi32(l, h));
  }
  // Words of 24 bits as bytes: all low ones, all middle ones, all high ones.
  static void StoreByteThirds(float* p, F x) {
    // Bytes of four words together, then of all.
    const __m512i fours = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    const __m512i together = _mm512_shuffle_epi8(_mm512_castps_si512(x), fours);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, together));
  }
  // Bytes, and pairs of them, of a and b by turns, from the lower or the upper half of each 128 bits.
  static F InterleaveLowBytes(F a, F b) {
    return _mm512_castsi512_ps(_mm512_unpacklo_epi8(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F InterleaveHighBytes(F a, F b) {
    return _mm512_castsi512_ps(_mm512_unpackhi_epi8(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F InterleaveLowPairs(F a, F b) {
    return _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F InterleaveHighPairs(F a, F b) {
    return _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F SetF16(uint16_t x) { return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(x))); }

  // Largest magnitudes as bits, of floats and of 16-bit floats in pairs.
  static F MaxMagnitude(F max, F x) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MAX));
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(max), magnitude));
  }
  static uint32_t ReduceMaxBits(F x) {
    const __m512i all = _mm512_castps_si512(x);
    const __m256i h = _mm256_max_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(s));
  }
  static uint32_t WhereMagnitude(F x, uint32_t bits) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MAX));
    return _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(bits)));
  }
  static F MaxMagnitude16(F max, F x) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi16(INT16_MAX));
    return _mm512_castsi512_ps(_mm512_max_epi16(_mm512_castps_si512(max), magnitude));
  }
  static uint32_t ReduceMaxPairs(F x) {
    const __m512i all = _mm512_castps_si512(x);
    const __m256i h = _mm256_max_epi16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i s = _mm_max_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    s = _mm_max_epi16(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi16(s, _mm_shuffle_epi32(s, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(s));
  }

  // Walsh-Hadamard stages 1, 2, 4 and 8: the lane that is h away plus or minus the own, a product with 1 or -1 being
  // exact.
  static F RotateWithin(F x) {
    const F signs1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const F signs2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const F signs4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const F signs8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    x = Fma(x, signs1, _mm512_permute_ps(x, 0xb1));
    x = Fma(x, signs2, _mm512_permute_ps(x, 0x4e));
    x = Fma(x, signs4, _mm512_shuffle_f32x4(x, x, 0xb1));
    return Fma(x, signs8, _mm512_shuffle_f32x4(x, x, 0x4e));
  }

  static F SwapPairs(F x) { return _mm512_permute_ps(x, 0xb1); }
  static F ScaleByPowerOfTwo(F x, F n) { return _mm512_scalef_ps(x, n); }
  static F ZeroWhereLess(F x, F a, F b) {
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), _mm512_setzero_ps());
  }

  static __m256 Upper(F x) { return _mm512_extractf32x8_ps(x, 1); }
  static float ReduceAdd(F x) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), Upper(x));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float ReduceMax(F x) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), Upper(x));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static void Transpose(F (&r)[kWidth]) {
    F t[kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    F u[kWidth];
#pragma GCC unroll 4
    for (int i = 0; i < kWidth; i += 4) {
      u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
      u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    // u[4 a + j] now holds, in its 128-bit part b, column 4 b + j of rows 4 a .. 4 a + 3.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F p = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x44);       // parts 0, 1 of a = 0, then of a = 1
      const F q = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x44);  // the same of a = 2 and 3
      const F v = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xee);       // parts 2, 3
      const F w = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xee);
      r[j] = _mm512_shuffle_f32x4(p, q, 0x88);
      r[4 + j] = _mm512_shuffle_f32x4(p, q, 0xdd);
      r[8 + j] = _mm512_shuffle_f32x4(v, w, 0x88);
      r[12 + j] = _mm512_shuffle_f32x4(v, w, 0xdd);
    }
  }
};

constexpr SimdKernels kKernels = {WeighKeys<Avx512>,  SumValues<Avx512>, SumColumns<Avx512>, MergeSpan<Avx512>,
                                  RmsNormRow<Avx512>, RopeHead<Avx512>,  SiluMulRow<Avx512>, CodecKernelsOf<Avx512>()};

}  // namespace

const SimdKernels* Avx512Kernels() { return &kKernels; }

}  // namespace sluice

#else

namespace sluice {
const SimdKernels* Avx512Kernels() { return nullptr; }
}  // namespace sluice

#endif
