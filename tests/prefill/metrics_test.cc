#include "prefill/metrics.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

using ::testing::HasSubstr;

TEST(PrefillMetrics, EveryRowIsInTheFoldersPage) {
  std::ifstream page(std::string(SLUICE_TEST_DATA) + "/../../prefill/README.md");
  std::stringstream text;
  text << page.rdbuf();
  PrefillMetrics metrics;
  for (const MetricRow& row : metrics.all().table()) EXPECT_THAT(text.str(), HasSubstr(std::string(row.name)));
}

TEST(PrefillMetrics, CodesAreLabels) {
  PrefillMetrics metrics;
  metrics.requests(absl::OkStatus()).Increment();
  metrics.requests(absl::DataLossError("x")).Increment(2);
  EXPECT_THAT(metrics.all().Text(), HasSubstr("sluice_prefill_requests_total{code=\"ok\"} 1"));
  EXPECT_THAT(metrics.all().Text(), HasSubstr("sluice_prefill_requests_total{code=\"data_loss\"} 2"));
}

}  // namespace
}  // namespace sluice::prefill
