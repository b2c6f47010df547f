#include "decode/options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(DecodeOptions, DefaultsNeedOnlyAModel) {
  DecodeOptions options;
  options.model_path = "model.gguf";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
}

TEST(DecodeOptions, EveryProblemIsReportedAtOnce) {
  DecodeOptions options;
  options.threads = 0;
  options.kv_store = "f8";
  options.kv_listen = "0.0.0.0:7000";
  const std::string message(options.Validate().message());
  for (const char* field : {"model_path", "threads is 0", "kv_store", "kv_advertise_host"}) {
    EXPECT_THAT(message, testing::HasSubstr(field));
  }
}

}  // namespace
}  // namespace sluice
