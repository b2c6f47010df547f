#include "transport/control_frame.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/crc32c.h"

namespace sluice {

namespace {

constexpr uint32_t kMagic = 0x324B4C53;  // "SLK2"
constexpr size_t kStatusMessageBytesMax = 4096;

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and so is the code");

void AppendU32(std::string* out, uint32_t value) { out->append(reinterpret_cast<const char*>(&value), 4); }
void AppendU64(std::string* out, uint64_t value) { out->append(reinterpret_cast<const char*>(&value), 8); }

template <typename T>
T LoadAt(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

std::string EncodeControlFrame(ControlKind kind, std::string_view body) {
  std::string frame;
  frame.reserve(kControlHeaderBytes + body.size());
  AppendU32(&frame, kMagic);
  AppendU32(&frame, static_cast<uint32_t>(kind));
  AppendU32(&frame, static_cast<uint32_t>(body.size()));
  AppendU32(&frame, Crc32c(body.data(), body.size(), Crc32c(frame.data(), frame.size())));
  frame.append(body);
  return frame;
}

StatusOr<std::optional<ControlFrame>> ControlParser::Next() {
  if (buffer_.size() < kControlHeaderBytes) {
    // A stranger that speaks another protocol is told from the first bytes, without waiting for more of them.
    const size_t known = std::min(buffer_.size(), sizeof(kMagic));
    if (std::memcmp(buffer_.data(), &kMagic, known) != 0) return absl::InvalidArgumentError("not a control frame");
    return std::nullopt;
  }
  if (LoadAt<uint32_t>(buffer_, 0) != kMagic) return absl::InvalidArgumentError("not a control frame");
  const uint32_t kind = LoadAt<uint32_t>(buffer_, 4);
  if (kind < 1 || kind > 6) return absl::InvalidArgumentError(absl::StrCat("control frame of kind ", kind));
  const size_t body_bytes = LoadAt<uint32_t>(buffer_, 8);
  if (body_bytes > body_bytes_max_)
    return absl::InvalidArgumentError(
        absl::StrCat("control frame of ", body_bytes, " bytes, at most ", body_bytes_max_));
  if (buffer_.size() < kControlHeaderBytes + body_bytes) return std::nullopt;
  ControlFrame frame{.kind = static_cast<ControlKind>(kind), .body = buffer_.substr(kControlHeaderBytes, body_bytes)};
  const uint32_t crc = Crc32c(frame.body.data(), frame.body.size(), Crc32c(buffer_.data(), 12));
  if (crc != LoadAt<uint32_t>(buffer_, 12)) return absl::InvalidArgumentError("control frame with a wrong CRC");
  buffer_.erase(0, kControlHeaderBytes + body_bytes);
  return frame;
}

std::string Encode(const Introduction& introduction) {
  std::string body;
  body.append(introduction.nonce.data(), introduction.nonce.size());
  body.append(introduction.mac.data(), introduction.mac.size());
  AppendU64(&body, introduction.secret);
  AppendU32(&body, static_cast<uint32_t>(introduction.worker_address.size()));
  body.append(introduction.worker_address);
  body.append(introduction.words);
  return body;
}

StatusOr<Introduction> DecodeIntroduction(std::string_view body) {
  if (body.size() < kIntroductionFixedBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("introduction of ", body.size(), " bytes, at least ", kIntroductionFixedBytes));
  Introduction introduction;
  std::memcpy(introduction.nonce.data(), body.data(), sizeof(Nonce));
  std::memcpy(introduction.mac.data(), body.data() + sizeof(Nonce), sizeof(Mac));
  introduction.secret = LoadAt<uint64_t>(body, sizeof(Nonce) + sizeof(Mac));
  const size_t address_bytes = LoadAt<uint32_t>(body, sizeof(Nonce) + sizeof(Mac) + 8);
  const size_t rest = body.size() - kIntroductionFixedBytes;
  if (address_bytes > rest || address_bytes > kWorkerAddressBytesMax)
    return absl::InvalidArgumentError(absl::StrCat("worker address of ", address_bytes, " bytes, there are ", rest,
                                                   " and at most ", kWorkerAddressBytesMax));
  introduction.worker_address = body.substr(kIntroductionFixedBytes, address_bytes);
  introduction.words = body.substr(kIntroductionFixedBytes + address_bytes);
  return introduction;
}

namespace {

// `text`: the direction and what is answered, both of fixed size.
Mac ComputeMac(std::string_view key, std::string text, const Introduction& introduction) {
  Introduction without_mac = introduction;
  without_mac.mac = {};
  text.append(Encode(without_mac));
  Mac mac;
  unsigned int bytes = 0;
  const void* result =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(mac.data()), &bytes);
  SLUICE_CHECK(result != nullptr && bytes == mac.size(), "HMAC-SHA256 gives 32 bytes");
  return mac;
}

}  // namespace

Mac HelloMac(std::string_view key, const Nonce& challenge, const Introduction& hello) {
  return ComputeMac(key, "sluice hello" + std::string(challenge.data(), challenge.size()), hello);
}

Mac WelcomeMac(std::string_view key, const Mac& hello_mac, const Introduction& welcome) {
  return ComputeMac(key, "sluice welcome" + std::string(hello_mac.data(), hello_mac.size()), welcome);
}

bool MacsEqual(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Nonce RandomNonce() {
  Nonce nonce;
  SLUICE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) == 1,
               "the system has random bytes");
  return nonce;
}

uint64_t RandomSecret() {
  const Nonce nonce = RandomNonce();
  return LoadAt<uint64_t>(std::string_view(nonce.data(), nonce.size()), 0);
}

std::string EncodeStatus(const Status& status) {
  std::string body;
  AppendU32(&body, static_cast<uint32_t>(status.code()));
  body.append(std::string(status.message()).substr(0, kStatusMessageBytesMax));
  return body;
}

Status DecodeStatus(std::string_view body) {
  if (body.size() < 4) return absl::UnavailableError("the peer gave no reason");
  const uint32_t code = LoadAt<uint32_t>(body, 0);
  const bool known = code >= 1 && code <= 16;
  const std::string message(body.substr(4, kStatusMessageBytesMax));
  return known ? Status(static_cast<absl::StatusCode>(code), message) : absl::UnavailableError(message);
}

}  // namespace sluice
