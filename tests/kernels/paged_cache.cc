#include "tests/kernels/paged_cache.h"

#include <numeric>

namespace sluice {

PagedCache::PagedCache(const AttentionShape& shape, const CacheOptions& options, const std::vector<int64_t>& lengths)
    : shape_(shape), options_(options), codec_(Info(options.codec)) {
  k_ = PlaneOf(shape.key_dim, &page_bytes_);
  v_ = options.values == Values::kShared ? k_ : PlaneOf(shape.value_dim, &page_bytes_);
  page_bytes_ += options.padding_bytes;
  int pages = 3;
  for (const int64_t n : lengths) pages += static_cast<int>((n + options.page_tokens - 1) / options.page_tokens);
  memory_.assign(page_bytes_ * static_cast<size_t>(pages), std::byte{0xff});
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  Rng shuffle(options.seed);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[shuffle.Bits() % (i + 1)]);
  Rng rng(options.seed + 1);
  std::vector<float> x(static_cast<size_t>(std::max(shape.key_dim, shape.value_dim)));
  for (size_t s = 0; s < lengths.size(); ++s) {
    std::vector<int32_t>& mine = pages_.emplace_back();
    for (int64_t t = 0; t < lengths[s]; t += options.page_tokens) {
      mine.push_back(order.back());
      order.pop_back();
    }
    keys_.emplace_back(static_cast<size_t>(lengths[s] * shape.kv_heads * shape.key_dim));
    values_.emplace_back(static_cast<size_t>(lengths[s] * shape.kv_heads * shape.value_dim));
    for (int64_t t = 0; t < lengths[s]; ++t) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (const bool value : {false, true}) {
          if (value && options.values == Values::kShared) continue;
          for (float& e : x) e = static_cast<float>(rng.Uniform() * 4 - 2);
          Write(s, t, head, value, x.data());
        }
      }
    }
  }
}

PagedCache::Plane PagedCache::PlaneOf(int channels, size_t* used) const {
  const Plane plane = {.offset = *used,
                       .code_bytes = codec_.code_bytes({.channels = channels}),
                       .scale_bytes = codec_.scale_bytes({.channels = channels}),
                       .channels = channels};
  *used += (plane.code_bytes + plane.scale_bytes) * static_cast<size_t>(options_.page_tokens * shape_.kv_heads);
  return plane;
}

PagedKv PagedCache::view() const {
  const auto rows = [this](const Plane& plane) {
    return KvRows{.codes = memory_.data() + plane.offset,
                  .scales = memory_.data() + ScalesOffset(plane),
                  .code_bytes = plane.code_bytes,
                  .scale_bytes = plane.scale_bytes};
  };
  return {.k = rows(k_),
          .v = rows(v_),
          .page_stride_bytes = page_bytes_,
          .page_tokens = options_.page_tokens,
          .codec = options_.codec};
}

size_t PagedCache::RowOf(size_t sequence, int64_t token, int head, size_t* page) const {
  *page = static_cast<size_t>(pages_[sequence][static_cast<size_t>(token / options_.page_tokens)]) * page_bytes_;
  return static_cast<size_t>(token % options_.page_tokens * shape_.kv_heads + head);
}

std::byte* PagedCache::Codes(size_t sequence, int64_t token, int head, bool value) {
  const Plane& plane = value ? v_ : k_;
  size_t page = 0;
  const size_t row = RowOf(sequence, token, head, &page);
  return memory_.data() + page + plane.offset + row * plane.code_bytes;
}

std::byte* PagedCache::Scales(size_t sequence, int64_t token, int head, bool value) {
  const Plane& plane = value ? v_ : k_;
  size_t page = 0;
  const size_t row = RowOf(sequence, token, head, &page);
  return memory_.data() + page + ScalesOffset(plane) + row * plane.scale_bytes;
}

void PagedCache::Write(size_t sequence, int64_t token, int head, bool value, const float* x) {
  const Plane& plane = value ? v_ : k_;
  std::byte* codes = Codes(sequence, token, head, value);
  std::byte* scales = Scales(sequence, token, head, value);
  (void)codec_.encode({.channels = plane.channels}, x, 1, plane.channels, codes, scales);
  float* decoded = (value ? values_ : keys_)[sequence].data() + (token * shape_.kv_heads + head) * plane.channels;
  codec_.decode({.channels = plane.channels}, codes, scales, 1, decoded, plane.channels);
}

}  // namespace sluice
