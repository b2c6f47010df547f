#include "model/ticket.h"

#include <array>
#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "openssl/crypto.h"
#include "openssl/evp.h"
#include "openssl/hmac.h"
#include "openssl/rand.h"

namespace sluice {

namespace {

constexpr size_t kKeyBytesMin = 16;
constexpr size_t kKeyBytesMax = 1024;
constexpr size_t kMacBytes = 32;

using Mac = std::array<unsigned char, kMacBytes>;

Mac HmacSha256(std::string_view message, const ClusterKey& key) {
  Mac mac;
  unsigned int length = kMacBytes;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), mac.data(), &length);
  SLUICE_CHECK(made != nullptr && length == kMacBytes);
  return mac;
}

StatusOr<std::string> ReadKeyFile(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  // One byte more than any key with its line end may have, so that a longer file is seen to be too long.
  std::string content(kKeyBytesMax + 3, '\0');
  if (!in.read(content.data(), static_cast<std::streamsize>(content.size())) && (in.bad() || !in.eof()))
    return absl::NotFoundError(absl::StrCat("cluster key file ", file, ": cannot be read"));
  content.resize(static_cast<size_t>(in.gcount()));
  return std::string(absl::StripAsciiWhitespace(content));
}

}  // namespace

StatusOr<ClusterKey> ClusterKey::Load(const std::string& key, const std::string& file) {
  if (!key.empty() && !file.empty())
    return absl::InvalidArgumentError("cluster key: given both directly and as a file");
  std::string bytes = key;
  if (!file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(bytes, ReadKeyFile(file));
  } else if (key.empty()) {
    const char* from_environment = std::getenv("SLUICE_CLUSTER_KEY");
    if (from_environment == nullptr || *from_environment == '\0')
      return absl::FailedPreconditionError(
          "no cluster key: give one, a file that holds one, or the environment variable SLUICE_CLUSTER_KEY");
    bytes = from_environment;
  }
  if (bytes.size() < kKeyBytesMin || bytes.size() > kKeyBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("cluster key of ", bytes.size(), " bytes, expected ", kKeyBytesMin, " to ", kKeyBytesMax));
  return ClusterKey(std::move(bytes));
}

ClusterKey ClusterKey::Generate() {
  std::array<unsigned char, 32> random;
  SLUICE_CHECK(RAND_bytes(random.data(), static_cast<int>(random.size())) == 1);
  return ClusterKey(
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(random.data()), random.size())));
}

std::string Seal(const proto::Ticket& ticket, const ClusterKey& key) {
  proto::TicketEnvelope envelope;
  envelope.set_ticket(ticket.SerializeAsString());
  const Mac mac = HmacSha256(envelope.ticket(), key);
  envelope.set_mac(mac.data(), mac.size());
  return envelope.SerializeAsString();
}

StatusOr<proto::Ticket> Open(std::string_view bytes, const ClusterKey& key) {
  if (bytes.size() > kTicketEnvelopeBytesMax)
    return absl::UnauthenticatedError(
        absl::StrCat("ticket of ", bytes.size(), " bytes, at most ", kTicketEnvelopeBytesMax));
  proto::TicketEnvelope envelope;
  if (!envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return absl::UnauthenticatedError("ticket: not an envelope");
  const Mac expected = HmacSha256(envelope.ticket(), key);
  if (envelope.mac().size() != kMacBytes || CRYPTO_memcmp(envelope.mac().data(), expected.data(), kMacBytes) != 0)
    return absl::UnauthenticatedError(
        "ticket: its seal is not this deployment's; do all workers have the same cluster key?");
  proto::Ticket ticket;
  // Sealed by a holder of the key, so this is a peer of another version and not an intruder.
  if (!ticket.ParseFromString(envelope.ticket()))
    return absl::FailedPreconditionError("ticket: sealed, but in another version's format");
  return ticket;
}

}  // namespace sluice
