#include "prefill/send_buffers.h"

#include <algorithm>
#include <vector>

#include "common/rng.h"
#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

TEST(SendBuffers, PiecesDoNotOverlapAndAllMemoryComesBack) {
  const auto buffers = *SendBuffers::Create(1 << 16);
  std::vector<SendBuffers::Lease> held;
  for (uint64_t i = 0; i < 3000; ++i) {
    if (RandomBits(1, i) % 2 == 0 && !held.empty()) {
      std::swap(held[RandomBits(2, i) % held.size()], held.back());
      held.pop_back();
    } else if (auto lease = buffers->Take(1 + RandomBits(3, i) % 5000)) {
      held.push_back(*std::move(lease));
    }
    std::vector<absl::Span<std::byte>> pieces;
    for (const auto& lease : held) pieces.push_back(lease.bytes());
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
    for (size_t p = 1; p < pieces.size(); ++p) ASSERT_LE(pieces[p - 1].end(), pieces[p].begin());
  }
  held.clear();
  EXPECT_EQ(buffers->bytes_free(), size_t{1} << 16);
  EXPECT_TRUE(buffers->Take(1 << 16)) << "in one piece again";
}

TEST(SendBuffers, WhatDoesNotFitIsNotGivenAndNothingIsLost) {
  const auto buffers = *SendBuffers::Create(4096);
  const auto first = buffers->Take(2048);
  EXPECT_FALSE(buffers->Take(2049));
  EXPECT_TRUE(buffers->Take(2048));
}

}  // namespace
}  // namespace sluice::prefill
