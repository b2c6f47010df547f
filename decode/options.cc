#include "decode/options.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "model/kv_layout.h"
#include "transport/fault_policy.h"

namespace sluice {

namespace {
constexpr int64_t kCreditBytesMin = int64_t{1} << 16;

// The names of a list, each checked.
StatusOr<std::vector<CachePolicyKind>> ParsePolicies(const std::string& names) {
  std::vector<CachePolicyKind> kinds;
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    SLUICE_ASSIGN_OR_RETURN(const CachePolicyKind kind, ParseCachePolicyKind({name.data(), name.size()}));
    kinds.push_back(kind);
  }
  return kinds;
}
}  // namespace

std::vector<CachePolicyKind> DecodeOptions::Policies() const {
  std::vector<CachePolicyKind> kinds = *ParsePolicies(request_policies);
  if (std::find(kinds.begin(), kinds.end(), policy.kind) == kinds.end()) kinds.push_back(policy.kind);
  return kinds;
}

Status DecodeOptions::Validate() const {
  std::vector<std::string> problems;
  const auto at_least = [&problems](absl::string_view field, int64_t value, int64_t low) {
    if (value < low) problems.push_back(absl::StrCat(field, " is ", value, ", must be at least ", low));
  };
  const auto not_empty = [&problems](absl::string_view field, const std::string& value) {
    if (value.empty()) problems.push_back(absl::StrCat(field, " is empty"));
  };
  not_empty("model_path", model_path);
  not_empty("listen", listen);
  not_empty("kv_listen", kv_listen);
  not_empty("metrics_listen", metrics_listen);
  if (kv_listen.rfind("0.0.0.0:", 0) == 0 && kv_advertise_host.empty() && kv_interface.empty()) {
    problems.push_back(
        "kv_listen is 0.0.0.0, which nobody can connect to: kv_advertise_host or kv_interface must say where it is");
  }
  if (const auto faults = FaultPolicy::Parse(kv_test_faults); !faults.ok()) {
    problems.push_back(absl::StrCat("kv_test_faults: ", faults.status().message()));
  }
  at_least("threads", threads, 1);
  at_least("kv_memory_bytes", kv_memory_bytes, 1);
  at_least("kv_park_bytes", kv_park_bytes, 0);
  if (kv_park_bytes == 0 && !kv_park_folder.empty()) {
    problems.push_back(absl::StrCat("kv_park_folder is ", kv_park_folder, ", and kv_park_bytes is 0"));
  }
  at_least("page_tokens", page_tokens, 1);
  const auto a_codec = [&problems](absl::string_view field, const std::string& value) {
    const auto codec = ParseKvCodec(value);
    if (value != "auto" && !codec.ok()) problems.push_back(absl::StrCat(field, ": ", codec.status().message()));
  };
  a_codec("kv_store", kv_store);
  a_codec("kv_wire", kv_wire);
  if (const Status valid = sluice::Validate(policy); !valid.ok()) problems.emplace_back(valid.message());
  if (const auto kinds = ParsePolicies(request_policies); !kinds.ok())
    problems.push_back(absl::StrCat("request_policies: ", kinds.status().message()));
  at_least("prefix_cache_pages", prefix_cache_pages, -1);
  at_least("prefix_cache_keep_ms", prefix_cache_keep_ms, 1);
  at_least("local_prefill_tokens_max", local_prefill_tokens_max, 0);
  at_least("local_prefill_chunk_tokens", local_prefill_chunk_tokens, 1);
  at_least("batch_tokens_max", batch_tokens_max, 1);
  at_least("sequences_max", sequences_max, batch_tokens_max);
  at_least("requests_max", requests_max, 1);
  at_least("connections_max", connections_max, 1);
  at_least("staging_bytes", staging_bytes, std::max(connections_max, 1) * kCreditBytesMin);
  at_least("mailbox_messages_max", mailbox_messages_max, 1);
  at_least("stream_tokens_max", stream_tokens_max, 1);
  at_least("lease_ms", lease_ms, 1);
  at_least("queue_wait_ms", queue_wait_ms, lease_ms);
  at_least("drain_ms", drain_ms, 0);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

}  // namespace sluice
