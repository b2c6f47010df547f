#include "decode/metrics.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

TEST(DecodeMetrics, EveryRowIsInTheFoldersPage) {
  std::ifstream page(std::string(SLUICE_TEST_DATA) + "/../../decode/README.md");
  std::stringstream text;
  text << page.rdbuf();
  DecodeMetrics metrics;
  for (const MetricRow& row : metrics.metrics.table()) {
    EXPECT_THAT(text.str(), testing::HasSubstr(std::string(row.name)));
  }
}

TEST(DecodeMetrics, DroppedFramesAreCountedByReason) {
  DecodeMetrics metrics;
  metrics.dropped_duplicate.Increment();
  EXPECT_THAT(metrics.metrics.Text(), testing::HasSubstr("sluice_decode_frames_dropped_total{reason=\"duplicate\"} 1"));
}

}  // namespace
}  // namespace sluice::decode
