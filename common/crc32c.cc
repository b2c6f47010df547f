#include "common/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace sluice {

uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc) {
  constexpr size_t kAtOnce = size_t{1} << 30;  // ISA-L counts in int
  auto* p = static_cast<unsigned char*>(const_cast<void*>(data));
  crc = ~crc;
  while (bytes > 0) {
    const size_t n = std::min(bytes, kAtOnce);
    crc = crc32_iscsi(p, static_cast<int>(n), crc);
    p += n;
    bytes -= n;
  }
  return ~crc;
}

}  // namespace sluice
