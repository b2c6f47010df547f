// How packed weights lie in memory. Rows are grouped into tiles of R (8 or 16: the lanes of the instruction set); the
// last tile is padded with zeros. Everything below is for one tile; tiles follow each other.
//
//   F32, F16     [cols][R]
//   BF16         [cols / 2, rounded up][R][2]: one 32-bit lane holds two columns
//   Q8_0         per 32 columns: codes[8][R][4] u8 (value + 128); scale[R] f16
//   Q4_0         per 32 columns: nibbles[4][R][4]; scale[R] f16
//   Q4_1         per 32 columns: nibbles[4][R][4]; scale[R] f16; min[R] f16
//   Q4_K         per 256 columns: scale[R] f16; min[R] f16; then per 32: nibbles[4][R][4]; scale[R] u8; min[R] u8
//   Q5_K         as Q4_K, but per 32: nibbles[4][R][4]; high[R][4]; scale[R] u8; min[R] u8
//   Q6_K         per 256 columns: scale[R] f16; then per 32: nibbles[4][R][4]; high[2][R][4]; scale[2][R] s8
//
// codes[g][r][i] is column 4 g + i of row r. nibbles[j][r][i] holds column 4 j + i in its low half and column
// 4 (j + 4) + i in its high half. Bit g of high[r][i] (Q5_K) is the fifth bit of column 4 g + i; bits 2 (g % 4) and the
// next of high[g / 4][r][i] (Q6_K) are its fifth and sixth. So four columns of all rows are one register of bytes,
// which is what the 8-bit dot product instructions take, and the file's 4 to 6 bits stay 4 to 6 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/buffer.h"
#include "common/dtype.h"

namespace sluice {

// Bytes of one tile. REQUIRES: cols is a multiple of the type's block.
size_t TileBytes(DType type, int64_t cols, int tile_rows);

// Writes rows [tile * R, ...) of `w` to `out`, which is zeroed and holds TileBytes.
void PackTile(const ConstMatrixView& w, int64_t tile, int tile_rows, uint8_t* out);

}  // namespace sluice
