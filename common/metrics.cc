#include "common/metrics.h"

#include "common/status.h"
#include "prometheus/text_serializer.h"

namespace sluice {

Metrics::Metrics(std::vector<MetricRow> table)
    : table_(std::move(table)), registry_(std::make_shared<prometheus::Registry>()) {}

const MetricRow& Metrics::Row(std::string_view name, MetricKind kind) const {
  for (const MetricRow& row : table_) {
    if (row.name == name) {
      SLUICE_CHECK(row.kind == kind, "another kind of metric: ", std::string(name));
      return row;
    }
  }
  Fatal(__FILE__, __LINE__, "no metric named " + std::string(name));
}

prometheus::Counter& Metrics::counter(std::string_view name, const std::map<std::string, std::string>& labels) {
  const MetricRow& row = Row(name, MetricKind::kCounter);
  return prometheus::BuildCounter()
      .Name(std::string(row.name))
      .Help(std::string(row.help))
      .Register(*registry_)
      .Add(labels);
}

prometheus::Gauge& Metrics::gauge(std::string_view name, const std::map<std::string, std::string>& labels) {
  const MetricRow& row = Row(name, MetricKind::kGauge);
  return prometheus::BuildGauge()
      .Name(std::string(row.name))
      .Help(std::string(row.help))
      .Register(*registry_)
      .Add(labels);
}

prometheus::Histogram& Metrics::histogram(std::string_view name, const std::map<std::string, std::string>& labels) {
  const MetricRow& row = Row(name, MetricKind::kHistogram);
  return prometheus::BuildHistogram()
      .Name(std::string(row.name))
      .Help(std::string(row.help))
      .Register(*registry_)
      .Add(labels, row.buckets);
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(registry_->Collect()); }

}  // namespace sluice
