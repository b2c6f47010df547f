#include "decode/metrics.h"

namespace sluice::decode {

namespace {
constexpr auto kCounter = MetricKind::kCounter;
constexpr auto kGauge = MetricKind::kGauge;
constexpr auto kHistogram = MetricKind::kHistogram;

std::vector<MetricRow> Table() {
  return {
      {"sluice_decode_memory_planned_bytes", kGauge, "What the memory plan allows this process at its peak."},
      {"sluice_decode_kv_pages_total", kGauge, "KV pages of this process."},
      {"sluice_decode_kv_pages_free", kGauge, "KV pages that nobody holds."},
      {"sluice_decode_kv_pages_reserved", kGauge, "KV pages that reservations hold."},
      {"sluice_decode_kv_pages_quarantined", kGauge, "KV pages of ended transfers that may still be written into."},
      {"sluice_decode_kv_pages_cached", kGauge, "KV pages of ended requests, kept for others while there is room."},
      {"sluice_decode_reservations", kGauge, "Reservations held, in any state."},
      {"sluice_decode_requests_active", kGauge, "Requests whose sequences decode."},
      {"sluice_decode_sequences_waiting", kGauge, "Committed sequences that wait to be admitted."},
      {"sluice_decode_staging_bytes_used", kGauge, "Bytes of arrived KV that is not in its pages yet."},
      {"sluice_decode_staging_bytes_total", kGauge, "Bytes there are for arriving KV."},
      {"sluice_decode_staging_pieces_from_heap", kGauge,
       "Arrived frames since the start for which staging memory had no gap large enough."},
      {"sluice_decode_tokens_total", kCounter, "Tokens generated here; the first of each choice is prefill's."},
      {"sluice_decode_prefix_hit_tokens_total", kCounter, "Prompt tokens whose KV was here and was not sent."},
      {"sluice_decode_prefix_evictions_total", kCounter, "Cached KV pages given up for room or for their age."},
      {"sluice_decode_local_prefills_total", kCounter, "Prompts whose rest was computed here instead of being sent."},
      {"sluice_decode_local_prefill_tokens_total", kCounter, "Prompt tokens that were computed here."},
      {"sluice_decode_commits_total", kCounter, "Handoffs that arrived whole."},
      {"sluice_decode_requests_finished_total", kCounter, "Requests all of whose choices came to their end."},
      {"sluice_decode_requests_failed_total", kCounter, "Running requests that failed here."},
      {"sluice_decode_requests_released_total", kCounter, "Reservations given up by the gateway or the client."},
      {"sluice_decode_expired_total", kCounter,
       "Reservations ended by a deadline: of the lease (no sign of life) or of the request."},
      {"sluice_decode_no_room_total", kCounter, "Reserve calls answered with no room."},
      {"sluice_decode_refused_busy_total", kCounter, "Control calls refused because the engine's mailbox was full."},
      {"sluice_decode_transfers_failed_total", kCounter, "Transfers that failed before they were complete."},
      {"sluice_decode_hellos_refused_total", kCounter, "Connections refused because the two sides do not fit."},
      {"sluice_decode_frames_received_total", kCounter, "Frames that were landed."},
      {"sluice_decode_kv_bytes_received_total", kCounter, "Bytes of KV bodies that were landed."},
      {"sluice_decode_kv_bytes_recoded_total", kCounter,
       "Bytes of KV bodies that were not in the store codec, and so passed through staging memory."},
      {"sluice_decode_kv_values_saturated_total", kCounter, "KV values that the store codec had to cut when recoding."},
      {"sluice_decode_kv_rows_nonfinite_total", kCounter,
       "KV rows with a NaN, an infinity or beyond the store codec's range when recoding; their transfers fail."},
      {"sluice_decode_stored_values_saturated_total", kCounter,
       "KV values that the store codec had to cut when they were computed here."},
      {"sluice_decode_stored_rows_nonfinite_total", kCounter,
       "KV rows with a NaN, an infinity or beyond the store codec's range when they were computed here."},
      {"sluice_decode_crc_failures_total", kCounter, "Frames whose CRC differed."},
      {"sluice_decode_resends_asked_total", kCounter, "Frames that came damaged and were asked for again."},
      {"sluice_decode_frames_dropped_total", kCounter, "Frames taken off the wire and forgotten, by reason."},
      {"sluice_decode_step_seconds",
       kHistogram,
       "Time of one step of the engine.",
       {0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2, 4}},
      {"sluice_decode_step_sequences", kHistogram, "Sequences of one step.", {1, 2, 4, 8, 16, 32, 64, 128, 256}},
  };
}

prometheus::Counter& Dropped(Metrics& metrics, const char* reason) {
  return metrics.counter("sluice_decode_frames_dropped_total", {{"reason", reason}});
}
}  // namespace

DecodeMetrics::DecodeMetrics()
    : metrics(Table()),
      memory_planned_bytes(metrics.gauge("sluice_decode_memory_planned_bytes")),
      kv_pages_total(metrics.gauge("sluice_decode_kv_pages_total")),
      kv_pages_free(metrics.gauge("sluice_decode_kv_pages_free")),
      kv_pages_reserved(metrics.gauge("sluice_decode_kv_pages_reserved")),
      kv_pages_quarantined(metrics.gauge("sluice_decode_kv_pages_quarantined")),
      kv_pages_cached(metrics.gauge("sluice_decode_kv_pages_cached")),
      reservations(metrics.gauge("sluice_decode_reservations")),
      requests_active(metrics.gauge("sluice_decode_requests_active")),
      sequences_waiting(metrics.gauge("sluice_decode_sequences_waiting")),
      staging_bytes_used(metrics.gauge("sluice_decode_staging_bytes_used")),
      staging_bytes_total(metrics.gauge("sluice_decode_staging_bytes_total")),
      staging_pieces_from_heap(metrics.gauge("sluice_decode_staging_pieces_from_heap")),
      tokens(metrics.counter("sluice_decode_tokens_total")),
      prefix_hit_tokens(metrics.counter("sluice_decode_prefix_hit_tokens_total")),
      prefix_evictions(metrics.counter("sluice_decode_prefix_evictions_total")),
      local_prefills(metrics.counter("sluice_decode_local_prefills_total")),
      local_prefill_tokens(metrics.counter("sluice_decode_local_prefill_tokens_total")),
      commits(metrics.counter("sluice_decode_commits_total")),
      requests_finished(metrics.counter("sluice_decode_requests_finished_total")),
      requests_failed(metrics.counter("sluice_decode_requests_failed_total")),
      requests_released(metrics.counter("sluice_decode_requests_released_total")),
      expired_reservations(metrics.counter("sluice_decode_expired_total", {{"deadline", "lease"}})),
      expired_requests(metrics.counter("sluice_decode_expired_total", {{"deadline", "request"}})),
      no_room(metrics.counter("sluice_decode_no_room_total")),
      refused_busy(metrics.counter("sluice_decode_refused_busy_total")),
      transfers_failed(metrics.counter("sluice_decode_transfers_failed_total")),
      hellos_refused(metrics.counter("sluice_decode_hellos_refused_total")),
      frames_received(metrics.counter("sluice_decode_frames_received_total")),
      kv_bytes_received(metrics.counter("sluice_decode_kv_bytes_received_total")),
      kv_bytes_recoded(metrics.counter("sluice_decode_kv_bytes_recoded_total")),
      kv_values_saturated(metrics.counter("sluice_decode_kv_values_saturated_total")),
      kv_rows_nonfinite(metrics.counter("sluice_decode_kv_rows_nonfinite_total")),
      stored_values_saturated(metrics.counter("sluice_decode_stored_values_saturated_total")),
      stored_rows_nonfinite(metrics.counter("sluice_decode_stored_rows_nonfinite_total")),
      crc_failures(metrics.counter("sluice_decode_crc_failures_total")),
      resends_asked(metrics.counter("sluice_decode_resends_asked_total")),
      dropped_unknown(Dropped(metrics, "unknown")),
      dropped_old_generation(Dropped(metrics, "old_generation")),
      dropped_other_epoch(Dropped(metrics, "other_epoch")),
      dropped_failed_transfer(Dropped(metrics, "failed_transfer")),
      dropped_duplicate(Dropped(metrics, "duplicate")),
      dropped_damaged(Dropped(metrics, "damaged")),
      dropped_other_connection(Dropped(metrics, "other_connection")),
      dropped_wrong(Dropped(metrics, "wrong")),
      step_seconds(metrics.histogram("sluice_decode_step_seconds")),
      step_sequences(metrics.histogram("sluice_decode_step_sequences")) {}

}  // namespace sluice::decode
