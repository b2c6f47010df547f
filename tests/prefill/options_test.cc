#include "prefill/options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PrefillOptions, DefaultsNeedOnlyAModel) {
  PrefillOptions options;
  options.model_path = "model.gguf";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
}

TEST(PrefillOptions, EveryProblemIsNamedAtOnce) {
  PrefillOptions options;
  options.listen = "nowhere";
  options.threads = 0;
  options.prefix_cache_pages = -2;
  options.kv_store = "int9";
  options.kv_test_faults = "flood@1";
  options.send = "never";
  options.kv_wire = "int5";
  options.frame_bytes_min = options.frame_bytes_max + 1;
  options.send_memory_bytes = 1;
  options.request_bytes_max = int64_t{1} << 31;
  options.drain_max = absl::ZeroDuration();
  const Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("model_path is empty"), HasSubstr("listen is 'nowhere'"), HasSubstr("threads is 0"),
            HasSubstr("prefix_cache_pages is -2"), HasSubstr("int9"), HasSubstr("flood@1"),
            HasSubstr("'never' is none of layer"), HasSubstr("kv_wire: "), HasSubstr("frame_bytes_min is 4194305"),
            HasSubstr("request_bytes_max is 2147483648"), HasSubstr("send_memory_bytes is 1"), HasSubstr("drain_max")));
}

TEST(PrefillOptions, AFrameFitsAMessageOfTheTransport) {
  PrefillOptions options;
  options.model_path = "model.gguf";
  options.frame_bytes_max = int64_t{64} << 20;
  options.send_memory_bytes = options.connection_bytes_in_flight_max = int64_t{1} << 30;
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  ++options.frame_bytes_max;
  EXPECT_THAT(std::string(options.Validate().message()),
              HasSubstr("frame_bytes_max is 67108865, a message of the transport carries 67108864 at most"));
}

}  // namespace
}  // namespace sluice
