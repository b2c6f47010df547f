// Where a payload goes, as its receiver says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"

namespace sluice {

// `memory` is pieces in payload order, so that a payload may lie scattered, in pages for instance; together they have
// the payload's size. They must stay valid until OnLanded and may not overlap. With `drop` the payload is taken off the
// wire and forgotten; OnLanded is not called for it.
struct Landing {
  std::vector<absl::Span<std::byte>> memory;
  uint64_t token = 0;  // given back in OnLanded
  bool drop = false;

  // Internal, with both sizes, where the pieces are not together the payload's size.
  Status Check(size_t payload_bytes) const;
  // REQUIRES: Check(payload.size()) is OK.
  void Copy(absl::Span<const std::byte> payload) const;
};

}  // namespace sluice
