// The metrics of a prefill process: the table, and a typed member for each row. Thread-safe.
#pragma once

#include "common/metrics.h"
#include "common/status.h"
#include "kernels/codec/codec.h"

namespace sluice::prefill {

class PrefillMetrics {
 public:
  PrefillMetrics();

  Metrics& all() { return metrics_; }

  // Answers by canonical code, "ok" included; refusals before a prompt was accepted count apart.
  prometheus::Counter& requests(const Status& status) { return ByCode("sluice_prefill_requests_total", status); }
  prometheus::Counter& refused(const Status& status) { return ByCode("sluice_prefill_refused_total", status); }
  prometheus::Counter& transfers_failed(const Status& status) {
    return ByCode("sluice_prefill_transfers_failed_total", status);
  }
  // By wire codec.
  prometheus::Counter& wire_codecs(KvCodec codec) {
    return metrics_.counter("sluice_prefill_wire_codec_total", {{"codec", std::string(Name(codec))}});
  }
  prometheus::Gauge& link_ratio(KvCodec codec) {
    return metrics_.gauge("sluice_prefill_link_ratio", {{"codec", std::string(Name(codec))}});
  }
  prometheus::Counter& kv_bytes_sent(KvCodec codec) {
    return metrics_.counter("sluice_prefill_kv_bytes_sent_total", {{"codec", std::string(Name(codec))}});
  }

 private:
  prometheus::Counter& ByCode(std::string_view name, const Status& status);
  Metrics metrics_;

 public:
  prometheus::Gauge& requests_active;
  prometheus::Gauge& requests_queued;
  prometheus::Gauge& queued_tokens;
  prometheus::Gauge& tokens_per_second;
  prometheus::Gauge& memory_planned_bytes;
  prometheus::Gauge& kv_pages_total;
  prometheus::Gauge& kv_pages_free;
  prometheus::Gauge& kv_pages_cached;
  prometheus::Gauge& connections;
  prometheus::Counter& kv_tokens_sent;
  prometheus::Counter& kv_tokens_skipped;
  prometheus::Gauge& kv_bytes_out;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& steps;
  prometheus::Counter& prefix_hit_tokens;
  prometheus::Counter& prefix_miss_tokens;
  prometheus::Counter& prefix_evictions;
  prometheus::Counter& kv_frames_sent;
  prometheus::Counter& frames_sent_again;
  prometheus::Counter& encode_seconds;
  prometheus::Counter& saturated_values;
  prometheus::Counter& nonfinite_rows;
  prometheus::Counter& stored_saturated_values;
  prometheus::Counter& stored_nonfinite_rows;
  prometheus::Counter& stray_results;
  prometheus::Counter& stray_resends;
  prometheus::Counter& connects_failed;
  prometheus::Gauge& link_bytes_per_second;
  prometheus::Histogram& queue_seconds;
  prometheus::Histogram& compute_seconds;
  prometheus::Histogram& transfer_seconds;
};

}  // namespace sluice::prefill
