#include "kernels/matmul_split.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(MatmulSplit, CoversEveryTileAndTokenOnce) {
  for (const int threads : {1, 2, 3, 16}) {
    for (const int64_t tiles : {1, 7, 72, 6144}) {
      for (const int64_t tokens : {1, 5, 128, 129, 512}) {
        const MatmulSplit s = SplitMatmul(tiles, tokens, threads);
        EXPECT_GE(s.tiles_per_part * s.tile_parts, tiles);
        EXPECT_LT(s.tiles_per_part * (s.tile_parts - 1), tiles);
        EXPECT_GE(s.tokens_per_part * s.token_parts, tokens);
        EXPECT_LT(s.tokens_per_part * (s.token_parts - 1), tokens);
      }
    }
  }
}

TEST(MatmulSplit, NoTokensAreNoParts) { EXPECT_EQ(SplitMatmul(72, 0, 2).token_parts, 0); }

TEST(MatmulSplit, ThreadsShareTheTilesOfOneToken) { EXPECT_GE(SplitMatmul(72, 1, 2).tile_parts, 4); }

TEST(MatmulSplit, FewRowsAreRoundedInOneItem) {
  EXPECT_EQ(RoundRowsPerItem(1, 576, 2), 1);
  EXPECT_EQ(RoundRowsPerItem(8, 576, 2), 8);
  EXPECT_LT(RoundRowsPerItem(512, 576, 2), 512);
}

}  // namespace
}  // namespace sluice
