#include "model/handoff.h"

#include "common/proto/convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr HandoffExpectation kExpected = {
    .request = {77}, .prompt_tokens = 3, .kv_tokens = 3, .n = 2, .max_tokens = 16, .vocab_size = 1000};

proto::HandoffRecord GoodRecord() {
  proto::HandoffRecord record;
  record.set_request_id(77);
  for (const int id : {5, 0, 999}) record.add_prompt_ids(id);
  SamplingParams sampling;
  sampling.n = 2;
  sampling.stop_strings = {"stop"};
  *record.mutable_sampling() = ToProto(sampling);
  for (int i = 0; i < 2; ++i) {
    proto::ChoiceState* choice = record.add_choices();
    choice->set_index(static_cast<uint32_t>(i));
    choice->add_generated(40 + i);
    choice->add_unsent()->set_token(40 + i);
  }
  record.set_kv_tokens(3);
  record.mutable_usage()->set_prompt_tokens(3);
  record.mutable_usage()->set_completion_tokens(2);
  return record;
}

std::string ErrorOf(const std::function<void(proto::HandoffRecord&)>& change) {
  proto::HandoffRecord record = GoodRecord();
  change(record);
  const Status status = Validate(record, kExpected);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  return std::string(status.message());
}

TEST(HandoffRecord, AGoodOneParsesToItself) {
  const std::string bytes = GoodRecord().SerializeAsString();
  const auto record = ParseHandoffRecord(bytes, kExpected);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->SerializeAsString(), bytes);
}

TEST(HandoffRecord, ContradictingTheReservationIsRefusedWithBothValues) {
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_request_id(78); }), HasSubstr("request id is 78, expected 77"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.add_prompt_ids(1); }), HasSubstr("prompt tokens is 4, expected 3"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_kv_from_token(1); }), HasSubstr("kv_from_token is 1, expected 0"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling()->set_n(3); }), HasSubstr("n is 3, expected 2"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling()->set_max_tokens(17); }),
              HasSubstr("max_tokens is 17, expected 16"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices()->RemoveLast(); }), HasSubstr("choices is 1, expected 2"));
}

TEST(HandoffRecord, ContradictingItselfIsRefused) {
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(1)->set_index(0); }), HasSubstr("choice index is 0, expected 1"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->add_generated(1); }), HasSubstr("tokens of a choice is 2"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->clear_generated(); }), HasSubstr("tokens of a choice is 0"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->add_unsent(); }), HasSubstr("unsent tokens is 2"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_usage()->set_prompt_tokens(2); }), HasSubstr("usage.prompt_tokens is 2"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_usage()->set_completion_tokens(1); }),
              HasSubstr("usage.completion_tokens is 1"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_usage()->set_cached_tokens(4); }), HasSubstr("usage.cached_tokens is 4"));
}

TEST(HandoffRecord, ValuesBeyondTheirLimitsAreRefused) {
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_prompt_ids(1, 1000); }),
              HasSubstr("prompt token is 1000, expected 0 to 999"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_prompt_ids(1, -1); }), HasSubstr("prompt token is -1"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->set_generated(0, 1000); }), HasSubstr("generated token"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->mutable_unsent(0)->set_token(-2); }),
              HasSubstr("unsent token"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->mutable_unsent(0)->add_top()->set_token(1000); }),
              HasSubstr("token of a logprob"));
  EXPECT_THAT(ErrorOf([](auto& r) {
                for (int i = 0; i <= 20; ++i) r.mutable_choices(0)->mutable_unsent(0)->add_top();
              }),
              HasSubstr("logprobs of a token is 21, expected at most 20"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->set_finish(static_cast<proto::FinishReason>(9)); }),
              HasSubstr("finish is 9"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->set_pending_bytes("abcd"); }), HasSubstr("pending bytes"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_choices(0)->set_held_text(std::string(2000, 'x')); }),
              HasSubstr("held text"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling()->set_temperature(-1); }), HasSubstr("temperature"));
}

TEST(HandoffRecord, KvMayBeMissingOnlyWhereEveryChoiceIsFinished) {
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_kv_tokens(2); }), HasSubstr("kv_tokens is 2, expected 3"));
  EXPECT_THAT(ErrorOf([](auto& r) {
                r.mutable_choices(0)->set_finish(proto::FINISH_STOP);
                r.set_kv_tokens(0);
              }),
              HasSubstr("kv_tokens is 0, expected 3"));
  proto::HandoffRecord record = GoodRecord();
  for (auto& choice : *record.mutable_choices()) choice.set_finish(proto::FINISH_STOP);
  record.set_kv_tokens(0);
  EXPECT_TRUE(Validate(record, kExpected).ok());
  record.set_kv_tokens(4);
  EXPECT_FALSE(Validate(record, kExpected).ok());
}

TEST(HandoffRecord, AfterMaxTokensOfOneEveryChoiceMustBeFinished) {
  HandoffExpectation one = kExpected;
  one.max_tokens = 1;
  proto::HandoffRecord record = GoodRecord();
  record.mutable_sampling()->set_max_tokens(1);
  EXPECT_THAT(std::string(Validate(record, one).message()), HasSubstr("finish after max_tokens"));
}

TEST(HandoffRecord, GarbageAndOversizedBytesAreRefused) {
  EXPECT_EQ(ParseHandoffRecord("\xff\xff\xff", kExpected).status().code(), absl::StatusCode::kInternal);
  const std::string huge(HandoffRecordBytesMax(kExpected) + 1, '\0');
  EXPECT_THAT(std::string(ParseHandoffRecord(huge, kExpected).status().message()), HasSubstr("at most"));
}

TEST(HandoffRecord, TheLargestLegalOneFitsItsBound) {
  SamplingParams sampling;
  sampling.n = 2;
  sampling.seed = ~uint64_t{0};
  sampling.logit_bias.assign(SamplingParams::kMaxLogitBias, {999, -100.0f});
  sampling.stop_strings.assign(SamplingParams::kMaxStops, std::string(SamplingParams::kMaxStopBytes, 's'));
  sampling.stop_token_ids.assign(SamplingParams::kMaxStops, 999);
  proto::HandoffRecord record = GoodRecord();
  *record.mutable_sampling() = ToProto(sampling);
  for (auto& choice : *record.mutable_choices()) {
    choice.set_held_text(std::string(SamplingParams::kMaxStopBytes, 'h'));
    choice.set_stop_match(std::string(SamplingParams::kMaxStopBytes, 'm'));
    for (int i = 0; i < SamplingParams::kMaxTopLogprobs; ++i) choice.mutable_unsent(0)->add_top()->set_logprob(-1.0f);
  }
  const auto parsed = ParseHandoffRecord(record.SerializeAsString(), kExpected);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
}

proto::Hello HelloOf(std::string_view role) {
  return MakeHello(role, {5}, "aa11", ToProto(KvLayout::Gqa(30, 3, 64)), KvCodec::kBf16, {KvCodec::kBf16});
}

TEST(Hello, EqualModelsAndLayoutsMayTalk) {
  EXPECT_TRUE(CompareHello(HelloOf("prefill"), HelloOf("decode")).ok());
  EXPECT_TRUE(CompareHello(HelloOf("decode"), HelloOf("prefill")).ok());
}

TEST(Hello, EveryDifferenceIsNamedWithBothValues) {
  proto::Hello theirs = HelloOf("decode");
  theirs.set_protocol_version(9);
  theirs.set_model_hash("bb22");
  *theirs.mutable_wire_codecs(0) = "f32";
  theirs.mutable_layout()->set_kv_heads(9);
  theirs.set_store_codec("f32");  // may differ
  const Status s = CompareHello(HelloOf("prefill"), theirs);
  EXPECT_EQ(s.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(s.message()),
      AllOf(HasSubstr("protocol version: ours 3, theirs 9"), HasSubstr("model hash: ours aa11, theirs bb22"),
            HasSubstr("no wire codec in common: ours bf16, theirs f32"), HasSubstr("kv_heads is 3 here and 9 there")));
}

TEST(Hello, TwoOfTheSameRoleDoNotTalk) {
  EXPECT_THAT(std::string(CompareHello(HelloOf("decode"), HelloOf("decode")).message()), HasSubstr("roles"));
}

TEST(Hello, GarbageAndOversizedBytesAreRefused) {
  EXPECT_TRUE(ParseHello(HelloOf("decode").SerializeAsString()).ok());
  EXPECT_EQ(ParseHello("\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseHello(std::string(kHelloBytesMax + 1, '\0')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TransferResult, CarriesCodeAndMessage) {
  const auto result = MakeTransferResult({1}, {2}, {3}, absl::DataLossError("crc"));
  const auto parsed = ParseTransferResult(result.SerializeAsString());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->reservation_id(), 2u);
  EXPECT_EQ(ToStatus(*parsed), absl::DataLossError("crc"));
  EXPECT_TRUE(ToStatus(MakeTransferResult({1}, {2}, {3}, absl::OkStatus())).ok());
}

TEST(TransferResult, LongMessagesAreCutAndUnknownCodesAreErrors) {
  const auto result = MakeTransferResult({1}, {2}, {3}, absl::InternalError(std::string(9999, '\xc3')));
  EXPECT_TRUE(ParseTransferResult(result.SerializeAsString()).ok());
  proto::TransferResult odd;
  odd.set_code(-5);
  EXPECT_EQ(ToStatus(odd).code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace sluice
