// Some sequences' K and V as attention reads them, beside the values that they stand for. For tests.
#pragma once

#include <vector>

#include "common/rng.h"
#include "kernels/attention.h"

namespace sluice {

// Whether V has rows of its own, or a value is the first part of its key.
enum class Values { kApart, kShared };

struct CacheOptions {
  KvCodec codec = KvCodec::kBf16;
  Values values = Values::kApart;
  int page_tokens = 16;
  size_t padding_bytes = 0;  // behind each page
  uint64_t seed = 1;
};

// Values of [-2, 2], in pages that are dealt out in a shuffled order; every byte not written is FF, a NaN in every
// codec.
class PagedCache {
 public:
  PagedCache(const AttentionShape& shape, const CacheOptions& options, const std::vector<int64_t>& lengths);

  PagedKv view() const;
  const int32_t* pages(size_t sequence) const { return pages_[sequence].data(); }

  // What the row's codes decode to.
  float Element(size_t sequence, int64_t token, int head, int channel, bool value) const {
    const std::vector<float>& plane = value && options_.values == Values::kApart ? values_[sequence] : keys_[sequence];
    const int channels = value && options_.values == Values::kApart ? shape_.value_dim : shape_.key_dim;
    return plane[static_cast<size_t>((token * shape_.kv_heads + head) * channels + channel)];
  }

  // Encodes `x` in the place of a row.
  void Write(size_t sequence, int64_t token, int head, bool value, const float* x);
  std::byte* Codes(size_t sequence, int64_t token, int head, bool value);
  std::byte* Scales(size_t sequence, int64_t token, int head, bool value);

 private:
  struct Plane {
    size_t offset = 0;  // in a page
    size_t code_bytes = 0;
    size_t scale_bytes = 0;
    int channels = 0;
  };
  size_t RowOf(size_t sequence, int64_t token, int head, size_t* page) const;
  Plane PlaneOf(int channels, size_t* used) const;
  size_t ScalesOffset(const Plane& plane) const {
    return plane.offset + plane.code_bytes * static_cast<size_t>(options_.page_tokens * shape_.kv_heads);
  }

  AttentionShape shape_;
  CacheOptions options_;
  const KvCodecInfo& codec_;
  Plane k_;
  Plane v_;
  size_t page_bytes_ = 0;
  std::vector<std::byte> memory_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<std::vector<float>> keys_;    // of a sequence, [tokens, kv_heads, key_dim]
  std::vector<std::vector<float>> values_;  // likewise
};

}  // namespace sluice
