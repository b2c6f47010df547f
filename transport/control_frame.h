// What two ends of a connection tell each other beside messages: who they are, that they live, that they go. Frames on
// a TCP stream: 16 bytes of header (magic "SLK2", kind, three zero bytes, body bytes, CRC32C over the 12 bytes before
// and the body), then the body. Everything is little-endian, bounded and checked before it is used or allocated.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace sluice {

enum class ControlKind : uint8_t {
  kChallenge = 1,  // accepting side, first: a nonce
  kHello = 2,      // connecting side: an Introduction
  kWelcome = 3,    // accepting side: an Introduction
  kRefusal = 4,    // accepting side, instead of the welcome: a status
  kKeepalive = 5,  // either side: nothing
  kGoodbye = 6,    // either side, last: a status
};

struct ControlFrame {
  ControlKind kind = ControlKind::kKeepalive;
  std::string body;
};

inline constexpr size_t kControlHeaderBytes = 16;

std::string EncodeControlFrame(ControlKind kind, std::string_view body);

// Takes frames off a stream. After an error it stays at that error: the stream cannot be understood any more.
class ControlParser {
 public:
  explicit ControlParser(size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  void Append(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame, or nothing until more bytes come. InvalidArgument names what is wrong.
  StatusOr<std::optional<ControlFrame>> Next();

 private:
  const size_t body_bytes_max_;
  std::string buffer_;
};

using Nonce = std::array<char, 16>;
using Mac = std::array<char, 32>;

// One end introduces itself: where its messages are to go and what the user of the transport has to say. The MAC
// proves that the sender knows the deployment's key, before any other field of it is used.
struct Introduction {
  Nonce nonce = {};
  Mac mac = {};
  uint64_t secret = 0;         // messages to this end carry it, so that only this peer can send them
  std::string worker_address;  // opaque; of UCX
  std::string words;           // hello or reply
};

inline constexpr size_t kWorkerAddressBytesMax = 64 << 10;
// Beyond worker address and words.
inline constexpr size_t kIntroductionFixedBytes = sizeof(Nonce) + sizeof(Mac) + 8 + 4;

std::string Encode(const Introduction& introduction);
StatusOr<Introduction> DecodeIntroduction(std::string_view body);
// HMAC-SHA256 over everything but the MAC itself, bound to the direction and to what it answers, so that neither can be
// used again: a hello answers the challenge, a welcome the hello's MAC, and with it the nonces of both ends.
Mac HelloMac(std::string_view key, const Nonce& challenge, const Introduction& hello);
Mac WelcomeMac(std::string_view key, const Mac& hello_mac, const Introduction& welcome);
bool MacsEqual(const Mac& a, const Mac& b);  // in constant time
Nonce RandomNonce();
uint64_t RandomSecret();

std::string EncodeStatus(const Status& status);
// Never OK: a peer that refuses with OK, or in a way that cannot be understood, is Unavailable.
Status DecodeStatus(std::string_view body);

}  // namespace sluice
