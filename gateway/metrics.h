// The gateway's metrics: one table, and the members through which the code updates it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics.h"

namespace sluice {

std::vector<MetricRow> GatewayMetricTable();

class GatewayMetrics {
  Metrics metrics_{GatewayMetricTable()};  // before the members that are made from it

 public:
  // HTTP
  prometheus::Gauge& connections = metrics_.gauge("sluice_gateway_connections");
  prometheus::Counter& connections_refused = metrics_.counter("sluice_gateway_connections_refused_total");
  prometheus::Counter& clients_left = metrics_.counter("sluice_gateway_clients_left_total");
  void CountAnswer(std::string_view path, int http_status);

  // Requests
  prometheus::Gauge& requests_active = metrics_.gauge("sluice_gateway_requests_active");
  prometheus::Counter& prompt_tokens = metrics_.counter("sluice_gateway_prompt_tokens_total");
  prometheus::Counter& completion_tokens = metrics_.counter("sluice_gateway_completion_tokens_total");
  prometheus::Histogram& first_token_seconds = metrics_.histogram("sluice_gateway_first_token_seconds");
  prometheus::Histogram& request_seconds = metrics_.histogram("sluice_gateway_request_seconds");

  // What the flow did: "disaggregated", "no_worker", "mismatch" of a routing decision; the leg and code of a retry.
  void CountRoute(std::string_view outcome);
  void CountRetry(std::string_view leg, absl::StatusCode why);
  prometheus::Gauge& requests_queued = metrics_.gauge("sluice_gateway_requests_queued");
  prometheus::Histogram& queue_seconds = metrics_.histogram("sluice_gateway_queue_seconds");
  prometheus::Counter& no_room = metrics_.counter("sluice_gateway_no_room_total");
  prometheus::Counter& broken_streams = metrics_.counter("sluice_gateway_broken_streams_total");

  // Fleet
  prometheus::Gauge& ready = metrics_.gauge("sluice_gateway_ready");
  void CountCanary(std::string_view outcome);
  void SetWorkers(std::string_view role, int usable, int configured);

  Metrics& metrics() { return metrics_; }
};

}  // namespace sluice
