// Any bytes as a ticket envelope: nothing without the right seal opens.
#include <cstdlib>

#include "model/ticket.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ClusterKey key = *ClusterKey::Load("0123456789abcdef", "");
  static const ClusterKey other = *ClusterKey::Load("fedcba9876543210", "");
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (Open(bytes, key).ok() && Open(bytes, other).ok()) std::abort();
  return 0;
}
