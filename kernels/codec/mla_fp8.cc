// A row holds everything: the latent's codes, an f32 scale for each tile of 128 of its channels, and the shared key in
// bf16. Scales are powers of two, so that dividing by one rounds nothing.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codec/codecs.h"
#include "kernels/codec/rows.h"
#include "kernels/portable_kernels.h"

namespace sluice {

namespace {

constexpr int kTile = kMlaTile;
constexpr float kTop = 448.0f;
constexpr int kPoisonedCode = 0x7F;
constexpr uint16_t kPoisonedRope = 0x7FC0;

int Tiles(const KvRowShape& shape) { return (shape.channels + kTile - 1) / kTile; }
int TileChannels(const KvRowShape& shape, int tile) { return std::min(kTile, shape.channels - tile * kTile); }
size_t ScalesOffset(const KvRowShape& shape) { return static_cast<size_t>(shape.channels); }
size_t RopeOffset(const KvRowShape& shape) {
  return ScalesOffset(shape) + static_cast<size_t>(Tiles(shape)) * sizeof(float);
}
size_t CodeBytes(const KvRowShape& shape) {
  return RopeOffset(shape) + static_cast<size_t>(shape.rope) * sizeof(uint16_t);
}

// The exponent of the least power of two that is no less than max / 448 and 1e-4.
int TileExponent(uint32_t max_magnitude_bits) {
  const float t = std::max(std::bit_cast<float>(max_magnitude_bits) / kTop, 1e-4f);
  const uint32_t bits = std::bit_cast<uint32_t>(t);
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}

void PoisonRow(const KvRowShape& shape, std::byte* row) {
  std::memset(row, kPoisonedCode, ScalesOffset(shape));
  for (int tile = 0; tile < Tiles(shape); ++tile)
    std::memcpy(row + ScalesOffset(shape) + static_cast<size_t>(tile) * sizeof(float), &kPoisonedScaleBits,
                sizeof(float));
  auto* rope = reinterpret_cast<uint16_t*>(row + RopeOffset(shape));
  std::fill(rope, rope + shape.rope, kPoisonedRope);
}

KvCodecCounts Encode(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                     std::byte*) {
  const CodecKernels& kernels = ActiveKernels().codec;
  KvCodecCounts counts;
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += CodeBytes(shape)) {
    // Within this bound nothing of the shared key is beyond bf16: no value of a row is ever saturated.
    if (kernels.max_magnitude(x, shape.width()) > kRefusedAboveBits) {
      ++counts.nonfinite_rows;
      PoisonRow(shape, codes);
      continue;
    }
    for (int tile = 0; tile < Tiles(shape); ++tile) {
      const float* in = x + tile * kTile;
      const int n = TileChannels(shape, tile);
      const int exponent = TileExponent(kernels.max_magnitude(in, n));
      const float scale = std::ldexp(1.0f, exponent);
      kernels.to_fp8(in, n, std::ldexp(1.0f, -exponent), reinterpret_cast<uint8_t*>(codes) + tile * kTile);
      std::memcpy(codes + ScalesOffset(shape) + static_cast<size_t>(tile) * sizeof(float), &scale, sizeof(scale));
    }
    kernels.to_bf16(x + shape.channels, shape.rope, reinterpret_cast<uint16_t*>(codes + RopeOffset(shape)));
  }
  return counts;
}

void Decode(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows, float* x, int64_t stride) {
  const CodecKernels& kernels = ActiveKernels().codec;
  for (int64_t row = 0; row < rows; ++row, x += stride, codes += CodeBytes(shape)) {
    for (int tile = 0; tile < Tiles(shape); ++tile) {
      float scale;
      std::memcpy(&scale, codes + ScalesOffset(shape) + static_cast<size_t>(tile) * sizeof(float), sizeof(scale));
      kernels.from_fp8(reinterpret_cast<const uint8_t*>(codes) + tile * kTile, TileChannels(shape, tile), scale,
                       x + tile * kTile);
    }
    kernels.from_bf16(reinterpret_cast<const uint16_t*>(codes + RopeOffset(shape)), shape.rope, x + shape.channels);
  }
}

int64_t CountNonfinite(const KvRowShape& shape, const std::byte* codes, const std::byte*, int64_t rows) {
  return CountPoisonedScales(codes + ScalesOffset(shape), rows, CodeBytes(shape));
}

Status Check(const KvRowShape& shape) {
  if (shape.channels > 0 && shape.channels <= kScaledChannelsMax && shape.channels % 16 == 0 && shape.rope > 0 &&
      shape.rope <= kScaledChannelsMax && shape.rope % 2 == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV codec mla-fp8 takes rows of a latent of a multiple of 16 channels "
                   "and a rope part of an even number, each at most ",
                   kScaledChannelsMax, ", not ", shape.channels, " + ", shape.rope));
}

}  // namespace

const KvCodecInfo kMlaFp8Codec = {
    .codec = KvCodec::kMlaFp8,
    .name = "mla-fp8",
    .wire_code = 7,
    .rotated = false,
    .check = Check,
    .code_bytes = CodeBytes,
    .scale_bytes = [](const KvRowShape&) { return size_t{0}; },
    .encode = Encode,
    .decode = Decode,
    .count_nonfinite = CountNonfinite,
};

}  // namespace sluice
