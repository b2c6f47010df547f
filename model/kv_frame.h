// The header in front of each KV payload on the wire: fixed size, little-endian, no pointers, nothing inferred. One
// frame is one layer's KV of one token range in the wire codec: encode(K), then encode(V) at the next multiple of 16.
// kCommit frames carry a serialised HandoffRecord instead, kResult frames a TransferResult.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/status.h"
#include "model/kv_layout.h"

namespace sluice {

inline constexpr uint32_t kKvProtocolVersion = 1;

enum class FrameKind : uint8_t { kKv = 1, kCommit = 2, kResult = 3, kAbort = 4 };

struct KvFrameHeader {
  FrameKind kind = FrameKind::kKv;
  KvCodec codec = KvCodec::kBf16;
  uint16_t layer = 0;
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  uint32_t kept_positions = 0;  // entries of a position list before the KV; 0 while every token is sent
  uint64_t payload_bytes = 0;
  RequestId request;
  ReservationId reservation;
  Epoch epoch;            // decode's
  Tenure generation;  // of the reservation
  uint64_t layout_hash = 0;
};

inline constexpr size_t kKvFrameHeaderBytes = 80;

// The header with a CRC32C over itself and `payload` in its last four bytes.
std::string Encode(const KvFrameHeader& header, absl::Span<const std::byte> payload);
// Checks length, magic, version, kind and codec; the CRC is checked by VerifyCrc once the payload is there.
// InvalidArgument names the field and both values.
StatusOr<KvFrameHeader> DecodeKvFrameHeader(std::string_view bytes);
// DataLoss with both CRCs where header or payload were changed.
Status VerifyCrc(std::string_view header_bytes, absl::Span<const std::byte> payload);

}  // namespace sluice
