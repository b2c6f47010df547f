#include "common/sampling_params.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(SamplingParams, DefaultsAreValid) { EXPECT_TRUE(SamplingParams().Validate(100).ok()); }

TEST(SamplingParams, ReportsEveryProblemAtOnceWithFieldAndValue) {
  SamplingParams p;
  p.temperature = std::numeric_limits<float>::quiet_NaN();
  p.top_p = 0;
  p.max_tokens = 0;
  p.stop_token_ids = {100};
  const std::string message(p.Validate(100).message());
  EXPECT_THAT(message, HasSubstr("temperature is nan"));
  EXPECT_THAT(message, HasSubstr("top_p is 0"));
  EXPECT_THAT(message, HasSubstr("max_tokens is 0"));
  EXPECT_THAT(message, HasSubstr("stop token id is 100, must be from 0 to 99"));
}

TEST(SamplingParams, SaysLittleAboutManyWrongValues) {
  SamplingParams p;
  p.stop_token_ids.assign(300'000, -1);
  p.logit_bias.assign(300'000, {-1, 1000});
  p.stop_strings.assign(300'000, "");
  const Status status = p.Validate(100);
  EXPECT_FALSE(status.ok());
  EXPECT_LT(status.message().size(), 2048u);
}

}  // namespace
}  // namespace sluice
