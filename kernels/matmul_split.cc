#include "kernels/matmul_split.h"

#include <algorithm>

namespace sluice {

namespace {

// So many tokens' activations (some 200 KiB at 1,536 columns) fit a core's second-level cache, and a tile's weights are
// unpacked once for all of them.
constexpr int64_t kTokensPerPart = 128;

// Items a thread, so that one that was held up does not make the others wait for long; more only cost hand-outs.
constexpr int64_t kItemsPerThread = 4;

// Below so many elements a hand-out costs more than the work.
constexpr int64_t kRoundedElementsMin = 8192;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

MatmulSplit SplitMatmul(int64_t tiles, int64_t tokens, int threads) {
  MatmulSplit split;
  split.tokens_per_part = std::clamp<int64_t>(tokens, 1, kTokensPerPart);
  split.token_parts = CeilDiv(tokens, split.tokens_per_part);
  const int64_t parts = threads == 1 ? 1 : threads * kItemsPerThread;
  split.tiles_per_part = std::max<int64_t>(1, CeilDiv(tiles, parts));
  split.tile_parts = CeilDiv(tiles, split.tiles_per_part);
  return split;
}

int64_t RoundRowsPerItem(int64_t tokens, int64_t cols, int threads) {
  if (threads == 1 || tokens * cols <= kRoundedElementsMin) return std::max<int64_t>(1, tokens);
  const int64_t enough = CeilDiv(kRoundedElementsMin, cols);
  return std::clamp<int64_t>(CeilDiv(tokens, threads * kItemsPerThread), 1, std::max(enough, CeilDiv(tokens, threads)));
}

}  // namespace sluice
