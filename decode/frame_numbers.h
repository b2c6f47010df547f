// Which frames of a connection have been offered, by their numbers: a transport may offer them in any order, and one
// twice. Bounded: a number that is missing for too long ends the connection, and so does one that nobody has sent.
#pragma once

#include <cstdint>
#include <set>

#include "common/status.h"

namespace sluice::decode {

class FrameNumbers {
 public:
  // How far a frame may be ahead of one that is missing. Many more than a transport reorders.
  static constexpr uint64_t kAheadMax = 4096;

  // A frame is offered. False where its number was noted before. InvalidArgument, naming both numbers, where it is too
  // far ahead of one that is missing. REQUIRES: number > 0.
  StatusOr<bool> Note(uint64_t number) {
    if (number < next_ || ahead_.contains(number)) return false;
    if (number - next_ > kAheadMax)
      return absl::InvalidArgumentError(absl::StrCat("KV frame ", number, " came, and frame ", next_, " did not"));
    ahead_.insert(number);
    while (!ahead_.empty() && *ahead_.begin() == next_) {
      ahead_.erase(ahead_.begin());
      ++next_;
    }
    return true;
  }

 private:
  uint64_t next_ = 1;         // every number below was noted
  std::set<uint64_t> ahead_;  // noted, and above it
};

}  // namespace sluice::decode
