#include "prefill/probation.h"

#include <algorithm>

namespace sluice::prefill {

Status Probation::MayTry(const PeerKey& peer, absl::Time now) const {
  const auto it = records_.find(peer);
  if (it == records_.end() || it->second.until <= now) return absl::OkStatus();
  return WithContext(it->second.why,
                     absl::StrCat("not tried again for ", absl::FormatDuration(it->second.until - now)));
}

void Probation::OnFailed(const PeerKey& peer, absl::Time now, const Status& why) {
  auto it = records_.find(peer);
  if (it == records_.end()) {
    if (records_.size() >= peers_max_) {
      records_.erase(std::min_element(records_.begin(), records_.end(),
                                      [](const auto& a, const auto& b) { return a.second.until < b.second.until; }));
    }
    it = records_.emplace(peer, Record{}).first;
  }
  Record& record = it->second;
  record.wait = std::clamp(record.wait * 2, kFirst, kLongest);
  record.until = now + record.wait;
  record.why = why;
}

}  // namespace sluice::prefill
