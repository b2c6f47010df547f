#include "kernels/matmul_formats.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/status.h"
#include "kernels/dequantize.h"

namespace sluice {

namespace {

// One row of a tile seen as codes with scales; what the six quantised formats have in common.
class RowPacker {
 public:
  RowPacker(int tile_rows, int row) : rows_(tile_rows), row_(row) {}

  // `codes` are 32 values below 256.
  void Codes8(const uint8_t* codes, uint8_t* out) const {
    for (int c = 0; c < 32; ++c) out[Byte(c / 4, c % 4)] = codes[c];
  }
  // The low four bits of 32 codes.
  void Nibbles(const uint8_t* codes, uint8_t* out) const {
    for (int c = 0; c < 16; ++c) {
      out[Byte(c / 4, c % 4)] = static_cast<uint8_t>((codes[c] & 15) | ((codes[c + 16] & 15) << 4));
    }
  }
  void FifthBits(const uint8_t* codes, uint8_t* out) const {
    for (int c = 0; c < 32; ++c) out[Byte(0, c % 4)] |= static_cast<uint8_t>(((codes[c] >> 4) & 1) << (c / 4));
  }
  void FifthAndSixthBits(const uint8_t* codes, uint8_t* out) const {
    for (int c = 0; c < 32; ++c) {
      out[Byte(c / 16, c % 4)] |= static_cast<uint8_t>(((codes[c] >> 4) & 3) << (2 * (c / 4 % 4)));
    }
  }
  void Half(const uint8_t* f16, uint8_t* out) const { std::memcpy(out + 2 * row_, f16, 2); }
  void Byte8(uint8_t value, uint8_t* out) const { out[row_] = value; }

 private:
  size_t Byte(int group, int i) const { return static_cast<size_t>((group * rows_ + row_) * 4 + i); }

  int rows_;
  int row_;
};

void SplitNibbles(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = packed[i] & 15;
    codes[i + 16] = packed[i] >> 4;
  }
}

// Each packs one block of one row and returns nothing: `out` is the tile's memory for that block.
void PackQ8_0(const RowPacker& row, int r, const uint8_t* block, uint8_t* out) {
  uint8_t codes[32];
  for (int c = 0; c < 32; ++c) codes[c] = static_cast<uint8_t>(block[2 + c] ^ 0x80);
  row.Codes8(codes, out);
  row.Half(block, out + 32 * r);
}

void PackQ4_0(const RowPacker& row, int r, const uint8_t* block, uint8_t* out) {
  uint8_t codes[32];
  SplitNibbles(block + 2, codes);
  row.Nibbles(codes, out);
  row.Half(block, out + 16 * r);
}

void PackQ4_1(const RowPacker& row, int r, const uint8_t* block, uint8_t* out) {
  uint8_t codes[32];
  SplitNibbles(block + 4, codes);
  row.Nibbles(codes, out);
  row.Half(block, out + 16 * r);
  row.Half(block + 2, out + 18 * r);
}

void PackQ4_K(const RowPacker& row, int r, const uint8_t* block, uint8_t* out) {
  row.Half(block, out);
  row.Half(block + 2, out + 2 * r);
  out += 4 * r;
  for (int b = 0; b < 8; ++b, out += 18 * r) {
    uint8_t codes[32];
    for (int c = 0; c < 32; ++c) codes[c] = static_cast<uint8_t>(block[16 + b / 2 * 32 + c] >> (b % 2 * 4) & 15);
    row.Nibbles(codes, out);
    const KScale scale = KScaleOf(block + 4, b);
    row.Byte8(scale.scale, out + 16 * r);
    row.Byte8(scale.min, out + 17 * r);
  }
}

void PackQ5_K(const RowPacker& row, int r, const uint8_t* block, uint8_t* out) {
  row.Half(block, out);
  row.Half(block + 2, out + 2 * r);
  out += 4 * r;
  for (int b = 0; b < 8; ++b, out += 22 * r) {
    uint8_t codes[32];
    for (int c = 0; c < 32; ++c) codes[c] = Q5_KCode(block, b * 32 + c);
    row.Nibbles(codes, out);
    row.FifthBits(codes, out + 16 * r);
    const KScale scale = KScaleOf(block + 4, b);
    row.Byte8(scale.scale, out + 20 * r);
    row.Byte8(scale.min, out + 21 * r);
  }
}

void PackQ6_K(const RowPacker& row, int r, const uint8_t* block, uint8_t* out) {
  row.Half(block + 208, out);
  out += 2 * r;
  for (int b = 0; b < 8; ++b, out += 26 * r) {
    uint8_t codes[32];
    for (int c = 0; c < 32; ++c) codes[c] = Q6_KCode(block, b * 32 + c);
    row.Nibbles(codes, out);
    row.FifthAndSixthBits(codes, out + 16 * r);
    row.Byte8(block[192 + 2 * b], out + 24 * r);
    row.Byte8(block[193 + 2 * b], out + 25 * r);
  }
}

struct Format {
  int bytes_per_row;  // of one block of the type's elements, a tile's share
  void (*pack)(const RowPacker& row, int tile_rows, const uint8_t* block, uint8_t* out);
};

const Format& FormatOf(DType type) {
  static constexpr Format kFormats[] = {
      {34, PackQ8_0},         {18, PackQ4_0},         {20, PackQ4_1},
      {4 + 8 * 18, PackQ4_K}, {4 + 8 * 22, PackQ5_K}, {2 + 8 * 26, PackQ6_K},
  };
  return kFormats[static_cast<int>(type) - static_cast<int>(DType::kQ8_0)];
}

// The element size is 4 or 2; `pair` interleaves two columns.
void PackFloats(const ConstMatrixView& w, int64_t row_begin, int64_t row_end, int tile_rows, uint8_t* out) {
  const size_t bytes = static_cast<size_t>(Traits(w.type).block_bytes);
  const int64_t group = w.type == DType::kBf16 ? 2 : 1;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint8_t* in = static_cast<const uint8_t*>(w.row(row));
    for (int64_t c = 0; c < w.cols; ++c) {
      const int64_t at = (c / group * tile_rows + row - row_begin) * group + c % group;
      std::memcpy(out + static_cast<size_t>(at) * bytes, in + static_cast<size_t>(c) * bytes, bytes);
    }
  }
}

}  // namespace

size_t TileBytes(DType type, int64_t cols, int tile_rows) {
  const DTypeTraits& traits = Traits(type);
  const size_t rows = static_cast<size_t>(tile_rows);
  if (traits.block_elements == 1) {
    const size_t padded = static_cast<size_t>(type == DType::kBf16 ? (cols + 1) / 2 * 2 : cols);
    return padded * rows * static_cast<size_t>(traits.block_bytes);
  }
  return static_cast<size_t>(cols / traits.block_elements) * rows * static_cast<size_t>(FormatOf(type).bytes_per_row);
}

void PackTile(const ConstMatrixView& w, int64_t tile, int tile_rows, uint8_t* out) {
  const int64_t row_begin = tile * tile_rows;
  const int64_t row_end = std::min<int64_t>(w.rows, row_begin + tile_rows);
  const DTypeTraits& traits = Traits(w.type);
  if (traits.block_elements == 1) {
    PackFloats(w, row_begin, row_end, tile_rows, out);
    return;
  }
  const Format& format = FormatOf(w.type);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const RowPacker packer(tile_rows, static_cast<int>(row - row_begin));
    const uint8_t* in = static_cast<const uint8_t*>(w.row(row));
    uint8_t* block_out = out;
    for (int64_t c = 0; c < w.cols; c += traits.block_elements) {
      format.pack(packer, tile_rows, in, block_out);
      in += traits.block_bytes;
      block_out += format.bytes_per_row * tile_rows;
    }
  }
}

}  // namespace sluice
