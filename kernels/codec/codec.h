// How rows of a KV cache are coded, in a pool and on the wire: one interface, one file for each codec, one list. The
// bytes are fixed (see the README of this folder), little-endian, and equal on every instruction set.
//
// A row is one (token, kv head) of K or of V, or one token of an MLA layer: its latent and then its rotated shared key.
// n rows give a codes plane of n * code_bytes and a scales plane of n * scale_bytes; some codecs have no scales plane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "common/status.h"
#include "kernels/codec/codec_id.h"

namespace sluice {

struct KvRowShape {
  int channels = 0;  // head_dim, or the latent's
  int rope = 0;      // channels of an MLA layer's shared key behind the latent; else 0
  int width() const { return channels + rope; }
  bool operator==(const KvRowShape&) const = default;
};

// What an encoder saw and a sender must not pass over in silence.
struct KvCodecCounts {
  int64_t nonfinite_rows = 0;  // rows with a NaN, an infinity, or beyond the codec's range: poisoned in scaled codecs
  int64_t saturated = 0;       // finite values cut to the largest finite one of the format
  KvCodecCounts& operator+=(const KvCodecCounts& other) {
    nonfinite_rows += other.nonfinite_rows;
    saturated += other.saturated;
    return *this;
  }
};

struct KvCodecInfo {
  KvCodec codec;
  std::string_view name;  // what flags and messages say
  uint8_t wire_code;      // in frame headers; 0 is nobody's
  bool rotated;           // codes are those of the row times the Walsh-Hadamard matrix
  // OK, or InvalidArgument with the shape and what the codec asks of it.
  Status (*check)(const KvRowShape& shape);
  size_t (*code_bytes)(const KvRowShape& shape);   // of a row
  size_t (*scale_bytes)(const KvRowShape& shape);  // of a row; 0 without a scales plane
  // `rows` rows of width() floats, `stride` floats apart.
  KvCodecCounts (*encode)(const KvRowShape& shape, const float* x, int64_t rows, int64_t stride, std::byte* codes,
                          std::byte* scales);
  // The inverse, rotated back. Poisoned rows come out as NaN.
  void (*decode)(const KvRowShape& shape, const std::byte* codes, const std::byte* scales, int64_t rows, float* x,
                 int64_t stride);
  // Rows that an encoder counted as nonfinite, found in its bytes. (A row that no encoder wrote may hold a NaN
  // elsewhere: in codes, or in mla-fp8 in its shared key or behind its first scale.)
  int64_t (*count_nonfinite)(const KvRowShape& shape, const std::byte* codes, const std::byte* scales, int64_t rows);
};

absl::Span<const KvCodecInfo> KvCodecs();  // in the order of the enum
// By what they cost in quality, the best first. f16 has three more bits of mantissa than bf16, but ends at 65504: once
// it has cut a value it is the worse one. int8 before fp8, since rotated rows have no outliers and eight bits of
// mantissa beat three.
absl::Span<const KvCodec> KvCodecsByAccuracy();
int AccuracyRank(KvCodec codec);  // its place among these; 0 is the best
const KvCodecInfo& Info(KvCodec codec);
std::string_view Name(KvCodec codec);
StatusOr<KvCodec> ParseKvCodec(std::string_view name);   // InvalidArgument lists the names there are
StatusOr<KvCodec> KvCodecOfWireCode(uint8_t wire_code);  // InvalidArgument with the value

}  // namespace sluice
