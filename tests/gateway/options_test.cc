#include "gateway/options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::HasSubstr;

GatewayOptions Working() {
  GatewayOptions options;
  options.model_path = "model";
  options.prefill_workers = {"127.0.0.1:1"};
  options.decode_workers = {"decode.example:2"};
  return options;
}

TEST(GatewayOptions, DefaultsWithAModelAndWorkersAreValid) { EXPECT_TRUE(Working().Validate().ok()); }

TEST(GatewayOptions, EveryProblemIsReportedAtOnce) {
  GatewayOptions options = Working();
  options.model_path = "";
  options.listen = "nowhere";
  options.decode_workers = {"a:1", "a:1", "b"};
  options.connections_max = 0;
  options.prefill_queue_max_ms = -1;
  const std::string message(options.Validate().message());
  EXPECT_THAT(message, HasSubstr("model_path is empty"));
  EXPECT_THAT(message, HasSubstr("listen: \"nowhere\" is not host:port"));
  EXPECT_THAT(message, HasSubstr("decode_workers names a:1 twice"));
  EXPECT_THAT(message, HasSubstr("decode_workers: \"b\" is not host:port"));
  EXPECT_THAT(message, HasSubstr("connections_max is 0, must be at least 1"));
  EXPECT_THAT(message, HasSubstr("prefill_queue_max_ms is -1, must be at least 0"));
}

TEST(GatewayOptions, AddressesAreNamesNumbersOrBracketed) {
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseHostPort("name:65535")->port, 65535);
  for (const char* bad : {"", ":80", "host", "host:", "host:65536", "host:-1", "host:8x"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace sluice
