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

TEST(DecodeOptions, AnInterfaceSaysWhereAWildcardIs) {
  DecodeOptions options;
  options.model_path = "model.gguf";
  options.kv_listen = "0.0.0.0:7000";
  options.kv_interface = "eth0";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
}

TEST(DecodeOptions, EveryProblemIsReportedAtOnce) {
  DecodeOptions options;
  options.threads = 0;
  options.kv_store = "f8";
  options.kv_wire = "f9";
  options.connections_max = 0;
  options.staging_bytes = 1000;
  options.kv_listen = "0.0.0.0:7000";
  options.kv_test_faults = "flood@1";
  const std::string message(options.Validate().message());
  for (const char* field : {"model_path", "threads is 0", "kv_store", "kv_wire", "connections_max is 0",
                            "staging_bytes is 1000", "kv_advertise_host", "flood@1"}) {
    EXPECT_THAT(message, testing::HasSubstr(field));
  }
}

}  // namespace
}  // namespace sluice
