// The safetensors container: a JSON header with each tensor's type, shape and byte range, then the bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"
#include "model/checkpoint/stored_tensor.h"

namespace sluice {

// The tensors of the file in `bytes`, which the caller keeps mapped. Checks every size, range and alignment, and that
// the ranges cover the data section exactly once. `name` stands before every message.
StatusOr<std::vector<StoredTensor>> ParseSafetensors(absl::Span<const std::byte> bytes, const std::string& name);

}  // namespace sluice
