#include "model/checkpoint/stored_tensor.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace sluice {

StatusOr<int64_t> ElementCount(const std::vector<int64_t>& shape) {
  constexpr int64_t kElementsMax = int64_t{1} << 62;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 1 || extent > kElementsMax / count) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " is empty or too large"));
    }
    count *= extent;
  }
  return count;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

Status CheckDisjoint(const std::vector<StoredTensor>& tensors) {
  std::vector<const StoredTensor*> sorted;
  sorted.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1]->name == sorted[i]->name) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", sorted[i]->name, " stands in the file twice"));
    }
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1]->bytes.data() + sorted[i - 1]->bytes.size() > sorted[i]->bytes.data()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors ", sorted[i - 1]->name, " and ", sorted[i]->name, " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
