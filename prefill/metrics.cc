#include "prefill/metrics.h"

#include "absl/strings/ascii.h"

namespace sluice::prefill {

namespace {

const std::vector<double> kSecondsBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                             0.5,   1,      2.5,   5,    10,    25,   60};

std::vector<MetricRow> Table() {
  using K = MetricKind;
  return {
      {"sluice_prefill_requests_total", K::kCounter, "Prompts accepted and answered, by canonical status code"},
      {"sluice_prefill_refused_total", K::kCounter, "Prompts refused on arrival, by canonical status code"},
      {"sluice_prefill_requests_active", K::kGauge, "Prompts accepted and not yet answered"},
      {"sluice_prefill_requests_queued", K::kGauge, "Prompts that wait for pages or for their first step"},
      {"sluice_prefill_queued_tokens", K::kGauge, "Prompt tokens accepted and not yet computed"},
      {"sluice_prefill_tokens_per_second", K::kGauge, "Recent rate of computing prompt tokens while at work"},
      {"sluice_prefill_prompt_tokens_total", K::kCounter, "Prompt tokens computed"},
      {"sluice_prefill_steps_total", K::kCounter, "Forward passes over a batch of prompt chunks"},
      {"sluice_prefill_prefix_hit_tokens_total", K::kCounter, "Prompt tokens whose KV was in the cache"},
      {"sluice_prefill_prefix_miss_tokens_total", K::kCounter, "Prompt tokens that had to be computed"},
      {"sluice_prefill_prefix_evictions_total", K::kCounter, "Cached KV pages given up for room"},
      {"sluice_prefill_memory_planned_bytes", K::kGauge, "What the memory plan allows this process at its peak"},
      {"sluice_prefill_kv_pages_total", K::kGauge, "KV pages of the pool"},
      {"sluice_prefill_kv_pages_free", K::kGauge, "KV pages that hold nothing"},
      {"sluice_prefill_kv_pages_cached", K::kGauge, "KV pages that finished prompts have left and no prompt holds"},
      {"sluice_prefill_connections", K::kGauge, "Connections to decode processes, those still shaking hands included"},
      {"sluice_prefill_kv_tokens_sent_total", K::kCounter, "Prompt tokens whose KV was handed over"},
      {"sluice_prefill_kv_tokens_skipped_total", K::kCounter, "Prompt tokens that decode's cache policy did not want"},
      {"sluice_prefill_kv_bytes_out", K::kGauge,
       "KV payload that was sent and that decode has not given back as credit"},
      {"sluice_prefill_kv_frames_sent_total", K::kCounter, "Frames with KV given to the transport"},
      {"sluice_prefill_kv_bytes_sent_total", K::kCounter, "Bytes of their bodies, by wire codec"},
      {"sluice_prefill_frames_sent_again_total", K::kCounter, "Those that decode asked for a second time"},
      {"sluice_prefill_encode_seconds_total", K::kCounter, "Spent on bringing KV into its wire codec"},
      {"sluice_prefill_saturated_values_total", K::kCounter, "KV values that a wire codec cut to its largest one"},
      {"sluice_prefill_nonfinite_rows_total", K::kCounter,
       "KV rows with a NaN, an infinity or beyond the wire codec's range; their requests fail"},
      {"sluice_prefill_stored_saturated_values_total", K::kCounter,
       "KV values that the store codec cut to its largest one when they were computed"},
      {"sluice_prefill_stored_nonfinite_rows_total", K::kCounter,
       "KV rows with a NaN, an infinity or beyond the store codec's range when they were computed"},
      {"sluice_prefill_wire_codec_total", K::kCounter, "Transfers by the wire codec that was chosen for them"},
      {"sluice_prefill_link_ratio", K::kGauge,
       "The link's rate over the rate of producing KV, of the last transfer in this wire codec; 0: not known"},
      {"sluice_prefill_link_bytes_per_second", K::kGauge, "The measured rate of the link that was chosen for last"},
      {"sluice_prefill_connects_failed_total", K::kCounter, "Decode processes that were not reached or did not fit"},
      {"sluice_prefill_transfers_failed_total", K::kCounter,
       "Transfers that decode did not acknowledge, by status code"},
      {"sluice_prefill_stray_results_total", K::kCounter, "Results from decode for transfers that had ended here"},
      {"sluice_prefill_stray_resends_total", K::kCounter, "Frames wanted again of transfers that had ended here"},
      {"sluice_prefill_queue_seconds", K::kHistogram, "From acceptance to the first step", kSecondsBuckets},
      {"sluice_prefill_compute_seconds", K::kHistogram, "From the first step to the first token", kSecondsBuckets},
      {"sluice_prefill_transfer_seconds", K::kHistogram, "From the first token to decode's acknowledgement",
       kSecondsBuckets},
  };
}

}  // namespace

PrefillMetrics::PrefillMetrics()
    : metrics_(Table()),
      requests_active(metrics_.gauge("sluice_prefill_requests_active")),
      requests_queued(metrics_.gauge("sluice_prefill_requests_queued")),
      queued_tokens(metrics_.gauge("sluice_prefill_queued_tokens")),
      tokens_per_second(metrics_.gauge("sluice_prefill_tokens_per_second")),
      memory_planned_bytes(metrics_.gauge("sluice_prefill_memory_planned_bytes")),
      kv_pages_total(metrics_.gauge("sluice_prefill_kv_pages_total")),
      kv_pages_free(metrics_.gauge("sluice_prefill_kv_pages_free")),
      kv_pages_cached(metrics_.gauge("sluice_prefill_kv_pages_cached")),
      connections(metrics_.gauge("sluice_prefill_connections")),
      kv_tokens_sent(metrics_.counter("sluice_prefill_kv_tokens_sent_total")),
      kv_tokens_skipped(metrics_.counter("sluice_prefill_kv_tokens_skipped_total")),
      kv_bytes_out(metrics_.gauge("sluice_prefill_kv_bytes_out")),
      prompt_tokens(metrics_.counter("sluice_prefill_prompt_tokens_total")),
      steps(metrics_.counter("sluice_prefill_steps_total")),
      prefix_hit_tokens(metrics_.counter("sluice_prefill_prefix_hit_tokens_total")),
      prefix_miss_tokens(metrics_.counter("sluice_prefill_prefix_miss_tokens_total")),
      prefix_evictions(metrics_.counter("sluice_prefill_prefix_evictions_total")),
      kv_frames_sent(metrics_.counter("sluice_prefill_kv_frames_sent_total")),
      frames_sent_again(metrics_.counter("sluice_prefill_frames_sent_again_total")),
      encode_seconds(metrics_.counter("sluice_prefill_encode_seconds_total")),
      saturated_values(metrics_.counter("sluice_prefill_saturated_values_total")),
      nonfinite_rows(metrics_.counter("sluice_prefill_nonfinite_rows_total")),
      stored_saturated_values(metrics_.counter("sluice_prefill_stored_saturated_values_total")),
      stored_nonfinite_rows(metrics_.counter("sluice_prefill_stored_nonfinite_rows_total")),
      stray_results(metrics_.counter("sluice_prefill_stray_results_total")),
      stray_resends(metrics_.counter("sluice_prefill_stray_resends_total")),
      connects_failed(metrics_.counter("sluice_prefill_connects_failed_total")),
      link_bytes_per_second(metrics_.gauge("sluice_prefill_link_bytes_per_second")),
      queue_seconds(metrics_.histogram("sluice_prefill_queue_seconds")),
      compute_seconds(metrics_.histogram("sluice_prefill_compute_seconds")),
      transfer_seconds(metrics_.histogram("sluice_prefill_transfer_seconds")) {}

prometheus::Counter& PrefillMetrics::ByCode(std::string_view name, const Status& status) {
  return metrics_.counter(name, {{"code", absl::AsciiStrToLower(absl::StatusCodeToString(status.code()))}});
}

}  // namespace sluice::prefill
