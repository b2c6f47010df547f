// On AVX2. Machines that also have AVX-512 exceed the two arithmetic figures; they stand for what this file says.
#include "tests/bench/limit_loops.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

namespace sluice {

namespace {
constexpr int kChains = 12;     // more than latency times throughput
constexpr int kInt8Chains = 6;  // as many as registers hold with their factors
}  // namespace

void ReadStream(const void* data, size_t bytes) {
  const __m256i* p = static_cast<const __m256i*>(data);
  __m256i sums[4] = {};
  for (size_t i = 0; i + 4 <= bytes / 32; i += 4) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(p + i + j));
  }
  for (__m256i& s : sums) asm volatile("" : "+x"(s));
}

void MultiplyAddF32(int64_t loops) {
  __m256 x = _mm256_set1_ps(0.999f);
  asm volatile("" : "+x"(x));
  __m256 acc[kChains];
#pragma GCC unroll 12
  for (int j = 0; j < kChains; ++j) acc[j] = _mm256_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = _mm256_fmadd_ps(acc[j], x, x);
  }
  __m256 sum = acc[0];
#pragma GCC unroll 12
  for (int j = 1; j < kChains; ++j) sum = _mm256_xor_ps(sum, acc[j]);
  asm volatile("" : "+x"(sum));
}

void MultiplyAddInt8(int64_t loops) {
  __m256i w = _mm256_set1_epi8(3);
  __m256i x[kInt8Chains];
  __m256i acc[kInt8Chains];
  for (int j = 0; j < kInt8Chains; ++j) x[j] = acc[j] = _mm256_set1_epi8(static_cast<char>(j));
  for (int64_t i = 0; i < loops; ++i) {
    asm volatile("" : "+x"(w));  // or the products would be computed once
#pragma GCC unroll 6
    for (int j = 0; j < kInt8Chains; ++j) acc[j] = _mm256_add_epi16(acc[j], _mm256_maddubs_epi16(w, x[j]));
  }
  __m256i sum = acc[0];
#pragma GCC unroll 6
  for (int j = 1; j < kInt8Chains; ++j) sum = _mm256_xor_si256(sum, acc[j]);
  asm volatile("" : "+x"(sum));
}

int64_t F32MacsPerLoop() { return kChains * 8; }
int64_t Int8MacsPerLoop() { return kInt8Chains * 32; }

}  // namespace sluice

#else
#error "the kernel benchmarks need an x86-64 compiler"
#endif
