// The specification of attention over a span: what the vector kernels compute, in plain loops.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/portable_kernels.h"

namespace sluice {

namespace {

// The first `channels` of an MLA row whose latent has `latent`.
void WidenLatent(const std::byte* codes, int latent, int channels, float* x) {
  const int tiles = (latent + kMlaTile - 1) / kMlaTile;
  for (int tile = 0; tile < tiles; ++tile) {
    float scale;
    std::memcpy(&scale, codes + latent + static_cast<ptrdiff_t>(tile) * 4, sizeof(scale));
    FromFp8Portable(reinterpret_cast<const uint8_t*>(codes) + tile * kMlaTile,
                    std::min(kMlaTile, latent - tile * kMlaTile), scale, x + tile * kMlaTile);
  }
  const std::byte* rope = codes + latent + static_cast<ptrdiff_t>(tiles) * 4;
  FromBf16Portable(reinterpret_cast<const uint16_t*>(rope), channels - latent, x + latent);
}

// A row as f32, still rotated where its codec is.
void WidenRow(const AttentionSpan& s, const void* codes, const void* scales, int channels, float* x) {
  switch (s.codec) {
    case KvCodec::kF32:
      std::copy_n(static_cast<const float*>(codes), channels, x);
      return;
    case KvCodec::kBf16:
      return FromBf16Portable(static_cast<const uint16_t*>(codes), channels, x);
    case KvCodec::kF16:
      return FromF16Portable(static_cast<const uint16_t*>(codes), channels, x);
    case KvCodec::kFp8:
      return FromFp8Portable(static_cast<const uint8_t*>(codes), channels, *static_cast<const float*>(scales), x);
    case KvCodec::kInt8:
      return FromInt8Portable(static_cast<const int8_t*>(codes), channels, *static_cast<const float*>(scales), x);
    case KvCodec::kInt4:
      return FromInt4Portable(static_cast<const uint8_t*>(codes), channels / kInt4Group,
                              static_cast<const uint16_t*>(scales), x);
    case KvCodec::kMlaFp8:
      return WidenLatent(static_cast<const std::byte*>(codes), s.value_dim, channels, x);
  }
}

const void* RowOf(const void* const* rows, int k, size_t offset) {
  return rows == nullptr ? nullptr : static_cast<const char*>(rows[k]) + offset;
}

void ScoreRows(const AttentionSpan& s) {
  for (int k = 0; k < s.keys; ++k) {
    WidenRow(s, RowOf(s.k_rows, k, s.k_offset), RowOf(s.k_scales, k, s.k_scale_offset), s.key_dim, s.k_tile);
    for (int row = 0; row < s.rows; ++row) {
      if (k >= s.visible[row]) continue;
      float score = 0;
      for (int c = 0; c < s.key_dim; ++c) score += s.q[row * s.key_stride + c] * s.k_tile[c];
      s.scores[row * kSpanKeys + k] = score;
    }
  }
}

}  // namespace

void WeighKeysPortable(const AttentionSpan& s) {
  ScoreRows(s);
  for (int row = 0; row < s.rows; ++row) {
    float* scores = s.scores + row * kSpanKeys;
    float max = -std::numeric_limits<float>::infinity();
    for (int k = 0; k < s.visible[row]; ++k) max = std::max(max, scores[k]);
    float sum = 0;
    for (int k = 0; k < s.visible[row]; ++k) sum += scores[k] = std::exp(scores[k] - max);
    s.max[row] = max;
    s.sum[row] = sum;
    if (s.weights != nullptr) std::copy_n(scores, s.visible[row], s.weights + row * s.weights_stride);
  }
}

void SumValuesPortable(const AttentionSpan& s) {
  std::fill(s.out, s.out + s.rows * s.value_stride, 0.0f);
  for (int k = 0; k < s.keys; ++k) {
    WidenRow(s, RowOf(s.v_rows, k, s.v_offset), RowOf(s.v_scales, k, s.v_scale_offset), s.value_dim, s.v_tile);
    for (int row = 0; row < s.rows; ++row) {
      if (k >= s.visible[row]) continue;
      const float p = s.scores[row * kSpanKeys + k];
      for (int c = 0; c < s.value_dim; ++c) s.out[row * s.value_stride + c] += p * s.v_tile[c];
    }
  }
}

void SumColumnsPortable(const AttentionColumns& c) {
  const AttentionSpan& s = *c.span;
  ScoreRows(s);
  for (int row = 0; row < s.rows; ++row) {
    for (int k = 0; k < s.visible[row]; ++k) {
      c.columns[k] += std::exp(s.scores[row * kSpanKeys + k] - c.max[row]) * c.factors[row];
    }
  }
}

void MergeSpanPortable(const AttentionMerge& m) {
  const float max = std::max(*m.max, m.span_max);
  const float old_scale = std::exp(*m.max - max);
  const float new_scale = std::exp(m.span_max - max);
  for (int c = 0; c < m.dim; ++c) m.acc[c] = m.acc[c] * old_scale + m.span_acc[c] * new_scale;
  *m.sum = *m.sum * old_scale + m.span_sum * new_scale;
  *m.max = max;
}

}  // namespace sluice
