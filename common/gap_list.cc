#include "common/gap_list.h"

#include <algorithm>
#include <iterator>

namespace sluice {

GapList::GapList(size_t bytes) : bytes_free_(bytes) { gaps_.emplace(0, bytes); }

std::optional<size_t> GapList::Take(size_t bytes) {
  const size_t needed = RoundUp(bytes);
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [needed](const auto& g) { return g.second >= needed; });
  if (gap == gaps_.end()) return std::nullopt;
  const auto [offset, size] = *gap;
  gaps_.erase(gap);
  if (size > needed) gaps_.emplace(offset + needed, size - needed);
  bytes_free_ -= needed;
  return offset;
}

void GapList::GiveBack(size_t offset, size_t bytes) {
  const size_t size = RoundUp(bytes);
  bytes_free_ += size;
  const auto gap = gaps_.emplace(offset, size).first;
  const auto after = std::next(gap);
  if (after != gaps_.end() && gap->first + gap->second == after->first) {
    gap->second += after->second;
    gaps_.erase(after);
  }
  if (gap == gaps_.begin()) return;
  const auto before = std::prev(gap);
  if (before->first + before->second != gap->first) return;
  before->second += gap->second;
  gaps_.erase(gap);
}

}  // namespace sluice
