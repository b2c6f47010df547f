// What a decode process counts: one table, and the typed members by which code updates it. Thread-safe.
#pragma once

#include "common/metrics.h"

namespace sluice::decode {

struct DecodeMetrics {
  DecodeMetrics();

  Metrics metrics;

  prometheus::Gauge& memory_planned_bytes;
  prometheus::Gauge& kv_pages_total;
  prometheus::Gauge& kv_pages_free;
  prometheus::Gauge& kv_pages_reserved;
  prometheus::Gauge& kv_slots_used;
  prometheus::Gauge& kv_pages_quarantined;
  prometheus::Gauge& kv_pages_cached;
  prometheus::Gauge& reservations;
  prometheus::Gauge& requests_active;
  prometheus::Gauge& sequences_waiting;
  prometheus::Gauge& requests_parked;
  prometheus::Gauge& park_pages_total;
  prometheus::Gauge& park_pages_used;
  prometheus::Gauge& staging_bytes_used;
  prometheus::Gauge& staging_bytes_total;
  prometheus::Gauge& staging_pieces_from_heap;
  prometheus::Counter& tokens;
  prometheus::Counter& prefix_hit_tokens;
  prometheus::Counter& prefix_evictions;
  prometheus::Counter& local_prefills;
  prometheus::Counter& local_prefill_tokens;
  prometheus::Counter& commits;
  prometheus::Counter& requests_finished;
  prometheus::Counter& requests_failed;
  prometheus::Counter& requests_released;
  prometheus::Counter& parkings;
  prometheus::Counter& returns;
  prometheus::Counter& expired_reservations;
  prometheus::Counter& expired_requests;
  prometheus::Counter& no_room;
  prometheus::Counter& refused_busy;
  prometheus::Counter& transfers_failed;
  prometheus::Counter& hellos_refused;
  prometheus::Counter& frames_received;
  prometheus::Counter& kv_bytes_received;
  prometheus::Counter& kv_bytes_recoded;
  prometheus::Counter& kv_values_saturated;
  prometheus::Counter& kv_rows_nonfinite;
  prometheus::Counter& stored_values_saturated;
  prometheus::Counter& stored_rows_nonfinite;
  prometheus::Counter& crc_failures;
  prometheus::Counter& resends_asked;
  // Frames that were taken off the wire and forgotten.
  prometheus::Counter& dropped_unknown;           // no such reservation: it ended before the frame came
  prometheus::Counter& dropped_old_generation;    // of a former holder of the reservation
  prometheus::Counter& dropped_other_epoch;       // meant for another start of this process
  prometheus::Counter& dropped_failed_transfer;   // its transfer failed before
  prometheus::Counter& dropped_duplicate;         // what it brings is there or landing
  prometheus::Counter& dropped_damaged;           // it came cut short and is asked for again
  prometheus::Counter& dropped_other_connection;  // not from where the transfer's first frame came
  prometheus::Counter& dropped_wrong;             // its header contradicts the transfer, which fails
  prometheus::Histogram& step_seconds;
  prometheus::Histogram& step_sequences;
};

}  // namespace sluice::decode
