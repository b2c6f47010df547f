#include "cli/worker_flags.h"

#include "CLI/CLI.hpp"
#include "cli/flags.h"

namespace sluice {
namespace {

// Puts options of one group into the help text.
class Group {
 public:
  Group(CLI::App& app, std::string name) : app_(app), name_(std::move(name)) {}

  template <typename T>
  CLI::Option* Add(const std::string& flag, T* value, const std::string& help) {
    return app_.add_option(flag, *value, help)->capture_default_str()->group(name_);
  }
  CLI::Option* AddList(const std::string& flag, std::vector<std::string>* values, const std::string& help) {
    return app_.add_option(flag, *values, help)->delimiter(',')->allow_extra_args(false)->group(name_);
  }
  void Flag(const std::string& flag, bool* value, const std::string& help) {
    app_.add_flag(flag, *value, help)->group(name_);
  }
  template <typename T>
  void Bytes(const std::string& flag, T* value, const std::string& help) {
    AddBytes(app_, flag, value, help);
    app_.get_option(flag)->group(name_);
  }
  template <typename T>
  void Milliseconds(const std::string& flag, T* value, const std::string& help) {
    AddMilliseconds(app_, flag, value, help);
    app_.get_option(flag)->group(name_);
  }
  void Duration(const std::string& flag, absl::Duration* value, const std::string& help) {
    AddDuration(app_, flag, value, help);
    app_.get_option(flag)->group(name_);
  }

 private:
  CLI::App& app_;
  std::string name_;
};

// What prefill and decode share, under the same flags.
template <typename Options>
void AddModelFlags(CLI::App& app, Options* options) {
  Group model(app, "Model");
  model.Add("--model", &options->model_path, "GGUF file or Hugging Face folder")->type_name("PATH")->required();
  model.Add("--threads", &options->threads, "Compute threads");
  model.Flag("--exact", &options->exact, "Compute in f32 with dequantised weights: slower, for comparisons");
  model.Add("--batch-tokens", &options->batch_tokens_max, "Tokens of one step at most");
  Group kv(app, "KV cache");
  kv.Bytes("--kv-memory", &options->kv_memory_bytes, "Memory for KV, taken at start");
  kv.Add("--prefix-cache-pages", &options->prefix_cache_pages,
         "KV pages that finished requests may keep for those that begin alike; -1: all that are not in use, 0: none");
  kv.Add("--page-tokens", &options->page_tokens, "Tokens of a KV page");
  kv.Add("--kv-store", &options->kv_store, "How KV is kept")->type_name("auto|CODEC");
}

template <typename Options>
void AddWireFlags(CLI::App& app, Options* options) {
  Group network(app, "Network");
  network.Add("--kv-interface", &options->kv_interface, "Network interface that KV goes over, such as eth0")
      ->type_name("NAME");
  network
      .Add("--kv-test-faults", &options->kv_test_faults,
           "For tests only: harm what arrives, such as seed=7,drop=0.01,corrupt-payload@3,stall@5:2s")
      ->type_name("RULES");
}

template <typename Options>
void AddProcessFlags(CLI::App& app, Options* options) {
  Group process(app, "Process");
  process
      .Add("--cluster-key-file", &options->cluster_key_file,
           "File with the key that seals tickets; else SLUICE_CLUSTER_KEY in the environment")
      ->type_name("FILE");
  process.Add("--announce-fd", &options->announce_fd, "Write real addresses to this file descriptor when ready");
}

}  // namespace

void AddPrefillFlags(CLI::App& app, PrefillOptions* options) {
  AddModelFlags(app, options);
  Group network(app, "Network");
  network.Add("--listen", &options->listen, "Control (gRPC), host:port; port 0 picks one")->type_name("ADDRESS");
  network.Add("--metrics-listen", &options->metrics_listen, "Prometheus metrics")->type_name("ADDRESS");
  AddWireFlags(app, options);
  network.Duration("--connect-timeout", &options->connect_timeout, "Reaching a decode process");
  network.Duration("--result-timeout", &options->result_timeout, "Waiting for decode's answer to a handoff");
  network
      .Add(
          "--kv-wire", &options->kv_wire,
          "How KV travels: in the most accurate codec that the link can carry, in decode's store codec, or in this one")
      ->type_name("auto|store|CODEC");
  network.Add("--send", &options->send, "When KV leaves: each layer at once, each chunk, or the whole prompt")
      ->type_name("layer|chunk|prompt");
  Group limits(app, "Limits");
  limits.Add("--requests", &options->requests_max, "Requests accepted and not yet answered");
  limits.Add("--queued-tokens", &options->queued_tokens_max, "Prompt tokens accepted and not yet computed");
  limits.Bytes("--request-bytes", &options->request_bytes_max, "Of one control message");
  limits.Bytes("--send-memory", &options->send_memory_bytes, "KV copied out of its pages and not yet sent");
  limits.Bytes("--connection-bytes", &options->connection_bytes_in_flight_max, "The share of one decode process in it");
  limits.Bytes("--frame-bytes", &options->frame_bytes_max, "Of one KV frame");
  limits.Bytes("--frame-bytes-min", &options->frame_bytes_min, "Up to which layers of short prompts share a frame");
  limits.Add("--connections", &options->connections_max, "Decode processes connected to at once");
  AddProcessFlags(app, options);
  Group(app, "Process").Duration("--drain", &options->drain_max, "After SIGTERM, for what runs");
}

void AddDecodeFlags(CLI::App& app, DecodeOptions* options) {
  AddModelFlags(app, options);
  Group(app, "KV cache")
      .Milliseconds("--prefix-cache-keep", &options->prefix_cache_keep_ms, "How long they keep them without use");
  Group kv(app, "KV cache");
  kv.Bytes("--kv-park", &options->kv_park_bytes,
           "Room beside it where the youngest requests wait when pages run out; 0: worst cases are leased instead");
  kv.Add("--kv-park-folder", &options->kv_park_folder, "That room is a file in this folder, not memory")
      ->type_name("FOLDER");
  AddCachePolicyFlags(app, &options->policy);
  Group(app, "Cache")
      .Add("--request-policies", &options->request_policies,
           "Policies that a request may name beside that, as long as it needs no more room")
      ->type_name("POLICY,");
  Group network(app, "Network");
  network.Add("--listen", &options->listen, "Control (gRPC), host:port; port 0 picks one")->type_name("ADDRESS");
  network.Add("--kv-listen", &options->kv_listen, "Where prefill processes send KV")->type_name("ADDRESS");
  network.Add("--kv-wire", &options->kv_wire, "How KV may come: one codec, or every one that the model allows")
      ->type_name("auto|CODEC");
  network.Add("--kv-advertise-host", &options->kv_advertise_host, "What they are told instead of --kv-listen's host")
      ->type_name("HOST");
  AddWireFlags(app, options);
  network.Add("--metrics-listen", &options->metrics_listen, "Prometheus metrics")->type_name("ADDRESS");
  Group limits(app, "Limits");
  limits.Add("--sequences", &options->sequences_max, "Sequences that are generated, each step some of them");
  limits.Add("--requests", &options->requests_max, "Reservations held at once");
  limits.Bytes("--staging-memory", &options->staging_bytes, "KV that has arrived and is not in its pages yet");
  limits.Add("--connections", &options->connections_max,
             "Prefill processes connected at once; each may have its share of that on its way");
  limits.Add("--mailbox-messages", &options->mailbox_messages_max, "Control messages waiting for the engine");
  limits.Add("--stream-tokens", &options->stream_tokens_max, "Tokens that a choice may be ahead of its reader");
  limits.Add("--local-prefill-tokens", &options->local_prefill_tokens_max,
             "Rests of prompts that decode may compute itself where that is no slower; 0: none");
  limits.Add("--local-prefill-chunk", &options->local_prefill_chunk_tokens, "Tokens of them between two steps");
  limits.Milliseconds("--lease", &options->lease_ms, "Life of a reservation without any sign of its prefill");
  limits.Milliseconds("--queue-wait", &options->queue_wait_ms, "The same while prefill has yet to begin");
  AddProcessFlags(app, options);
  Group(app, "Process").Milliseconds("--drain", &options->drain_ms, "After SIGTERM, for what runs");
}

void AddGatewayFlags(CLI::App& app, GatewayOptions* options) {
  Group model(app, "Model");
  model.Add("--model", &options->model_path, "GGUF file or Hugging Face folder: tokenizer, template and limits")
      ->type_name("PATH")
      ->required();
  model.Add("--model-name", &options->model_name, "What clients call it; else the file's own name")->type_name("NAME");
  Group fleet(app, "Fleet");
  fleet.AddList("--prefill", &options->prefill_workers, "Addresses of prefill processes")
      ->type_name("ADDRESS,")
      ->required();
  fleet.AddList("--decode", &options->decode_workers, "Addresses of decode processes")
      ->type_name("ADDRESS,")
      ->required();
  fleet.Milliseconds("--status-period", &options->status_period_ms, "Between questions to a worker");
  fleet.Milliseconds("--status-timeout", &options->status_timeout_ms, "Of one question");
  fleet.Milliseconds("--worker-lost", &options->worker_lost_ms, "Silence after which requests go elsewhere");
  fleet.Milliseconds("--canary-period", &options->canary_period_ms, "Between one-token requests that prove readiness");
  fleet.Milliseconds("--canary-timeout", &options->canary_timeout_ms, "Of one of them");
  Group network(app, "Network");
  network.Add("--listen", &options->listen, "HTTP, host:port; port 0 picks one")->type_name("ADDRESS");
  network.Add("--connections", &options->connections_max, "Open at once");
  network.Bytes("--header-bytes", &options->header_bytes_max, "Of one request's header");
  network.Bytes("--body-bytes", &options->body_bytes_max, "Of one request's body");
  network.Bytes("--body-bytes-total", &options->body_bytes_total_max, "Of all bodies being read");
  network.Milliseconds("--header-timeout", &options->header_timeout_ms,
                       "From a request's first byte to its header's end");
  network.Milliseconds("--body-timeout", &options->body_timeout_ms, "Of a whole body");
  network.Milliseconds("--idle-timeout", &options->idle_timeout_ms, "Between requests of a connection");
  network.Milliseconds("--write-timeout", &options->write_timeout_ms, "Of a client that has stopped reading");
  Group requests(app, "Requests");
  requests.Add("--requests", &options->requests_max, "In flight; beyond it 429");
  requests.Add("--prompt-tokens", &options->prompt_tokens_max, "Of one prompt; 0: the model's context");
  requests.Add("--default-max-tokens", &options->default_max_tokens, "Of chats that do not say");
  requests.Milliseconds("--request-timeout", &options->request_timeout_ms, "Of a whole request; then 504");
  requests.Milliseconds("--queue-timeout", &options->room_wait_ms, "Waiting for room in a KV cache; then 429");
  requests.Milliseconds(
      "--prefill-queue-max", &options->prefill_queue_max_ms,
      "Predicted queue of a prefill process up to which KV memory is reserved; beyond it requests wait");
  requests.Add("--prefix-pages", &options->prefix_pages_max, "Pages of prompts remembered to route by; 0: none");
  requests.Add("--prefill-tries", &options->prefill_tries, "Prefill processes tried for one reservation");
  requests.Add("--decode-tries", &options->decode_tries, "Decode processes tried for one request");
  requests.Add("--prepare-threads", &options->prepare_threads, "Threads that parse, template and tokenise");
  Group process(app, "Process");
  process.Milliseconds("--drain", &options->drain_ms, "After SIGTERM, for what runs");
  process.Add("--announce-fd", &options->announce_fd, "Write the real address to this file descriptor when ready");
}

}  // namespace sluice
