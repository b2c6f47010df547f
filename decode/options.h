// What a decode process can be told. Only the command line knows flags; it fills this struct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/cache_policy.h"
#include "common/status.h"

namespace sluice {

struct DecodeOptions {
  std::string model_path;                      // GGUF file or Hugging Face folder
  std::string listen = "127.0.0.1:0";          // gRPC, "host:port"; port 0 picks one
  std::string kv_listen = "127.0.0.1:0";       // where KV arrives; peers are told this address, so it must be reachable
  std::string metrics_listen = "127.0.0.1:0";  // Prometheus scrapes here
  std::string kv_advertise_host;  // what peers are told instead of kv_listen's host, where that is no address
                                  // to connect to, such as 0.0.0.0; empty: kv_listen's host
  std::string kv_interface;       // KV goes over this network interface; empty: whatever kv_listen says
  std::string kv_test_faults;     // for tests: what happens to what arrives, as FaultPolicy::Parse reads it
  std::string cluster_key;        // authenticates tickets; at most one of these two, else the
  std::string cluster_key_file;   // environment's SLUICE_CLUSTER_KEY
  int announce_fd = -1;           // gets one JSON line when everything listens; -1: none

  int threads = 1;                                    // compute threads, the engine thread included
  bool exact = false;                                 // f32 products with dequantised weights: slower, for comparisons
  int64_t kv_memory_bytes = int64_t{1} << 30;         // all KV, taken and touched at start-up
  int64_t kv_park_bytes = 0;                          // running requests are parked there when pages run out; 0: every
                                                      // worst case is leased, and they never do
  std::string kv_park_folder;                         // as a file in it; empty: in memory, taken at start-up
  int page_tokens = 16;                               // slots of a KV page
  std::string kv_store = "auto";                      // how KV is kept: a codec that the model's layout allows
  std::string kv_wire = "auto";                       // how it may come: one codec, or every one that the layout allows
  CachePolicySpec policy;                             // which tokens' KV stays, of requests that do not say
  std::string request_policies = "full,sink-window";  // those that a request may name beside it: none of them may need
                                                      // more room than this one; ranking ones take memory
  int prefix_cache_pages = -1;                // KV pages that finished requests may leave; -1: all that are not in use
  int64_t prefix_cache_keep_ms = 600'000;     // they go that long after their last use, or earlier for room
  int64_t local_prefill_tokens_max = 64;      // rests of prompts that decode may compute itself; 0: none
  int local_prefill_chunk_tokens = 32;        // of them between two steps, which all running sequences wait for
  int batch_tokens_max = 64;                  // sequences of one step, each with one token; sizes the scratch memory
  int sequences_max = 1024;                   // admitted sequences; those beyond a step's limit take turns
  int requests_max = 1024;                    // reservations held at once, whatever their size
  int64_t staging_bytes = int64_t{64} << 20;  // KV that has arrived and is not in its pages yet
  int connections_max = 16;                   // prefill processes connected at once; each has an equal share of
                                              // staging_bytes as credit: KV of it that is on its way
  int mailbox_messages_max = 4096;            // control messages waiting for the engine thread; beyond it: refused
  int stream_tokens_max = 256;                // tokens a choice is ahead of a slow reader; then it pauses

  int64_t lease_ms = 10'000;       // a reservation without any sign of life
  int64_t queue_wait_ms = 60'000;  // the same while its reader listens and prefill has yet to begin
  int64_t drain_ms = 10'000;       // after SIGTERM, for what runs

  // InvalidArgument with every problem at once.
  Status Validate() const;
  // The kinds of policies that requests can have. REQUIRES: Validate.
  std::vector<CachePolicyKind> Policies() const;
};

}  // namespace sluice
