// What an operator may set of a prefill process. Plain data: the command line fills it, Validate() judges it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/status.h"

namespace sluice {

// When computed KV leaves.
enum class SendWhen : uint8_t {
  kLayer,   // each layer of a step while the next one computes
  kChunk,   // all layers after their step
  kPrompt,  // everything after the last step
};
StatusOr<SendWhen> ParseSendWhen(std::string_view name);  // InvalidArgument lists the names there are

// Values of kv_wire that are no codec: the most accurate codec that the link can carry; or what decode stores, whatever
// the link, which gives the answers of one process bit by bit where both store alike.
inline constexpr std::string_view kWireAuto = "auto";
inline constexpr std::string_view kWireStore = "store";

struct PrefillOptions {
  std::string model_path;                      // GGUF file or Hugging Face folder
  std::string listen = "127.0.0.1:0";          // gRPC, "host:port"; port 0 picks one
  std::string metrics_listen = "127.0.0.1:0";  // Prometheus scrapes here
  std::string kv_interface;                    // KV goes over this network interface; empty: whichever leads to decode
  std::string kv_test_faults;                  // for tests: what happens to decode's answers (FaultPolicy::Parse)
  std::string cluster_key;                     // opens decode's tickets; empty: cluster_key_file, then the environment
  std::string cluster_key_file;                // holds the key
  int announce_fd = -1;                        // gets one JSON line when everything listens, and is closed; -1: none

  int threads = 1;                               // compute threads, the engine thread included
  bool exact = false;                            // f32 products with dequantised weights: slower, for comparisons
  int64_t kv_memory_bytes = int64_t{512} << 20;  // KV of prompts on their way, taken and touched at start-up
  int page_tokens = 16;                          // slots of a KV page
  std::string kv_store = "auto";                 // how KV is kept: a codec that the model's layout allows
  int prefix_cache_pages = -1;                   // KV pages that finished prompts may keep; -1: whatever is not in use
  // Tokens of one step: what a cancelled prompt still costs, what the first bytes wait for, and the scratch memory.
  int batch_tokens_max = 256;
  int requests_max = 256;                         // accepted and not yet answered; one more is refused
  int64_t queued_tokens_max = int64_t{1} << 20;   // prompt tokens accepted and not yet computed; likewise
  int64_t request_bytes_max = int64_t{16} << 20;  // of one control message

  std::string kv_wire = "auto";                                // how KV travels: below, or a codec
  std::string send = "layer";                                  // a SendWhen; the others are for comparisons
  int64_t send_memory_bytes = int64_t{32} << 20;               // KV copied out of its pages and not yet sent
  int64_t connection_bytes_in_flight_max = int64_t{16} << 20;  // the share of one decode process in it
  int64_t frame_bytes_min = int64_t{128} << 10;                // layers of short prompts share a frame up to it
  int64_t frame_bytes_max = int64_t{4} << 20;                  // of one frame; long chunks of wide models are split
  int connections_max = 64;                                    // decode processes connected to at once

  absl::Duration connect_timeout = absl::Seconds(2);
  absl::Duration result_timeout = absl::Seconds(10);  // for decode's answer to a commit
  absl::Duration drain_max = absl::Seconds(10);       // after SIGTERM, for what runs

  // InvalidArgument with every problem at once.
  Status Validate() const;
};

}  // namespace sluice
