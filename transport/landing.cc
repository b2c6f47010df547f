#include "transport/landing.h"

#include <cstring>

namespace sluice {

Status Landing::Check(size_t payload_bytes) const {
  size_t bytes = 0;
  for (const absl::Span<std::byte>& piece : memory) bytes += piece.size();
  if (bytes == payload_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a landing of ", bytes, " bytes in ", memory.size(),
                                          " pieces for a payload of ", payload_bytes, " bytes"));
}

void Landing::Copy(absl::Span<const std::byte> payload) const {
  for (const absl::Span<std::byte>& piece : memory) {
    if (piece.empty()) continue;
    std::memcpy(piece.data(), payload.data(), piece.size());
    payload.remove_prefix(piece.size());
  }
}

}  // namespace sluice
