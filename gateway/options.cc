#include "gateway/options.h"

#include <charconv>
#include <set>

#include "absl/strings/str_join.h"

namespace sluice {

namespace {

class Problems {
 public:
  void AtLeast(absl::string_view field, int64_t value, int64_t least) {
    if (value < least) list_.push_back(absl::StrCat(field, " is ", value, ", must be at least ", least));
  }
  void Add(std::string problem) { list_.push_back(std::move(problem)); }
  void Addresses(absl::string_view field, const std::vector<std::string>& addresses) {
    if (addresses.empty()) Add(absl::StrCat(field, " is empty, needs at least one host:port"));
    std::set<std::string> seen;
    for (const std::string& address : addresses) {
      const StatusOr<HostPort> parsed = ParseHostPort(address);
      if (!parsed.ok()) Add(absl::StrCat(field, ": ", parsed.status().message()));
      if (parsed.ok() && parsed->port == 0) Add(absl::StrCat(field, ": ", address, " has port 0"));
      if (!seen.insert(address).second) Add(absl::StrCat(field, " names ", address, " twice"));
    }
  }
  Status ToStatus() const {
    return list_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(list_, "; "));
  }

 private:
  std::vector<std::string> list_;
};

}  // namespace

StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort out;
  const char* end = text.data() + text.size();
  if (colon != std::string::npos) {
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, out.port);
    if (error == std::errc() && stop == end) {
      out.host = text.substr(0, colon);
      if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
        out.host = out.host.substr(1, out.host.size() - 2);
      }
      if (!out.host.empty()) return out;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not host:port"));
}

Status GatewayOptions::Validate() const {
  Problems p;
  if (model_path.empty()) p.Add("model_path is empty");
  if (const StatusOr<HostPort> at = ParseHostPort(listen); !at.ok()) {
    p.Add(absl::StrCat("listen: ", at.status().message()));
  }
  p.Addresses("prefill_workers", prefill_workers);
  p.Addresses("decode_workers", decode_workers);
  p.AtLeast("connections_max", connections_max, 1);
  p.AtLeast("header_bytes_max", static_cast<int64_t>(header_bytes_max), 1024);
  p.AtLeast("body_bytes_max", static_cast<int64_t>(body_bytes_max), 1024);
  p.AtLeast("body_bytes_total_max", static_cast<int64_t>(body_bytes_total_max), static_cast<int64_t>(body_bytes_max));
  p.AtLeast("header_timeout_ms", header_timeout_ms, 1);
  p.AtLeast("body_timeout_ms", body_timeout_ms, 1);
  p.AtLeast("idle_timeout_ms", idle_timeout_ms, 1);
  p.AtLeast("write_timeout_ms", write_timeout_ms, 1);
  p.AtLeast("requests_max", requests_max, 1);
  p.AtLeast("prompt_tokens_max", prompt_tokens_max, 0);
  p.AtLeast("default_max_tokens", default_max_tokens, 1);
  p.AtLeast("request_timeout_ms", request_timeout_ms, 1);
  p.AtLeast("room_wait_ms", room_wait_ms, 0);
  p.AtLeast("prefill_queue_max_ms", prefill_queue_max_ms, 0);
  p.AtLeast("prefix_pages_max", prefix_pages_max, 0);
  p.AtLeast("prefill_tries", prefill_tries, 1);
  p.AtLeast("decode_tries", decode_tries, 1);
  p.AtLeast("prepare_threads", prepare_threads, 1);
  p.AtLeast("status_period_ms", status_period_ms, 1);
  p.AtLeast("status_timeout_ms", status_timeout_ms, 1);
  p.AtLeast("worker_lost_ms", worker_lost_ms, int64_t{status_period_ms} + status_timeout_ms);
  p.AtLeast("canary_period_ms", canary_period_ms, 1);
  p.AtLeast("canary_timeout_ms", canary_timeout_ms, 1);
  p.AtLeast("drain_ms", drain_ms, 0);
  return p.ToStatus();
}

}  // namespace sluice
