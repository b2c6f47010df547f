#include "prefill/admission.h"

#include <functional>

#include "common/proto/convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const ClusterKey kKey = *ClusterKey::Load("0123456789abcdef", "");
const AdmissionLimits kLimits = {.model_hash = "m1",
                                 .layout_hash = 0xAB,
                                 .wire_codecs = {"bf16"},
                                 .vocab_size = 100,
                                 .context_tokens_max = 8,
                                 .has_tokenizer = true};

proto::Ticket GoodTicket() {
  proto::Ticket ticket;
  ticket.set_request_id(7);
  ticket.set_reservation_id(8);
  ticket.set_decode_epoch(9);
  ticket.set_generation(1);
  ticket.set_deadline_unix_ms(absl::ToUnixMillis(kNow + absl::Seconds(10)));
  ticket.set_model_hash("m1");
  ticket.set_layout_hash(0xAB);
  ticket.add_wire_codecs("bf16");
  ticket.set_kv_address("127.0.0.1:4000");
  ticket.set_prompt_tokens(3);
  return ticket;
}

proto::PrefillRequest GoodRequest() {
  proto::PrefillRequest request;
  request.set_request_id(7);
  for (const TokenId id : {0, 99, 5}) request.add_prompt_ids(id);
  *request.mutable_sampling() = ToProto(SamplingParams{});
  request.set_deadline_unix_ms(absl::ToUnixMillis(kNow + absl::Seconds(30)));
  return request;
}

Status AdmitWith(const std::function<void(proto::PrefillRequest&, proto::Ticket&)>& change,
                 const AdmissionLimits& limits = kLimits) {
  proto::PrefillRequest request = GoodRequest();
  proto::Ticket ticket = GoodTicket();
  change(request, ticket);
  if (request.ticket().empty()) request.set_ticket(Seal(ticket, kKey));
  return Admit(request, limits, kKey, kNow).status();
}

void ExpectRefused(const Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(Admission, AGoodRequestGivesItsTicket) {
  proto::PrefillRequest request = GoodRequest();
  request.set_ticket(Seal(GoodTicket(), kKey));
  const auto ticket = Admit(request, kLimits, kKey, kNow);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(ticket->reservation_id(), 8u);
}

TEST(Admission, TicketsWithoutTheDeploymentsSealAreUnauthenticated) {
  const ClusterKey other = *ClusterKey::Load("fedcba9876543210", "");
  ExpectRefused(AdmitWith([&](auto& r, auto& t) { r.set_ticket(Seal(t, other)); }), absl::StatusCode::kUnauthenticated,
                "seal");
  ExpectRefused(AdmitWith([&](auto& r, auto&) { r.set_ticket("garbage"); }), absl::StatusCode::kUnauthenticated,
                "ticket");
}

TEST(Admission, AnotherModelLayoutOrCodecIsRefusedWithBothValues) {
  const auto code = absl::StatusCode::kFailedPrecondition;
  ExpectRefused(AdmitWith([](auto&, auto& t) { t.set_model_hash("m2"); }), code, "serves model m2, prefill m1");
  ExpectRefused(AdmitWith([](auto&, auto& t) { t.set_layout_hash(0xAC); }), code, "hash is ac, prefill's ab");
  ExpectRefused(AdmitWith([](auto&, auto& t) { *t.mutable_wire_codecs(0) = "f32"; }), code, "f32, prefill sends bf16");
}

TEST(Admission, TicketAndRequestMustBelongTogether) {
  const auto code = absl::StatusCode::kInvalidArgument;
  ExpectRefused(AdmitWith([](auto&, auto& t) { t.set_request_id(6); }), code, "for request 6, this is 7");
  ExpectRefused(AdmitWith([](auto&, auto& t) { t.set_prompt_tokens(4); }), code, "4 prompt tokens, the request has 3");
  ExpectRefused(AdmitWith([](auto&, auto& t) { t.set_kv_from_token(4); }), code, "before token 4, the prompt has 3");
  EXPECT_TRUE(AdmitWith([](auto&, auto& t) { t.set_kv_from_token(3); }).ok());
}

TEST(Admission, WhatIsOverIsNotBegun) {
  const int64_t past = absl::ToUnixMillis(kNow);
  ExpectRefused(AdmitWith([&](auto& r, auto&) { r.set_deadline_unix_ms(past); }), absl::StatusCode::kDeadlineExceeded,
                "over");
  ExpectRefused(AdmitWith([&](auto&, auto& t) { t.set_deadline_unix_ms(past); }), absl::StatusCode::kAborted,
                "expired");
  ExpectRefused(AdmitWith([](auto& r, auto&) { r.set_deadline_unix_ms(0); }), absl::StatusCode::kInvalidArgument,
                "no deadline");
}

TEST(Admission, PromptsOutsideOfTheModelsBoundsAreRefused) {
  ExpectRefused(AdmitWith([](auto& r, auto& t) {
                  r.clear_prompt_ids();
                  t.set_prompt_tokens(0);
                }),
                absl::StatusCode::kInvalidArgument, "empty");
  ExpectRefused(AdmitWith([](auto& r, auto&) { r.set_prompt_ids(1, 100); }), absl::StatusCode::kInvalidArgument,
                "token 100 is outside of the vocabulary of 100");
  ExpectRefused(AdmitWith([](auto& r, auto&) { r.set_prompt_ids(1, -1); }), absl::StatusCode::kInvalidArgument,
                "token -1");
  ExpectRefused(AdmitWith([](auto& r, auto& t) {
                  for (int i = 0; i < 5; ++i) r.add_prompt_ids(1);
                  t.set_prompt_tokens(8);
                }),
                absl::StatusCode::kOutOfRange, "8 tokens, the model's context of 8");
}

TEST(Admission, SamplingIsValidated) {
  ExpectRefused(AdmitWith([](auto& r, auto&) { r.mutable_sampling()->set_temperature(-1); }),
                absl::StatusCode::kInvalidArgument, "temperature");
  AdmissionLimits without_text = kLimits;
  without_text.has_tokenizer = false;
  ExpectRefused(AdmitWith([](auto& r, auto&) { r.mutable_sampling()->add_stop_strings("x"); }, without_text),
                absl::StatusCode::kInvalidArgument, "tokenizer");
}

}  // namespace
}  // namespace sluice::prefill
