// How a product is cut into items for the thread pool: pure functions of the shape, which never change a result.
#pragma once

#include <cstdint>

namespace sluice {

struct MatmulSplit {
  int64_t tiles_per_part;
  int64_t tile_parts;
  int64_t tokens_per_part;
  int64_t token_parts;
};

MatmulSplit SplitMatmul(int64_t tiles, int64_t tokens, int threads);

// Rows of activations that one item rounds.
int64_t RoundRowsPerItem(int64_t tokens, int64_t cols, int threads);

}  // namespace sluice
