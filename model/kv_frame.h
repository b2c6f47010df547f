// The header in front of each KV payload on the wire: fixed size, little-endian, no pointers, nothing inferred. It has
// a CRC32C of its own, so that nobody acts on a damaged one: its connection ends, and the account of credit with it.
// One frame is the KV of one token range in some consecutive layers, in a wire codec (kv_body.h). Frames of the other
// kinds carry a HandoffRecord (kCommit), a TransferResult (kResult, kAbort), 8 bytes of credit (kCredit), or nothing
// (kResend, which names the frame that is wanted again).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/status.h"
#include "model/kv_layout.h"

namespace sluice {

inline constexpr uint32_t kKvProtocolVersion = 3;

enum class FrameKind : uint8_t {
  kKv = 1,      // prefill to decode
  kCommit = 2,  // likewise
  kResult = 3,  // decode to prefill: how the transfer ended
  kAbort = 4,   // prefill to decode: gave up
  kResend = 5,  // decode to prefill: that KV frame came damaged
  kCredit = 6,  // decode to prefill: so many bytes of KV payload of this connection were dealt with; of no request
};

struct KvFrameHeader {
  FrameKind kind = FrameKind::kKv;
  KvCodec codec = KvCodec::kBf16;
  uint16_t layer = 0;   // the first of
  uint16_t layers = 0;  // so many; 0 where the kind has no token range
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  uint32_t kept_positions = 0;  // entries of a position list before the KV; 0 while every token is sent
  uint64_t payload_bytes = 0;
  RequestId request;
  ReservationId reservation;
  Epoch epoch;        // decode's
  Tenure generation;  // of the reservation
  uint64_t layout_hash = 0;
  uint64_t number = 0;  // of a kKv frame among all of its connection, from 1; 0 in the other kinds
};

inline constexpr size_t kKvFrameHeaderBytes = 88;

// Bytes of a header, every number little-endian:
//   0 magic "SLKV" | 4 version u16 | 6 kind u8 | 7 codec u8 (KvCodecInfo::wire_code) | 8 layer u16 | 10 layers u16
//   12 kept_positions u32 | 16 first_token u32 | 20 tokens u32 | 24 payload_bytes u64 | 32 request u64
//   40 reservation u64 | 48 epoch u64 | 56 generation u64 | 64 layout_hash u64 | 72 number u64
//   80 CRC32C u32 of bytes 0 to 79 | 84 CRC32C u32 of bytes 0 to 79 and the payload

// The header with both CRCs.
// REQUIRES: header.payload_bytes == payload.size().
std::string Encode(const KvFrameHeader& header, absl::Span<const std::byte> payload);
// Checks length, magic, version, the header's CRC, kind, codec, number, and that the token range fits the kind: kKv and
// kResend frames have layers and tokens, the others have none. The payload's CRC is checked by VerifyCrc once the
// payload is there. DataLoss with both CRCs where the header was changed; else InvalidArgument names the field with its
// value and what was expected.
StatusOr<KvFrameHeader> DecodeKvFrameHeader(std::string_view bytes);
// DataLoss with both CRCs where header or payload are not those that were sent together. The payload may lie in pieces.
Status VerifyCrc(std::string_view header_bytes, absl::Span<const absl::Span<std::byte>> payload);
Status VerifyCrc(std::string_view header_bytes, absl::Span<const std::byte> payload);

// The payload of a kCredit frame: all bytes that were given back since the connection began, so that a frame of them
// that is doubled, overtaken or lost changes nothing.
inline constexpr size_t kCreditPayloadBytes = 8;
std::string EncodeCredit(uint64_t given);
StatusOr<uint64_t> DecodeCredit(absl::Span<const std::byte> payload);  // InvalidArgument for another length

}  // namespace sluice
