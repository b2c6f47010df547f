#include "gateway/metrics.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(GatewayMetricsTest, EveryRowIsInTheFoldersPage) {
  std::ifstream page(std::string(SLUICE_TEST_DATA) + "/../../gateway/README.md");
  std::stringstream text;
  text << page.rdbuf();
  for (const MetricRow& row : GatewayMetricTable()) EXPECT_THAT(text.str(), HasSubstr(std::string(row.name)));
}

TEST(GatewayMetricsTest, RetriesSayWhichLegFailedAndWhy) {
  GatewayMetrics metrics;
  metrics.CountRetry("prefill", absl::StatusCode::kUnavailable);
  EXPECT_THAT(metrics.metrics().Text(),
              HasSubstr("sluice_gateway_retries_total{leg=\"prefill\",why=\"UNAVAILABLE\"} 1"));
}

}  // namespace
}  // namespace sluice
