// How many bytes a second a link to one peer carries, from what was sent when and when its credit came back. Pure
// bookkeeping: time is an argument.
//
// The estimator is that of BBR (draft-cheng-iccrg-delivery-rate-estimation): a frame's sample is what was acknowledged
// between its sending and its own acknowledgement, over the longer of the time in which that was sent and the time in
// which it was acknowledged. So neither idle time nor acknowledgements that come in a bunch count as speed. A sample of
// frames that left while nothing waited behind them only says that the link is at least so fast.
//
// Rejected: acknowledged bytes over the time in which something was on its way. Where acknowledgements are slow
// something always is, the quotient is then the rate of production, and q comes out as 1 whatever the link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace sluice::prefill {

class LinkRate {
 public:
  void OnSent(absl::Time now, size_t bytes);
  // Nothing waits to be sent, and more could be.
  void OnNothingWaits();
  // Of the oldest bytes on their way; more than there are do not count.
  void OnAcknowledged(absl::Time now, size_t bytes);
  // What is on its way is no measure any more. What was learned stays.
  void Forget();

  double bytes_per_s() const { return bytes_per_s_; }  // 0: nothing has been acknowledged yet
  // True until the link was the limit, and again when that was long ago: then bytes_per_s is a lower bound.
  bool MayBeFaster(absl::Time now) const;

  // A limit that was not met again for so long is forgotten.
  static constexpr absl::Duration kLimitMemory = absl::Seconds(60);
  // Of transfer, after which a sample weighs 1/e.
  static constexpr absl::Duration kSampleMemory = absl::Milliseconds(250);

 private:
  struct Frame {
    size_t bytes;
    absl::Time sent;
    absl::Time first_sent;         // of what was acknowledged last when it was sent
    absl::Time last_acknowledged;  // when that was
    uint64_t acknowledged;         // bytes by then
    bool something_waited;
  };

  void Take(absl::Time now, const Frame& frame, size_t bytes);

  std::deque<Frame> on_their_way_;
  size_t part_acknowledged_ = 0;  // bytes of the first of them
  uint64_t sent_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t nothing_waited_until_ = 1;  // bytes acknowledged; frames sent before that are no measure of the limit
  absl::Time first_sent_;
  absl::Time last_acknowledged_;
  absl::Time limit_met_ = absl::InfinitePast();
  double bytes_per_s_ = 0;
};

}  // namespace sluice::prefill
