#include "prefill/link_rate.h"

#include <algorithm>
#include <cmath>

namespace sluice::prefill {

void LinkRate::OnSent(absl::Time now, size_t bytes) {
  if (on_their_way_.empty()) first_sent_ = last_acknowledged_ = now;
  on_their_way_.push_back({.bytes = bytes,
                           .sent = now,
                           .first_sent = first_sent_,
                           .last_acknowledged = last_acknowledged_,
                           .acknowledged = acknowledged_,
                           .something_waited = acknowledged_ >= nothing_waited_until_});
  sent_ += bytes;
}

void LinkRate::OnNothingWaits() { nothing_waited_until_ = sent_ + 1; }

void LinkRate::OnAcknowledged(absl::Time now, size_t bytes) {
  bytes = static_cast<size_t>(std::min<uint64_t>(bytes, sent_ - acknowledged_));
  acknowledged_ += bytes;
  last_acknowledged_ = now;
  part_acknowledged_ += bytes;
  size_t whole = 0;  // frames, in bytes
  while (!on_their_way_.empty() && part_acknowledged_ >= on_their_way_.front().bytes) {
    const Frame frame = on_their_way_.front();
    on_their_way_.pop_front();
    part_acknowledged_ -= frame.bytes;
    whole += frame.bytes;
    first_sent_ = frame.sent;
    // One sample for all that are acknowledged together, the freshest.
    if (on_their_way_.empty() || part_acknowledged_ < on_their_way_.front().bytes) Take(now, frame, whole);
  }
}

void LinkRate::Forget() {
  on_their_way_.clear();
  part_acknowledged_ = 0;
  acknowledged_ = sent_;
  OnNothingWaits();
}

void LinkRate::Take(absl::Time now, const Frame& frame, size_t bytes) {
  const absl::Duration interval = std::max(frame.sent - frame.first_sent, now - frame.last_acknowledged);
  if (interval <= absl::ZeroDuration()) return;
  const double sample = static_cast<double>(acknowledged_ - frame.acknowledged) / absl::ToDoubleSeconds(interval);
  const bool limit_was_known = !MayBeFaster(now);
  if (frame.something_waited) limit_met_ = now;
  if (bytes_per_s_ == 0 || (frame.something_waited && !limit_was_known)) {
    bytes_per_s_ = sample;
  } else if (frame.something_waited || sample > bytes_per_s_) {
    const double seconds = static_cast<double>(bytes) / sample;
    bytes_per_s_ += (1 - std::exp(-seconds / absl::ToDoubleSeconds(kSampleMemory))) * (sample - bytes_per_s_);
  }
}

bool LinkRate::MayBeFaster(absl::Time now) const { return now - limit_met_ >= kLimitMemory; }

}  // namespace sluice::prefill
