#include <vector>

#include "absl/strings/str_join.h"
#include "transport/transport.h"

namespace sluice {

Status TransportOptions::Validate() const {
  std::vector<std::string> problems;
  auto at_least_one = [&](const char* name, size_t value) {
    if (value == 0) problems.push_back(absl::StrCat(name, " is 0, must be at least 1"));
  };
  at_least_one("connections_max", connections_max);
  at_least_one("handshakes_max", handshakes_max);
  at_least_one("header_bytes_max", header_bytes_max);
  at_least_one("hello_bytes_max", hello_bytes_max);
  at_least_one("payload_bytes_max", payload_bytes_max);
  at_least_one("sends_pending_max", sends_pending_max);
  // A header travels beside the payload in one eager message, which has to fit the smallest transport's segment.
  if (header_bytes_max > 4096)
    problems.push_back(absl::StrCat("header_bytes_max is ", header_bytes_max, ", at most 4096"));
  if (hello_bytes_max > (1 << 20))
    problems.push_back(absl::StrCat("hello_bytes_max is ", hello_bytes_max, ", at most 1048576"));
  if (peer_silence_max < absl::Milliseconds(100) || peer_silence_max > absl::Minutes(10))
    problems.push_back(absl::StrCat("peer_silence_max is ", absl::FormatDuration(peer_silence_max),
                                    ", must be between 100ms and 10m"));
  if (!listen_address.empty() && listen_address.rfind(':') == std::string::npos)
    problems.push_back(absl::StrCat("listen_address is \"", listen_address, "\", must be host:port"));
  if (const Status wrong = faults.Validate(); !wrong.ok()) problems.emplace_back(wrong.message());
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

}  // namespace sluice
