#include "kernels/matmul.h"

#include <algorithm>
#include <vector>

#include "kernels/convert.h"
#include "kernels/dequantize.h"
#include "kernels/isa.h"
#include "kernels/matmul_formats.h"
#include "kernels/matmul_kernels.h"
#include "kernels/matmul_split.h"

namespace sluice {

namespace {

const MatmulKernels& Kernels() {
  switch (ActiveIsa()) {
    case Isa::kAvx2:
      return kMatmulAvx2;
    case Isa::kAvx512:
      return kMatmulAvx512;
    case Isa::kPortable:
      break;
  }
  return kMatmulPortable;
}

ProductFunction FunctionFor(const MatmulKernels& kernels, const PackedMatrix& w) {
  if (w.rounds_to_bf16()) return kernels.bf16_dot;
  const ProductFunction functions[] = {kernels.f32,  kernels.f16,  kernels.bf16, kernels.q8_0, kernels.q4_0,
                                       kernels.q4_1, kernels.q4_k, kernels.q5_k, kernels.q6_k};
  return functions[static_cast<int>(w.type())];
}

DType PackedType(DType type, const PackOptions& options) {
  if (type == DType::kF8E4M3) return options.exact ? DType::kF32 : DType::kBf16;
  return options.exact && Traits(type).block_elements > 1 ? DType::kF32 : type;
}

int64_t Tiles(int64_t rows, int tile_rows) { return (rows + tile_rows - 1) / tile_rows; }

int64_t Blocks(int64_t cols) { return (cols + 31) / 32; }

// Blocks whose step is this many times the row's mean step keep what rounding left of them. Chosen on SmolLM2: 4 of 100
// rows have such a block, and the first token's log-probabilities move four times less.
constexpr float kCoarseStep = 8;

float MeanStep(const RoundedBlock* row, int64_t blocks) {
  float sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += row[b].scale;
  return sum / static_cast<float>(blocks);
}

// A tile dequantised to a float type, then packed as such.
void PackDequantisedTile(const ConstMatrixView& w, DType type, int64_t tile, int tile_rows, uint8_t* out) {
  const int64_t begin = tile * tile_rows;
  const int64_t rows = std::min<int64_t>(tile_rows, w.rows - begin);
  const size_t row_bytes = RowBytes(type, static_cast<size_t>(w.cols));
  std::vector<float> row(static_cast<size_t>(w.cols));
  std::vector<std::byte> values(static_cast<size_t>(rows) * row_bytes);
  for (int64_t r = 0; r < rows; ++r) {
    DequantizeRow(w, begin + r, row.data());
    ConvertRow(row.data(), w.cols, type, values.data() + static_cast<size_t>(r) * row_bytes);
  }
  PackTile({values.data(), type, rows, w.cols, row_bytes}, 0, tile_rows, out);
}

}  // namespace

size_t PackedMatrix::PackedBytes(DType type, int64_t rows, int64_t cols, const PackOptions& options) {
  const int tile_rows = Kernels().tile_rows;
  return static_cast<size_t>(Tiles(rows, tile_rows)) * TileBytes(PackedType(type, options), cols, tile_rows);
}

StatusOr<PackedMatrix> PackedMatrix::Pack(const ConstMatrixView& w, const PackOptions& options, ThreadPool& pool) {
  SLUICE_CHECK(w.cols % Traits(w.type).block_elements == 0, "cols ", w.cols);
  PackedMatrix packed;
  packed.rows_ = w.rows;
  packed.cols_ = w.cols;
  packed.type_ = PackedType(w.type, options);
  packed.tile_rows_ = Kernels().tile_rows;
  packed.rounds_to_bf16_ = packed.type_ == DType::kBf16 && !options.exact && HasBf16Dot();
  SLUICE_ASSIGN_OR_RETURN(packed.data_, Buffer::Create(PackedBytes(w.type, w.rows, w.cols, options)));
  const size_t tile_bytes = TileBytes(packed.type_, w.cols, packed.tile_rows_);
  pool.ParallelFor(Tiles(w.rows, packed.tile_rows_), [&](int64_t tile, int) {
    uint8_t* out = packed.data_.as<uint8_t>() + static_cast<size_t>(tile) * tile_bytes;
    if (packed.type_ == w.type) {
      PackTile(w, tile, packed.tile_rows_, out);
    } else {
      PackDequantisedTile(w, packed.type_, tile, packed.tile_rows_, out);
    }
  });
  return packed;
}

size_t Activations::Bytes(int64_t tokens_max, int64_t cols_max) {
  return static_cast<size_t>(tokens_max) * (2 * static_cast<size_t>(Blocks(cols_max)) * sizeof(RoundedBlock) + 1);
}

StatusOr<Activations> Activations::Create(int64_t tokens_max, int64_t cols_max) {
  Activations activations;
  SLUICE_ASSIGN_OR_RETURN(activations.rounded_, Buffer::Create(Bytes(tokens_max, cols_max), /*touch=*/true));
  return activations;
}

void Activations::Begin(const float* x, int64_t tokens, int64_t cols, int64_t stride) {
  SLUICE_CHECK(Bytes(tokens, cols) <= rounded_.size(), "tokens ", tokens, " cols ", cols);
  f32_ = x;
  f32_stride_ = stride;
  tokens_ = tokens;
  cols_ = cols;
}

void Activations::RoundRow(int64_t token) {
  const int64_t blocks = Blocks(cols_);
  const float* x = f32_ + token * f32_stride_;
  RoundedBlock* row = rounded_.as<RoundedBlock>() + token * blocks;
  Kernels().round_row(x, cols_, row);
  const float limit = kCoarseStep * MeanStep(row, blocks);
  const bool coarse = std::any_of(row, row + blocks, [&](const RoundedBlock& b) { return b.scale > limit; });
  *has_remainder(token) = std::byte{coarse};
  if (!coarse) return;
  RoundedBlock* remainder = rounded_.as<RoundedBlock>() + (tokens_ + token) * blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    float left[32] = {};
    for (int64_t i = 0; row[b].scale > limit && i < std::min<int64_t>(32, cols_ - 32 * b); ++i) {
      left[i] = x[32 * b + i] - row[b].scale * static_cast<float>(row[b].q[i]);
    }
    Kernels().round_row(left, 32, remainder + b);
  }
}

std::byte* Activations::has_remainder(int64_t token) {
  return rounded_.data() + 2 * static_cast<size_t>(tokens_ * Blocks(cols_)) * sizeof(RoundedBlock) +
         static_cast<size_t>(token);
}

const RoundedBlock* Activations::remainder(int64_t token) const {
  const std::byte flag = *const_cast<Activations*>(this)->has_remainder(token);
  return flag == std::byte{0} ? nullptr : rounded() + (tokens_ + token) * Blocks(cols_);
}

void Activations::Set(const float* x, int64_t tokens, int64_t cols, int64_t stride, bool exact, ThreadPool& pool) {
  Begin(x, tokens, cols, stride);
  if (exact) return;
  const int64_t rows_per_item = RoundRowsPerItem(tokens, cols, pool.threads());
  pool.ParallelFor((tokens + rows_per_item - 1) / rows_per_item, [&](int64_t item, int) {
    const int64_t end = std::min(tokens, (item + 1) * rows_per_item);
    for (int64_t t = item * rows_per_item; t < end; ++t) RoundRow(t);
  });
}

namespace {

// Each remainder is a token of its own whose product joins that of the token it was left of.
void AddRemainders(ProductFunction product, ProductArgs args, const ProductRange& range, const Activations& x) {
  float* y = args.y;
  args.accumulate = true;
  for (int64_t t = range.token_begin; t < range.token_end; ++t) {
    args.rounded = x.remainder(t);
    if (args.rounded == nullptr) continue;
    args.y = y + t * args.y_stride;
    product(args, {range.tile_begin, range.tile_end, 0, 1});
  }
}

}  // namespace

void MatmulGroup(absl::Span<const MatmulJob> jobs, const Activations& x, ThreadPool& pool) {
  const MatmulKernels& kernels = Kernels();
  int64_t tiles = 0;
  for (const MatmulJob& job : jobs) {
    SLUICE_CHECK(job.w->cols() == x.cols(), "w ", job.w->cols(), " x ", x.cols());
    SLUICE_CHECK(job.w->tile_rows() == kernels.tile_rows, "packed for another instruction set");
    tiles += Tiles(job.w->rows(), kernels.tile_rows);
  }
  const MatmulSplit split = SplitMatmul(tiles, x.tokens(), pool.threads());
  // Items of the same tokens follow each other, so that those activations stay in the caches of all threads.
  pool.ParallelFor(split.tile_parts * split.token_parts, [&](int64_t item, int) {
    const int64_t token_begin = item / split.tile_parts * split.tokens_per_part;
    const int64_t token_end = std::min(x.tokens(), token_begin + split.tokens_per_part);
    const int64_t tile_begin = item % split.tile_parts * split.tiles_per_part;
    const int64_t tile_end = std::min(tiles, tile_begin + split.tiles_per_part);
    int64_t first = 0;
    for (const MatmulJob& job : jobs) {
      const int64_t last = first + Tiles(job.w->rows(), kernels.tile_rows);
      const ProductRange range = {std::max(tile_begin, first) - first, std::min(tile_end, last) - first, token_begin,
                                  token_end};
      if (range.tile_begin < range.tile_end) {
        const ProductArgs args = {job.w->data().as<uint8_t>(),
                                  TileBytes(job.w->type(), job.w->cols(), kernels.tile_rows),
                                  job.w->rows(),
                                  job.w->cols(),
                                  x.rounded(),
                                  Blocks(x.cols()),
                                  x.f32(),
                                  x.f32_stride(),
                                  job.y,
                                  job.y_stride,
                                  job.accumulate};
        FunctionFor(kernels, *job.w)(args, range);
        if (job.w->rounds_activations()) AddRemainders(FunctionFor(kernels, *job.w), args, range, x);
      }
      first = last;
    }
  });
}

void MatmulOnThread(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t tokens, float* y,
                    int64_t y_stride) {
  const MatmulKernels& kernels = Kernels();
  SLUICE_CHECK(!w.rounds_activations(), "weights of type ", Traits(w.type()).name.data());
  SLUICE_CHECK(w.tile_rows() == kernels.tile_rows, "packed for another instruction set");
  const ProductArgs args = {.tiles = w.data().as<uint8_t>(),
                            .tile_bytes = TileBytes(w.type(), w.cols(), kernels.tile_rows),
                            .rows = w.rows(),
                            .cols = w.cols(),
                            .rounded = nullptr,
                            .blocks = 0,
                            .x = x,
                            .x_stride = x_stride,
                            .y = y,
                            .y_stride = y_stride,
                            .accumulate = false};
  FunctionFor(kernels, w)(args, {0, Tiles(w.rows(), kernels.tile_rows), 0, tokens});
}

}  // namespace sluice
