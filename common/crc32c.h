// CRC32C (Castagnoli, reflected polynomial 0x82F63B78), as in iSCSI (RFC 3720) and ext4.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Continues `crc` (0 to start) over `bytes` bytes. Crc32c("123456789") is 0xE3069283.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace sluice
