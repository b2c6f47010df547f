// Tickets as they travel: decode seals its promise of pages with the deployment's shared key, prefill opens it, the
// gateway in between carries opaque bytes. So a client, or whoever reaches a port, cannot make a worker write KV
// anywhere.
#pragma once

#include <string>
#include <string_view>

#include "common/proto/handoff.pb.h"
#include "common/status.h"

namespace sluice {

// The deployment's secret. Printed nowhere.
class ClusterKey {
 public:
  // From exactly one source: `key` as given, else the content of `file` (white space around it does not count), else
  // the environment's SLUICE_CLUSTER_KEY. InvalidArgument where both arguments are set or the key has fewer than 16 or
  // more than 1024 bytes; FailedPrecondition where there is none; NotFound where the file cannot be read.
  static StatusOr<ClusterKey> Load(const std::string& key, const std::string& file);
  // 256 random bits, as hex.
  static ClusterKey Generate();

  const std::string& bytes() const { return bytes_; }

 private:
  explicit ClusterKey(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

inline constexpr size_t kTicketEnvelopeBytesMax = 4096;

// A serialised TicketEnvelope.
std::string Seal(const proto::Ticket& ticket, const ClusterKey& key);
// Unauthenticated where the MAC is not this key's over exactly these bytes, or the bytes are no envelope; what is
// inside is not parsed before that is known. Does not look at deadline, model or layout.
StatusOr<proto::Ticket> Open(std::string_view envelope, const ClusterKey& key);

}  // namespace sluice
