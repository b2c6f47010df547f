// y = x W^T for weights that stay quantised: the products that a transformer spends its time on.
//
// Weights are repacked once into tiles whose lanes are output rows, so that no kernel sums across lanes. FP8 weights
// with block scales become bf16 (f32 with `exact`), since their scales run along both dimensions. Activations are
// rounded to 8 bits per block of 32 for quantised weights (as llama.cpp and others do), or kept in f32 (float weights,
// and any weights packed with `exact`).
//
// Determinism: y[t][r] depends only on row t of x, row r of W and the instruction set, not on how many tokens or
// threads share the call: the sum over columns runs in one order that the packing fixes.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/status.h"
#include "common/thread_pool.h"

namespace sluice {

struct PackOptions {
  bool exact = false;  // products in f32 with dequantised weights; for comparisons, several times slower and larger
};

// Move-only; owns the repacked weights.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Packs for the active instruction set, which must still be active when it is used. REQUIRES: w.cols is a multiple of
  // 32 where w is quantised. ResourceExhausted where memory is refused.
  static StatusOr<PackedMatrix> Pack(const ConstMatrixView& w, const PackOptions& options, ThreadPool& pool);
  // What Pack will take; the memory plan counts with it.
  static size_t PackedBytes(DType type, int64_t rows, int64_t cols, const PackOptions& options);

  int64_t rows() const { return rows_; }  // outputs
  int64_t cols() const { return cols_; }  // inputs
  size_t bytes() const { return data_.size(); }
  // Of the packed weights: quantised ones packed with `exact` have become kF32, FP8 ones kBf16.
  DType type() const { return type_; }
  int tile_rows() const { return tile_rows_; }
  // Whether its products read activations rounded to 8 bits; otherwise they read f32.
  bool rounds_activations() const { return Traits(type_).block_elements > 1; }
  // Whether its products round the f32 activations that they read to bf16 (bf16 weights on AVX512_BF16).
  bool rounds_to_bf16() const { return rounds_to_bf16_; }
  const Buffer& data() const { return data_; }

 private:
  Buffer data_;  // [tiles][TileBytes]: matmul_formats.h
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  DType type_ = DType::kF32;
  int tile_rows_ = 0;
  bool rounds_to_bf16_ = false;
};

struct RoundedBlock;  // matmul_kernels.h

// Activations of some tokens, rounded once and used by every product over the same input. Reused from step to step;
// allocated for its largest size at start-up.
class Activations {
 public:
  static StatusOr<Activations> Create(int64_t tokens_max, int64_t cols_max);
  static size_t Bytes(int64_t tokens_max, int64_t cols_max);

  // Takes x, [tokens, cols] f32, rows `stride` floats apart; x must outlive the products. With `exact` nothing is
  // rounded, and only products that read f32 may follow.
  void Set(const float* x, int64_t tokens, int64_t cols, int64_t stride, bool exact, ThreadPool& pool);

  // The same in two halves, for a caller that rounds each row in the parallel region which computes it: Begin, then
  // RoundRow once for each token, on any threads (not needed where only f32 is read).
  void Begin(const float* x, int64_t tokens, int64_t cols, int64_t stride);
  void RoundRow(int64_t token);

  int64_t tokens() const { return tokens_; }
  int64_t cols() const { return cols_; }

  // The kernels' view of it.
  const float* f32() const { return f32_; }
  int64_t f32_stride() const { return f32_stride_; }
  const RoundedBlock* rounded() const { return rounded_.as<RoundedBlock>(); }  // [tokens][ceil(cols / 32)]
  // What rounding left of blocks whose step is far coarser than the row's others, rounded in its turn; null for rows
  // without such blocks. The first token of a text has them: one value is hundreds of times the others, and everything
  // later attends to that token.
  const RoundedBlock* remainder(int64_t token) const;

 private:
  std::byte* has_remainder(int64_t token);

  Buffer rounded_;  // [tokens][blocks], then as many for remainders, then a flag for each token
  const float* f32_ = nullptr;
  int64_t f32_stride_ = 0;
  int64_t tokens_ = 0;
  int64_t cols_ = 0;
};

// y[t][r] = sum_c x[t][c] W[r][c] (+ y[t][r] with `accumulate`: the residual stream), rows of y `y_stride` floats
// apart.
struct MatmulJob {
  const PackedMatrix* w = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

// Several products over the same activations in one parallel region. REQUIRES: x.cols() == w.cols() for each.
void MatmulGroup(absl::Span<const MatmulJob> jobs, const Activations& x, ThreadPool& pool);

// y[t] = W x[t] on the calling thread, f32 read in place: for products that are small and many, each with an input of
// its own. The same bits as Matmul's. REQUIRES: !w.rounds_activations().
void MatmulOnThread(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t tokens, float* y,
                    int64_t y_stride);

inline void Matmul(const PackedMatrix& w, const Activations& x, float* y, int64_t y_stride, bool accumulate,
                   ThreadPool& pool) {
  const MatmulJob job = {&w, y, y_stride, accumulate};
  MatmulGroup({&job, 1}, x, pool);
}

}  // namespace sluice
