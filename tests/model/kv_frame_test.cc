#include "model/kv_frame.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Payload(size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 7 + 3);
  return payload;
}

KvFrameHeader KvHeader(uint64_t payload_bytes) {
  return {.kind = FrameKind::kKv,
          .codec = KvCodec::kBf16,
          .layer = 29,
          .layers = 3,
          .first_token = 0x01020304,
          .tokens = 512,
          .payload_bytes = payload_bytes,
          .request = {0x1112131415161718},
          .reservation = {0x2122232425262728},
          .epoch = {0x3132333435363738},
          .generation = {2},
          .layout_hash = 0xA1A2A3A4A5A6A7A8,
          .number = 9};
}

std::string ErrorOf(const std::string& bytes) {
  const auto header = DecodeKvFrameHeader(bytes);
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(header.status().message());
}

// The bytes are the protocol: a change here is another protocol version.
TEST(KvFrame, BytesOfAHeaderAreFixed) {
  const auto payload = Payload(5);
  EXPECT_EQ(absl::BytesToHexString(Encode(KvHeader(5), payload)),
            "534c4b56"
            "0300"
            "01"
            "02"
            "1d00"
            "0300"
            "00000000"
            "04030201"
            "00020000"
            "0500000000000000"
            "1817161514131211"
            "2827262524232221"
            "3837363534333231"
            "0200000000000000"
            "a8a7a6a5a4a3a2a1"
            "0900000000000000"
            "5e2e3239"
            "e4393b65");
}

TEST(KvFrame, DecodingUnalignedBytesGivesTheHeaderBack) {
  const auto payload = Payload(33);
  const std::string shifted = "x" + Encode(KvHeader(33), payload);
  const auto header = DecodeKvFrameHeader(std::string_view(shifted).substr(1));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->kind, FrameKind::kKv);
  EXPECT_EQ(header->codec, KvCodec::kBf16);
  EXPECT_EQ(header->layer, 29);
  EXPECT_EQ(header->first_token, 0x01020304u);
  EXPECT_EQ(header->tokens, 512u);
  EXPECT_EQ(header->payload_bytes, 33u);
  EXPECT_EQ(header->request.value, 0x1112131415161718u);
  EXPECT_EQ(header->reservation.value, 0x2122232425262728u);
  EXPECT_EQ(header->epoch.value, 0x3132333435363738u);
  EXPECT_EQ(header->generation.value, 2u);
  EXPECT_EQ(header->layout_hash, 0xA1A2A3A4A5A6A7A8u);
  EXPECT_EQ(header->number, 9u);
  EXPECT_TRUE(VerifyCrc(std::string_view(shifted).substr(1), payload).ok());
}

TEST(KvFrame, EveryFlippedBitOfAHeaderIsFoundBeforeItsPayloadComes) {
  const std::string good = Encode(KvHeader(40), Payload(40));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string header = good;
    header[bit / 8] = static_cast<char>(header[bit / 8] ^ (1 << (bit % 8)));
    const Status found = DecodeKvFrameHeader(header).status();
    if (bit / 8 < 6) {  // magic and version: another protocol has its CRC elsewhere
      EXPECT_EQ(found.code(), absl::StatusCode::kInvalidArgument) << "bit " << bit;
    } else if (bit / 8 < 84) {
      EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss) << "bit " << bit;
    } else {
      EXPECT_TRUE(found.ok()) << "the payload's CRC";
      EXPECT_EQ(VerifyCrc(header, Payload(40)).code(), absl::StatusCode::kDataLoss) << "bit " << bit;
    }
  }
}

TEST(KvFrame, EveryFlippedBitOfAPayloadAndAPayloadOfAnotherHeaderAreDataLoss) {
  auto payload = Payload(40);
  std::string header = Encode(KvHeader(40), payload);
  KvFrameHeader other = KvHeader(40);
  ++other.first_token;
  EXPECT_EQ(VerifyCrc(Encode(other, payload).substr(0, 84) + header.substr(84), payload).code(),
            absl::StatusCode::kDataLoss);
  for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
    payload[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_EQ(VerifyCrc(header, payload).code(), absl::StatusCode::kDataLoss) << "payload bit " << bit;
    payload[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  EXPECT_TRUE(VerifyCrc(header, payload).ok());
}

TEST(KvFrame, APayloadOfAnotherLengthIsDataLossThatNamesBoth) {
  const auto payload = Payload(40);
  const Status s = VerifyCrc(Encode(KvHeader(40), payload), absl::MakeConstSpan(payload).first(39));
  EXPECT_EQ(s.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(s.message()), HasSubstr("39 bytes, its header says 40"));
}

TEST(KvFrame, AnyLengthButTheHeadersIsRefused) {
  const std::string bytes = Encode(KvHeader(1), Payload(1));
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_THAT(ErrorOf(bytes.substr(0, n)), HasSubstr("length"));
  EXPECT_THAT(ErrorOf(bytes + "x"), HasSubstr("length is 89, expected 88"));
}

TEST(KvFrame, FieldsWithoutAMeaningAreRefusedByName) {
  const std::string good = Encode(KvHeader(1), Payload(1));
  // With a right CRC: such a header was made, not damaged.
  const auto with = [&good](size_t offset, char value) {
    std::string bytes = good;
    bytes[offset] = value;
    const uint32_t crc = Crc32c(bytes.data(), 80);
    for (size_t i = 0; i < 4; ++i) bytes[80 + i] = static_cast<char>(crc >> (8 * i));
    return bytes;
  };
  EXPECT_THAT(ErrorOf(with(0, 'X')), HasSubstr("magic"));
  EXPECT_THAT(ErrorOf(with(4, 1)), HasSubstr("version is 1, expected 3"));
  EXPECT_THAT(ErrorOf(with(6, 0)), HasSubstr("kind is 0"));
  EXPECT_THAT(ErrorOf(with(6, 7)), HasSubstr("kind is 7"));
  EXPECT_THAT(ErrorOf(with(7, 0)), HasSubstr("codec number 0"));
  EXPECT_THAT(ErrorOf(with(7, 8)), HasSubstr("KV frame header: KV codec number 8 is unknown: there are 1 to 7"));
  EXPECT_THAT(ErrorOf(with(12, 1)), HasSubstr("kept_positions is 1"));
  EXPECT_THAT(ErrorOf(with(24, 0)), HasSubstr("payload_bytes"));
  EXPECT_THAT(ErrorOf(with(72, 0)), HasSubstr("number is 0"));
}

TEST(KvFrame, TokenRangesFitTheirKind) {
  KvFrameHeader header = KvHeader(1);
  header.tokens = 0;
  EXPECT_THAT(ErrorOf(Encode(header, Payload(1))), HasSubstr("tokens is 0"));
  header = KvHeader(1);
  header.layers = 0;
  EXPECT_THAT(ErrorOf(Encode(header, Payload(1))), HasSubstr("layers is 0"));
  header = KvHeader(1);
  header.first_token = 0xFFFFFFFF;
  EXPECT_THAT(ErrorOf(Encode(header, Payload(1))), HasSubstr("first_token"));
  header = KvHeader(1);
  header.kind = FrameKind::kCommit;
  EXPECT_THAT(ErrorOf(Encode(header, Payload(1))), HasSubstr("without KV"));
  header.tokens = 0;
  header.first_token = 0;
  header.layer = 0;
  header.layers = 0;
  EXPECT_THAT(ErrorOf(Encode(header, Payload(1))), HasSubstr("number is 9, expected 0"));
  header.number = 0;
  EXPECT_TRUE(DecodeKvFrameHeader(Encode(header, Payload(1))).ok());
}

TEST(KvFrame, AResendNamesARangeAndHasNoPayload) {
  KvFrameHeader header = KvHeader(0);
  header.kind = FrameKind::kResend;
  header.number = 0;
  const auto decoded = DecodeKvFrameHeader(Encode(header, {}));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->layers, 3);
  EXPECT_EQ(decoded->tokens, 512u);
}

TEST(KvFrame, TheCrcIsTheSameForAPayloadInPieces) {
  auto payload = Payload(100);
  const std::string header = Encode(KvHeader(100), payload);
  std::vector<absl::Span<std::byte>> pieces;
  for (const auto& [first, size] : std::vector<std::pair<size_t, size_t>>{{0, 1}, {1, 63}, {64, 30}, {94, 6}})
    pieces.push_back(absl::MakeSpan(payload).subspan(first, size));
  EXPECT_TRUE(VerifyCrc(header, pieces).ok());
  payload[70] ^= std::byte{1};
  EXPECT_EQ(VerifyCrc(header, pieces).code(), absl::StatusCode::kDataLoss);
  pieces.pop_back();
  EXPECT_THAT(std::string(VerifyCrc(header, pieces).message()), HasSubstr("94 bytes, its header says 100"));
}

TEST(KvFrame, CreditIsEightBytes) {
  const std::string credit = EncodeCredit(0x0102030405060708);
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(credit.data()), credit.size());
  EXPECT_EQ(*DecodeCredit(bytes), 0x0102030405060708u);
  EXPECT_THAT(std::string(DecodeCredit(bytes.subspan(1)).status().message()), HasSubstr("7 bytes, expected 8"));
}

}  // namespace
}  // namespace sluice
