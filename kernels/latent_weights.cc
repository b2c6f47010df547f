#include "kernels/latent_weights.h"

#include <cstring>

#include "kernels/convert.h"
#include "kernels/dequantize.h"

namespace sluice {

namespace {

// A matrix of its own, of elements that are whole bytes.
struct OwnedMatrix {
  std::vector<std::byte> bytes;
  ConstMatrixView view;

  OwnedMatrix(DType type, int64_t rows, int64_t cols) {
    const size_t row_bytes = RowBytes(type, static_cast<size_t>(cols));
    bytes.resize(static_cast<size_t>(rows) * row_bytes);
    view = {bytes.data(), type, rows, cols, row_bytes};
  }
  std::byte* row(int64_t r) { return bytes.data() + static_cast<size_t>(r) * view.stride_bytes; }
};

DType FloatType(DType type, const PackOptions& options) {
  return type == DType::kF8E4M3 ? (options.exact ? DType::kF32 : DType::kBf16) : type;
}

// FP8 has to be dequantised before heads are cut out: blocks of scales do not end where heads do.
OwnedMatrix Dequantised(const ConstMatrixView& w, DType type) {
  OwnedMatrix result(type, w.rows, w.cols);
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    DequantizeRow(w, r, row.data());
    ConvertRow(row.data(), w.cols, type, result.row(r));
  }
  return result;
}

ConstMatrixView Rows(const ConstMatrixView& w, int64_t first, int64_t rows) {
  return {w.row(first), w.type, rows, w.cols, w.stride_bytes};
}

OwnedMatrix Transposed(const ConstMatrixView& w) {
  OwnedMatrix result(w.type, w.cols, w.rows);
  const auto element = static_cast<size_t>(Traits(w.type).block_bytes);
  for (int64_t r = 0; r < w.rows; ++r) {
    const auto* in = static_cast<const std::byte*>(w.row(r));
    for (int64_t c = 0; c < w.cols; ++c) {
      std::memcpy(result.row(c) + static_cast<size_t>(r) * element, in + static_cast<size_t>(c) * element, element);
    }
  }
  return result;
}

}  // namespace

StatusOr<LatentWeights> LatentWeights::Pack(const ConstMatrixView& up, const LatentShape& shape,
                                            const PackOptions& options, ThreadPool& pool) {
  if (Traits(up.type).block_elements > 1) {
    return absl::InvalidArgumentError(absl::StrCat("the up-projection of latents is of type ",
                                                   std::string(Traits(up.type).name),
                                                   ", whose blocks of columns cannot be transposed"));
  }
  const int64_t rows = shape.nope_dim + shape.value_dim;
  SLUICE_CHECK(up.rows == shape.heads * rows && up.cols == shape.latent, "up ", up.rows, " x ", up.cols);
  const DType type = FloatType(up.type, options);
  OwnedMatrix dequantised(type, 0, up.cols);
  if (type != up.type) dequantised = Dequantised(up, type);
  const ConstMatrixView all = type == up.type ? up : dequantised.view;
  LatentWeights weights;
  for (int64_t h = 0; h < shape.heads; ++h) {
    const ConstMatrixView key = Rows(all, h * rows, shape.nope_dim);
    const OwnedMatrix across = Transposed(key);
    SLUICE_ASSIGN_OR_RETURN(weights.key.emplace_back(), PackedMatrix::Pack(key, options, pool));
    SLUICE_ASSIGN_OR_RETURN(weights.key_across.emplace_back(), PackedMatrix::Pack(across.view, options, pool));
    SLUICE_ASSIGN_OR_RETURN(weights.value.emplace_back(),
                            PackedMatrix::Pack(Rows(all, h * rows + shape.nope_dim, shape.value_dim), options, pool));
  }
  return weights;
}

size_t LatentWeights::PackedBytes(DType type, const LatentShape& shape, const PackOptions& options) {
  return static_cast<size_t>(shape.heads) * (PackedMatrix::PackedBytes(type, shape.nope_dim, shape.latent, options) +
                                             PackedMatrix::PackedBytes(type, shape.latent, shape.nope_dim, options) +
                                             PackedMatrix::PackedBytes(type, shape.value_dim, shape.latent, options));
}

}  // namespace sluice
