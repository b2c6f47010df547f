// Metrics as one table per process: the rows stand in that process's metrics.h, the members below are how it updates
// them. A thin layer over prometheus-cpp, which keeps, aggregates and serialises.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace sluice {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricRow {
  std::string_view name;  // with its unit last: sluice_decode_kv_pages_free
  MetricKind kind;
  std::string_view help;
  std::vector<double> buckets = {};  // histograms only, ascending upper bounds in the unit of the name
};

// Owns a process's registry. Thread-safe. Asking for a row that the table lacks, or of another kind, is a bug.
class Metrics {
 public:
  explicit Metrics(std::vector<MetricRow> table);

  prometheus::Counter& counter(std::string_view name, const std::map<std::string, std::string>& labels = {});
  prometheus::Gauge& gauge(std::string_view name, const std::map<std::string, std::string>& labels = {});
  prometheus::Histogram& histogram(std::string_view name, const std::map<std::string, std::string>& labels = {});

  const std::vector<MetricRow>& table() const { return table_; }
  std::shared_ptr<prometheus::Registry> registry() { return registry_; }  // shared with the exposer that serves it

  // The exposition text, format 0.0.4.
  std::string Text() const;

 private:
  const MetricRow& Row(std::string_view name, MetricKind kind) const;

  std::vector<MetricRow> table_;
  std::shared_ptr<prometheus::Registry> registry_;
};

}  // namespace sluice
