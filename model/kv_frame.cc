#include "model/kv_frame.h"

#include <cstring>
#include <limits>

#include "common/crc32c.h"

namespace sluice {

namespace {

constexpr uint32_t kMagic = 0x564B4C53;  // "SLKV" as bytes
constexpr size_t kHeaderCrcOffset = 80;  // and so many bytes it covers
constexpr size_t kPayloadCrcOffset = 84;

template <typename T>
void Put(std::string& out, size_t offset, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out[offset + i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
}

template <typename T>
T Get(std::string_view in, size_t offset) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<uint64_t>(static_cast<uint8_t>(in[offset + i])) << (8 * i);
  return static_cast<T>(value);
}

Status Unexpected(std::string_view field, uint64_t value, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("KV frame header: ", std::string(field), " is ", value, ", expected ", std::string(expected)));
}

Status UnequalCrcs(std::string_view of, uint32_t sent, uint32_t found) {
  return absl::DataLossError(absl::StrCat(std::string(of), " CRC32C: sent ", absl::Hex(sent, absl::kZeroPad8),
                                          ", found ", absl::Hex(found, absl::kZeroPad8)));
}

Status CheckNumber(const KvFrameHeader& h) {
  if (h.kind == FrameKind::kKv && h.number == 0) return Unexpected("number", 0, "at least 1 in a KV frame");
  if (h.kind != FrameKind::kKv && h.number != 0) return Unexpected("number", h.number, "0 in a frame without KV");
  return absl::OkStatus();
}

Status CheckTokenRange(const KvFrameHeader& h) {
  if (h.kind != FrameKind::kKv && h.kind != FrameKind::kResend) {
    if (h.layers != 0) return Unexpected("layers", h.layers, "0 in a frame without KV");
    if (h.tokens != 0) return Unexpected("tokens", h.tokens, "0 in a frame without KV");
    if (h.first_token != 0) return Unexpected("first_token", h.first_token, "0 in a frame without KV");
    if (h.layer != 0) return Unexpected("layer", h.layer, "0 in a frame without KV");
  } else {
    if (h.layers == 0) return Unexpected("layers", 0, "at least 1 in a KV frame");
    if (h.tokens == 0) return Unexpected("tokens", 0, "at least 1 in a KV frame");
    if (h.first_token > std::numeric_limits<uint32_t>::max() - h.tokens)
      return Unexpected("first_token", h.first_token, absl::StrCat("at most 2^32 - 1 with its ", h.tokens, " tokens"));
    if (h.kind == FrameKind::kKv && h.payload_bytes == 0)
      return Unexpected("payload_bytes", 0, "at least 1 in a KV frame");
  }
  // Every token is sent; a policy's position list comes with the version that can place it.
  if (h.kept_positions != 0) return Unexpected("kept_positions", h.kept_positions, "0");
  return absl::OkStatus();
}

}  // namespace

std::string Encode(const KvFrameHeader& header, absl::Span<const std::byte> payload) {
  SLUICE_CHECK(header.payload_bytes == payload.size(), "payload_bytes ", header.payload_bytes, " of ", payload.size());
  std::string out(kKvFrameHeaderBytes, '\0');
  Put<uint32_t>(out, 0, kMagic);
  Put<uint16_t>(out, 4, kKvProtocolVersion);
  Put<uint8_t>(out, 6, static_cast<uint8_t>(header.kind));
  Put<uint8_t>(out, 7, Info(header.codec).wire_code);
  Put<uint16_t>(out, 8, header.layer);
  Put<uint16_t>(out, 10, header.layers);
  Put<uint32_t>(out, 12, header.kept_positions);
  Put<uint32_t>(out, 16, header.first_token);
  Put<uint32_t>(out, 20, header.tokens);
  Put<uint64_t>(out, 24, header.payload_bytes);
  Put<uint64_t>(out, 32, header.request.value);
  Put<uint64_t>(out, 40, header.reservation.value);
  Put<uint64_t>(out, 48, header.epoch.value);
  Put<uint64_t>(out, 56, header.generation.value);
  Put<uint64_t>(out, 64, header.layout_hash);
  Put<uint64_t>(out, 72, header.number);
  const uint32_t crc = Crc32c(out.data(), kHeaderCrcOffset);
  Put<uint32_t>(out, kHeaderCrcOffset, crc);
  Put<uint32_t>(out, kPayloadCrcOffset, Crc32c(payload.data(), payload.size(), crc));
  return out;
}

StatusOr<KvFrameHeader> DecodeKvFrameHeader(std::string_view bytes) {
  if (bytes.size() != kKvFrameHeaderBytes) return Unexpected("length", bytes.size(), absl::StrCat(kKvFrameHeaderBytes));
  if (Get<uint32_t>(bytes, 0) != kMagic) return Unexpected("magic", Get<uint32_t>(bytes, 0), absl::StrCat(kMagic));
  if (Get<uint16_t>(bytes, 4) != kKvProtocolVersion)
    return Unexpected("version", Get<uint16_t>(bytes, 4), absl::StrCat(kKvProtocolVersion));
  const uint32_t crc = Crc32c(bytes.data(), kHeaderCrcOffset);
  if (const auto sent = Get<uint32_t>(bytes, kHeaderCrcOffset); sent != crc)
    return UnequalCrcs("KV frame header", sent, crc);

  KvFrameHeader h;
  const auto kind = Get<uint8_t>(bytes, 6);
  if (kind < static_cast<uint8_t>(FrameKind::kKv) || kind > static_cast<uint8_t>(FrameKind::kCredit))
    return Unexpected("kind", kind, "1 to 6");
  h.kind = static_cast<FrameKind>(kind);
  const StatusOr<KvCodec> codec = KvCodecOfWireCode(Get<uint8_t>(bytes, 7));
  if (!codec.ok()) return WithContext(codec.status(), "KV frame header");
  h.codec = *codec;

  h.layer = Get<uint16_t>(bytes, 8);
  h.layers = Get<uint16_t>(bytes, 10);
  h.kept_positions = Get<uint32_t>(bytes, 12);
  h.first_token = Get<uint32_t>(bytes, 16);
  h.tokens = Get<uint32_t>(bytes, 20);
  h.payload_bytes = Get<uint64_t>(bytes, 24);
  h.request = {Get<uint64_t>(bytes, 32)};
  h.reservation = {Get<uint64_t>(bytes, 40)};
  h.epoch = {Get<uint64_t>(bytes, 48)};
  h.generation = {Get<uint64_t>(bytes, 56)};
  h.layout_hash = Get<uint64_t>(bytes, 64);
  h.number = Get<uint64_t>(bytes, 72);
  SLUICE_RETURN_IF_ERROR(CheckNumber(h));
  SLUICE_RETURN_IF_ERROR(CheckTokenRange(h));
  return h;
}

Status VerifyCrc(std::string_view header_bytes, absl::Span<const absl::Span<std::byte>> payload) {
  if (header_bytes.size() != kKvFrameHeaderBytes)
    return absl::DataLossError(
        absl::StrCat("KV frame header of ", header_bytes.size(), " bytes, expected ", kKvFrameHeaderBytes));
  const auto payload_bytes = Get<uint64_t>(header_bytes, 24);
  size_t size = 0;
  uint32_t found = Crc32c(header_bytes.data(), kHeaderCrcOffset);
  for (const absl::Span<std::byte> piece : payload) {
    size += piece.size();
    found = Crc32c(piece.data(), piece.size(), found);
  }
  if (payload_bytes != size)
    return absl::DataLossError(absl::StrCat("KV frame of ", size, " bytes, its header says ", payload_bytes));
  const auto sent = Get<uint32_t>(header_bytes, kPayloadCrcOffset);
  return sent == found ? absl::OkStatus() : UnequalCrcs("KV frame", sent, found);
}

Status VerifyCrc(std::string_view header_bytes, absl::Span<const std::byte> payload) {
  const absl::Span<std::byte> piece(const_cast<std::byte*>(payload.data()), payload.size());  // only read
  return VerifyCrc(header_bytes, absl::MakeConstSpan(&piece, 1));
}

std::string EncodeCredit(uint64_t given) {
  std::string out(kCreditPayloadBytes, '\0');
  Put<uint64_t>(out, 0, given);
  return out;
}

StatusOr<uint64_t> DecodeCredit(absl::Span<const std::byte> payload) {
  if (payload.size() != kCreditPayloadBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("a credit of ", payload.size(), " bytes, expected ", kCreditPayloadBytes));
  return Get<uint64_t>({reinterpret_cast<const char*>(payload.data()), payload.size()}, 0);
}

}  // namespace sluice
