// One tensor as a file declares it, after its sizes and offsets were checked: the bytes lie inside the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/status.h"

namespace sluice {

struct StoredTensor {
  std::string name;            // as the file spells it
  std::vector<int64_t> shape;  // outermost first
  std::string type_name;       // as the file spells it
  std::optional<DType> type;   // none where the type cannot be a weight (an integer)
  absl::Span<const std::byte> bytes;
};

inline constexpr int kTensorRankMax = 4;
inline constexpr size_t kTensorNameBytesMax = 255;

// The product of the extents. InvalidArgument where one is below 1 or the product passes 2^62.
StatusOr<int64_t> ElementCount(const std::vector<int64_t>& shape);

// "[64, 96]"
std::string ShapeText(const std::vector<int64_t>& shape);

// InvalidArgument names the first pair of tensors whose bytes overlap, or a name that stands twice.
Status CheckDisjoint(const std::vector<StoredTensor>& tensors);

}  // namespace sluice
