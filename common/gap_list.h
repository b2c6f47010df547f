// Which parts of a run of bytes are free: given out by first fit, in multiples of 64, and merged with their neighbours
// when they come back. Offsets only: it owns no memory, and whoever shares it between threads guards it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace sluice {

class GapList {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // All of `bytes` are free. REQUIRES: RoundUp(bytes) == bytes.
  explicit GapList(size_t bytes);

  // Where `bytes` begin that are now taken; nothing where no gap is large enough. REQUIRES: bytes > 0.
  std::optional<size_t> Take(size_t bytes);
  // What Take gave, with the same size.
  void GiveBack(size_t offset, size_t bytes);

  size_t bytes_free() const { return bytes_free_; }

 private:
  size_t bytes_free_;
  std::map<size_t, size_t> gaps_;  // offset -> bytes, neighbours merged
};

}  // namespace sluice
