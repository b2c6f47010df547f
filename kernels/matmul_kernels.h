// What each instruction set implements of the product: matmul_portable.cc is the specification, matmul_avx2.cc and
// matmul_avx512.cc the fast forms. Plain types only, since those files may include nothing with inline code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// 32 activations of one token: x is about scale * q. The sums are scale * sum(q) over all, the first and the last 16.
struct alignas(16) RoundedBlock {
  float scale;
  float sum;
  float sum_low;
  float sum_high;
  int8_t q[32];
};

struct ProductArgs {
  const uint8_t* tiles;  // packed weights: matmul_formats.h
  size_t tile_bytes;
  int64_t rows;  // of the matrix; the last tile may have fewer than the others
  int64_t cols;
  const RoundedBlock* rounded;  // [tokens][blocks]
  int64_t blocks;
  const float* x;  // [tokens][x_stride]
  int64_t x_stride;
  float* y;  // [tokens][y_stride]
  int64_t y_stride;
  bool accumulate;
};

// Which part of the product one call computes.
struct ProductRange {
  int64_t tile_begin;
  int64_t tile_end;
  int64_t token_begin;
  int64_t token_end;
};

using ProductFunction = void (*)(const ProductArgs& args, const ProductRange& range);

struct MatmulKernels {
  int tile_rows;
  void (*round_row)(const float* x, int64_t cols, RoundedBlock* out);
  ProductFunction f32, f16, bf16, q8_0, q4_0, q4_1, q4_k, q5_k, q6_k;
  ProductFunction bf16_dot;  // of bf16 weights and x rounded to bf16; where HasBf16Dot() says so
};

extern const MatmulKernels kMatmulPortable;
extern const MatmulKernels kMatmulAvx2;    // empty where the program was built for a machine that has no such thing,
extern const MatmulKernels kMatmulAvx512;  // and used only where the machine has it

}  // namespace sluice
