#include "prefill/options.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "model/kv_layout.h"
#include "transport/fault_policy.h"
#include "transport/transport.h"

namespace sluice {

StatusOr<SendWhen> ParseSendWhen(std::string_view name) {
  if (name == "layer") return SendWhen::kLayer;
  if (name == "chunk") return SendWhen::kChunk;
  if (name == "prompt") return SendWhen::kPrompt;
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(name), "' is none of layer, chunk, prompt"));
}

Status PrefillOptions::Validate() const {
  std::vector<std::string> problems;
  const auto at_least = [&problems](absl::string_view field, int64_t value, int64_t low) {
    if (value < low) problems.push_back(absl::StrCat(field, " is ", value, ", must be at least ", low));
  };
  const auto address = [&problems](absl::string_view field, const std::string& value) {
    const size_t colon = value.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == value.size())
      problems.push_back(absl::StrCat(field, " is '", value, "', must be host:port"));
  };
  const auto positive = [&problems](absl::string_view field, absl::Duration value) {
    if (value <= absl::ZeroDuration())
      problems.push_back(absl::StrCat(field, " is ", absl::FormatDuration(value), ", must be above 0"));
  };
  if (model_path.empty()) problems.push_back("model_path is empty");
  address("listen", listen);
  address("metrics_listen", metrics_listen);
  if (const auto faults = FaultPolicy::Parse(kv_test_faults); !faults.ok())
    problems.push_back(absl::StrCat("kv_test_faults: ", faults.status().message()));
  at_least("threads", threads, 1);
  at_least("kv_memory_bytes", kv_memory_bytes, 1);
  at_least("page_tokens", page_tokens, 1);
  if (const auto codec = ParseKvCodec(kv_store); kv_store != "auto" && !codec.ok())
    problems.push_back(absl::StrCat("kv_store: ", codec.status().message()));
  at_least("prefix_cache_pages", prefix_cache_pages, -1);
  at_least("batch_tokens_max", batch_tokens_max, 1);
  at_least("requests_max", requests_max, 1);
  at_least("queued_tokens_max", queued_tokens_max, 1);
  at_least("request_bytes_max", request_bytes_max, 1 << 16);
  if (request_bytes_max > 1 << 30)
    problems.push_back(absl::StrCat("request_bytes_max is ", request_bytes_max, ", at most 1 GiB"));
  if (const auto codec = ParseKvCodec(kv_wire); kv_wire != kWireAuto && kv_wire != kWireStore && !codec.ok())
    problems.push_back(absl::StrCat("kv_wire: auto, store or a codec; ", codec.status().message()));
  if (const auto when = ParseSendWhen(send); !when.ok())
    problems.push_back(absl::StrCat("send: ", when.status().message()));
  at_least("frame_bytes_max", frame_bytes_max, 1 << 12);
  constexpr auto kFrameBytesMax = static_cast<int64_t>(kPayloadBytesMax);
  if (frame_bytes_max > kFrameBytesMax)
    problems.push_back(absl::StrCat("frame_bytes_max is ", frame_bytes_max, ", a message of the transport carries ",
                                    kFrameBytesMax, " at most"));
  at_least("frame_bytes_min", frame_bytes_min, 1);
  if (frame_bytes_min > frame_bytes_max)
    problems.push_back(
        absl::StrCat("frame_bytes_min is ", frame_bytes_min, ", at most frame_bytes_max, ", frame_bytes_max));
  at_least("send_memory_bytes", send_memory_bytes, frame_bytes_max);
  at_least("connection_bytes_in_flight_max", connection_bytes_in_flight_max, frame_bytes_max);
  at_least("connections_max", connections_max, 1);
  positive("connect_timeout", connect_timeout);
  positive("result_timeout", result_timeout);
  positive("drain_max", drain_max);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

}  // namespace sluice
