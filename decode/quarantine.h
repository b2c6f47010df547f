// Pages that nobody holds and that something remote may still write into: their transfer is over, but what was on its
// way into them has not been reported to have ended. They go back to the pool when it has, and not before. Past an
// entry's patience whoever writes is to be cut off. A pure data structure; the engine thread owns it.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "decode/transfer.h"
#include "model/kv_pool.h"

namespace sluice::decode {

class Quarantine {
 public:
  // `pages` are leased for quiet.
  void Add(TransferKey key, PageLease pages, absl::Time patience_ends);
  // The pages are quiet. Unknown keys are ignored.
  void Remove(TransferKey key);

  // Those whose patience ends at or before `now`, each once.
  std::vector<TransferKey> TakeOverdue(absl::Time now);
  absl::Time NextDeadline() const;  // InfiniteFuture where there is none
  size_t size() const { return pages_.size(); }

 private:
  struct Entry {
    PageLease pages;
    absl::Time patience_ends;
  };
  std::map<TransferKey, Entry> pages_;
  std::set<std::pair<absl::Time, TransferKey>> by_deadline_;
};

}  // namespace sluice::decode
