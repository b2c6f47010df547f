#include "decode/quarantine.h"

namespace sluice::decode {

void Quarantine::Add(TransferKey key, PageLease pages, absl::Time patience_ends) {
  const bool inserted = pages_.emplace(key, Entry{std::move(pages), patience_ends}).second;
  SLUICE_CHECK(inserted, "a transfer's pages are quarantined twice");
  by_deadline_.emplace(patience_ends, key);
}

void Quarantine::Remove(TransferKey key) {
  const auto it = pages_.find(key);
  if (it == pages_.end()) return;
  by_deadline_.erase({it->second.patience_ends, key});
  pages_.erase(it);  // the lease falls here
}

std::vector<TransferKey> Quarantine::TakeOverdue(absl::Time now) {
  std::vector<TransferKey> overdue;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    overdue.push_back(by_deadline_.begin()->second);
    by_deadline_.erase(by_deadline_.begin());
  }
  return overdue;
}

absl::Time Quarantine::NextDeadline() const {
  return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
}

}  // namespace sluice::decode
