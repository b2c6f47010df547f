#include "prefill/transfers.h"

#include <algorithm>

namespace sluice::prefill {

bool Transfer::Apply(TransferEvent event) {
  const std::optional<TransferState> next = Next(state, event);
  if (next) state = *next;
  return next.has_value();
}

Transfer& Transfers::Add(TransferId id, proto::Ticket ticket, std::vector<PageIndex> pages, absl::Time deadline) {
  Transfer& transfer = by_id_[id];
  transfer.id = id;
  transfer.ticket = std::move(ticket);
  transfer.pages = std::move(pages);
  transfer.request_deadline = deadline;
  SetDeadline(transfer, deadline);
  return transfer;
}

Transfer* Transfers::Find(TransferId id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &it->second;
}

Transfer Transfers::Remove(TransferId id) {
  by_deadline_.erase({deadlines_.at(id), id});
  deadlines_.erase(id);
  return std::move(by_id_.extract(id).mapped());
}

void Transfers::SetDeadline(const Transfer& transfer, absl::Time deadline) {
  absl::Time& current = deadlines_[transfer.id];
  by_deadline_.erase({current, transfer.id});
  current = std::min(deadline, transfer.request_deadline);
  by_deadline_.emplace(current, transfer.id);
}

Transfer* Transfers::Due(absl::Time now) {
  return next_deadline() <= now ? Find(by_deadline_.begin()->second) : nullptr;
}

}  // namespace sluice::prefill
