// What an operator may set of a gateway. Plain data: the command line and the config file fill it, Validate() judges
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace sluice {

struct GatewayOptions {
  std::string model_path;  // GGUF file or Hugging Face folder: tokenizer, chat template and limits are read from it
  std::string model_name;  // what clients call it; empty: the name of its file or folder

  std::string listen = "127.0.0.1:8000";     // host:port; port 0 picks one
  std::vector<std::string> prefill_workers;  // host:port each; names are resolved again when a worker is lost
  std::vector<std::string> decode_workers;

  // HTTP. Memory that clients can hold: connections_max * (header_bytes_max + 64 KiB) + body_bytes_total_max.
  int connections_max = 1024;
  size_t header_bytes_max = size_t{16} << 10;
  size_t body_bytes_max = size_t{8} << 20;
  size_t body_bytes_total_max = size_t{256} << 20;  // of all requests being read or prepared; beyond it 503
  int header_timeout_ms = 10'000;                   // from the first byte of a request to the end of its header
  int body_timeout_ms = 30'000;                     // whole body
  int idle_timeout_ms = 75'000;                     // between requests of a connection
  int write_timeout_ms = 30'000;                    // without progress of a write: the client has stopped reading

  // Requests.
  int requests_max = 1024;               // in flight; beyond it 429
  int prompt_tokens_max = 0;             // 0: the model's context
  int default_max_tokens = 1024;         // of chats that do not say; never more than may be generated
  int64_t request_timeout_ms = 600'000;  // the whole request; then 504
  int64_t room_wait_ms = 10'000;         // waiting for KV pages; then 429 with Retry-After
  int64_t prefill_queue_max_ms = 2'000;  // predicted, of a prefill: beyond it a request waits here, without KV pages
  int64_t prefix_pages_max = 1 << 17;    // of prompts that are remembered to route by, some 150 bytes each; 0: none
  int prefill_tries = 2;                 // prefill workers tried for one reservation
  int decode_tries = 3;                  // reservations tried for one request (refusals for want of room not counted)
  int prepare_threads = 1;               // parse, template and tokenise; prompts of many clients share them

  // Fleet.
  int status_period_ms = 500;
  int status_timeout_ms = 1'500;  // of one question
  int worker_lost_ms = 4'000;     // silent for so long: its requests are taken elsewhere
  int canary_period_ms = 5'000;
  int canary_timeout_ms = 4'000;

  int drain_ms = 10'000;  // on SIGTERM: what runs may finish for so long
  int announce_fd = -1;   // gets one JSON line with the real port once it listens, and is closed; -1: none

  // Every problem at once. InvalidArgument.
  Status Validate() const;
};

// "host:port", "[v6]:port". InvalidArgument names what is wrong with it.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
StatusOr<HostPort> ParseHostPort(const std::string& text);

}  // namespace sluice
