// Whatever a stranger sends to the transport's port: frames off the stream, in two pieces, then the bodies.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "transport/control_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  sluice::ControlParser parser(1 << 16);
  parser.Append(bytes.substr(0, size / 2));
  auto frame = parser.Next();
  if (frame.ok() && !frame->has_value()) {
    parser.Append(bytes.substr(size / 2));
    frame = parser.Next();
  }
  while (frame.ok() && frame->has_value()) frame = parser.Next();

  const auto introduction = sluice::DecodeIntroduction(bytes);
  if (introduction.ok()) {
    SLUICE_CHECK(sluice::Encode(*introduction) == bytes, "what was decoded encodes back");
    const sluice::Mac hello = sluice::HelloMac("key", introduction->nonce, *introduction);
    SLUICE_CHECK(!sluice::MacsEqual(introduction->mac, hello), "who does not know the key has no MAC of a hello");
    const sluice::Mac welcome = sluice::WelcomeMac("key", hello, *introduction);
    SLUICE_CHECK(!sluice::MacsEqual(introduction->mac, welcome), "nor of a welcome");
    SLUICE_CHECK(!sluice::MacsEqual(hello, welcome), "a hello is no welcome");
  }
  SLUICE_CHECK(!sluice::DecodeStatus(bytes).ok(), "a refusal is an error");
  return 0;
}
