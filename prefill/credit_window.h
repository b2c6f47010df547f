// How many bytes of KV payload may be on their way over one connection: what the peer granted with its hello, less what
// it has not given back. The peer says how much it gave since the start, so that hearing it twice, or late, changes
// nothing. Both ends count the same bytes, so giving back more than was taken is the peer's error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/status.h"

namespace sluice::prefill {

class CreditWindow {
 public:
  CreditWindow() = default;
  explicit CreditWindow(uint64_t bytes) : bytes_(bytes) {}

  uint64_t bytes() const { return bytes_; }
  uint64_t taken() const { return taken_; }
  uint64_t given() const { return given_; }  // since the start
  bool Holds(size_t bytes) const { return bytes <= bytes_ - taken_; }
  // REQUIRES: Holds(bytes).
  void Take(size_t bytes) {
    SLUICE_CHECK(Holds(bytes), "a frame of ", bytes, " bytes beyond the credit of ", bytes_ - taken_);
    taken_ += bytes;
  }
  // The peer has given back `total` since the start. How many bytes of these are news. InvalidArgument, with nothing
  // changed, for more than is taken.
  StatusOr<uint64_t> Give(uint64_t total) {
    if (total <= given_) return uint64_t{0};
    const uint64_t bytes = total - given_;
    if (bytes > taken_)
      return absl::InvalidArgumentError(absl::StrCat("credit for ", bytes, " bytes while ", taken_, " are out"));
    taken_ -= bytes;
    given_ = total;
    return bytes;
  }
  // They never left. REQUIRES: taken.
  void TakeBack(size_t bytes) { taken_ -= bytes; }

 private:
  uint64_t bytes_ = 0;
  uint64_t taken_ = 0;
  uint64_t given_ = 0;
};

}  // namespace sluice::prefill
