// Work on rows that do not depend on each other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/thread_pool.h"

namespace sluice {

// Below this many rows a parallel region costs more than it saves.
inline constexpr int64_t kRowsPerItemMin = 4;

// body(row) for every row in [0, rows), on the pool where that pays.
template <typename F>
void ForRows(int64_t rows, ThreadPool& pool, const F& body) {
  const int64_t per_item = std::max(kRowsPerItemMin, rows / (pool.threads() * 4));
  pool.ParallelFor((rows + per_item - 1) / per_item, [&](int64_t item, int) {
    const int64_t end = std::min(rows, (item + 1) * per_item);
    for (int64_t r = item * per_item; r < end; ++r) body(r);
  });
}

}  // namespace sluice
