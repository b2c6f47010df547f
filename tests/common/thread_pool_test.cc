#include "common/thread_pool.h"

#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(ThreadPool, RunsEachItemOnceOnEveryRegion) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int region = 0; region < 300; ++region) {
      std::vector<int> hits(static_cast<size_t>(region % 37), 0);
      pool.ParallelFor(static_cast<int64_t>(hits.size()), [&](int64_t i, int thread) {
        ASSERT_LT(thread, threads);
        ++hits[static_cast<size_t>(i)];
      });
      for (const int h : hits) ASSERT_EQ(h, 1);
    }
  }
}

}  // namespace
}  // namespace sluice
