#include "gateway/admission_queue.h"

#include "common/proto/convert.h"
#include "gmock/gmock.h"
#include "tests/gateway/flow_fixture.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Prefill computes 100 tokens a second, and the queue is closed beyond two seconds.
class AdmissionQueueTest : public FlowFixture {
 protected:
  struct Request {
    RecordingClient client;
    std::unique_ptr<RequestFlow> flow;
  };

  void SetUpBusyFleet(int prefills, int decodes, int64_t queued_tokens) {
    SetUpFleet(prefills, decodes);
    for (int i = 0; i < prefills; ++i) workers->prefill(i).status->set_prefill_tokens_per_s(100);
    for (int i = 0; i < prefills; ++i) Report(i, queued_tokens);
  }
  // Prefill says so when it is asked next, which is at once.
  void Report(int prefill, int64_t queued_tokens) {
    workers->prefill(prefill).status->set_queued_prompt_tokens(queued_tokens);
    fleet->Refresh({WorkerRole::kPrefill, prefill});
    loop.Settle();
  }
  std::unique_ptr<Request> Start(uint64_t id, size_t prompt_tokens, absl::Duration timeout = absl::Seconds(60)) {
    auto out = std::make_unique<Request>();
    FlowRequest request;
    request.id = id;
    request.prompt_ids.assign(prompt_tokens, static_cast<TokenId>(id));
    request.timeout = timeout;
    request.room_wait = absl::Seconds(5);
    out->flow = std::make_unique<RequestFlow>(Environment(), std::move(request), &out->client);
    out->flow->Start();
    return out;
  }
  std::vector<uint64_t> Reserved() const {
    std::vector<uint64_t> ids;
    for (const auto& call : workers->reserves) ids.push_back(call->request.request_id());
    return ids;
  }
  double Queued() const { return metrics.requests_queued.Value(); }
  static int HttpStatusOf(const Request& request) {
    return request.client.failure.has_value() ? HttpStatus(request.client.failure->code()) : 0;
  }
};

TEST_F(AdmissionQueueTest, NoPagesAreReservedWhilePrefillIsBusyForLong) {
  SetUpBusyFleet(1, 1, 300);
  const auto request = Start(1, 10);
  loop.Advance(absl::Seconds(20));
  EXPECT_EQ(request->flow->state(), FlowState::kQueued);
  EXPECT_THAT(workers->reserves, IsEmpty());
  EXPECT_EQ(Queued(), 1);
  Report(0, 201);
  EXPECT_THAT(workers->reserves, IsEmpty());
  Report(0, 200);
  EXPECT_THAT(Reserved(), ElementsAre(1));
  EXPECT_EQ(Queued(), 0);
  EXPECT_THAT(metrics.metrics().Text(), HasSubstr("sluice_gateway_queue_seconds_sum 20"));
}

TEST_F(AdmissionQueueTest, AnIdlePrefillTakesAnyPromptWhateverTheLimit) {
  options.prefill_queue_max_ms = 0;
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 5000);
  const auto second = Start(2, 1);
  EXPECT_THAT(Reserved(), ElementsAre(1));
}

TEST_F(AdmissionQueueTest, TheFirstComeIsServedFirstHoweverLongItsPrompt) {
  SetUpBusyFleet(1, 1, 300);
  const auto first = Start(1, 400);
  const auto second = Start(2, 1);
  const auto third = Start(3, 1);
  Report(0, 100);
  EXPECT_THAT(Reserved(), ElementsAre(1)) << "the first one's four seconds are before the others";
  const auto fourth = Start(4, 1);
  workers->reserves[0]->Answer(Ticket(5));
  Report(0, 500);
  EXPECT_THAT(Reserved(), ElementsAre(1));
  Report(0, 0);
  EXPECT_THAT(Reserved(), ElementsAre(1, 2, 3, 4));
}

TEST_F(AdmissionQueueTest, ARequestThatStartsOverIsBeforeThoseThatCameAfterIt) {
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 400);
  workers->reserves[0]->Answer(Ticket(5));
  const auto second = Start(2, 400);
  Report(0, 400);
  workers->streams[0]->End(absl::AbortedError("expired"));
  EXPECT_EQ(first->flow->state(), FlowState::kQueued);
  Report(0, 0);
  EXPECT_THAT(Reserved(), ElementsAre(1, 1));
}

TEST_F(AdmissionQueueTest, APromptThatIsOnItsWayToPrefillCountsUntilAReportContainsIt) {
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 400);
  const auto second = Start(2, 10);
  loop.Advance(absl::Seconds(2));
  EXPECT_THAT(Reserved(), ElementsAre(1)) << "reports of an idle prefill say nothing of what decode has yet to grant";
  workers->reserves[0]->Answer(Ticket(5));
  Report(0, 0);
  EXPECT_THAT(Reserved(), ElementsAre(1, 2));
}

TEST_F(AdmissionQueueTest, WhoIsAdmittedTakesOfDecodeWhatItsPolicyKeeps) {
  SetUpBusyFleet(1, 2, 300);
  // The first one's 600 tokens would be 38 pages, and decode 1 the emptier one; 33 slots are 3.
  for (const int decode : {0, 1}) {
    *workers->decode(decode).status->mutable_policy() =
        ToProto(CachePolicySpec{.kind = CachePolicyKind::kSinkWindow, .budget = 32});
    workers->decode(decode).status->set_kv_pages_free(decode == 0 ? 30 : 20);
    fleet->Refresh({WorkerRole::kDecode, decode});
    loop.Settle();
  }
  const auto first = Start(1, 600);
  const auto second = Start(2, 10);
  options.prefill_queue_max_ms = 10'000;
  Report(0, 0);
  ASSERT_THAT(Reserved(), ElementsAre(1, 2));
  EXPECT_EQ(workers->reserves[0]->worker, 0);
  EXPECT_EQ(workers->reserves[1]->worker, 0);
}

TEST_F(AdmissionQueueTest, ARefusalGivesItsTurnToTheNextAtOnce) {
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 400);
  const auto second = Start(2, 10);
  workers->reserves[0]->Answer(NoRoom(1000));
  loop.Settle();
  EXPECT_EQ(first->flow->state(), FlowState::kWaitingForRoom);
  EXPECT_THAT(Reserved(), ElementsAre(1, 2));
}

TEST_F(AdmissionQueueTest, APromptThatDecodeComputesItselfIsNoLoadOfPrefill) {
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 400);
  const auto second = Start(2, 10);
  proto::ReserveReply local = Ticket(5);
  local.set_local(true);
  workers->reserves[0]->Answer(local);
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 0);
  loop.Settle();
  EXPECT_THAT(Reserved(), ElementsAre(1, 2));
}

TEST_F(AdmissionQueueTest, ARearmThatTheCommitHasOvertakenIsNoLoadOfPrefill) {
  SetUpBusyFleet(2, 1, 0);
  const auto request = Start(1, 400);
  workers->reserves[0]->Answer(Ticket(5));
  workers->runs[0]->Answer(absl::UnavailableError("its connection to decode ended"));
  EXPECT_EQ(fleet->snapshot().prefill[1].queued_prompt_tokens, 400);
  workers->streams[0]->Event(Tokens("a"));
  EXPECT_EQ(fleet->snapshot().prefill[1].queued_prompt_tokens, 0);
}

TEST_F(AdmissionQueueTest, APrefillThatHasEndedIsAskedAtOnceAndOpensAPlace) {
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 400);
  workers->reserves[0]->Answer(Ticket(5));
  Report(0, 400);
  const auto second = Start(2, 10);
  workers->prefill(0).status->set_queued_prompt_tokens(0);
  workers->runs[0]->Answer(proto::PrefillReply());
  loop.Settle();
  EXPECT_THAT(Reserved(), ElementsAre(1, 2));
}

TEST_F(AdmissionQueueTest, AClientThatLeavesTheQueueIsForgotten) {
  SetUpBusyFleet(1, 1, 300);
  auto first = Start(1, 10);
  const auto second = Start(2, 10);
  first.reset();
  EXPECT_EQ(Queued(), 1);
  Report(0, 0);
  EXPECT_THAT(Reserved(), ElementsAre(2));
  EXPECT_THAT(workers->released, IsEmpty());
}

TEST_F(AdmissionQueueTest, TheRequestsOwnTimeBoundsTheWait) {
  SetUpBusyFleet(1, 1, 300);
  const auto request = Start(1, 10, absl::Seconds(30));
  loop.Advance(absl::Seconds(29));
  EXPECT_FALSE(request->client.failure.has_value());
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(HttpStatusOf(*request), 504);
  EXPECT_EQ(Queued(), 0);
  Report(0, 0);
  EXPECT_THAT(workers->reserves, IsEmpty());
}

TEST_F(AdmissionQueueTest, WaitersFailWithTheReasonWhenNoPrefillIsLeft) {
  SetUpBusyFleet(1, 1, 300);
  const auto first = Start(1, 10);
  const auto second = Start(2, 10);
  workers->prefill(0).status = absl::UnavailableError("connection refused");
  loop.Advance(absl::Seconds(6));
  EXPECT_EQ(HttpStatusOf(*first), 503);
  EXPECT_EQ(HttpStatusOf(*second), 503);
  EXPECT_THAT(std::string(first->client.failure->message()), HasSubstr("p0: does not answer (connection refused)"));
  EXPECT_EQ(Queued(), 0);
}

TEST_F(AdmissionQueueTest, WaitersFailWithTheReasonWhenTheLastPrefillDrains) {
  SetUpBusyFleet(1, 1, 300);
  const auto request = Start(1, 10);
  workers->prefill(0).status->set_draining(true);
  Report(0, 300);
  EXPECT_EQ(HttpStatusOf(*request), 503);
  EXPECT_THAT(std::string(request->client.failure->message()), HasSubstr("is draining"));
}

TEST_F(AdmissionQueueTest, WaitersGoToThePrefillThatIsLeft) {
  SetUpBusyFleet(2, 1, 300);
  const auto request = Start(1, 10);
  workers->prefill(0).status->set_draining(true);
  Report(0, 0);
  EXPECT_EQ(request->flow->state(), FlowState::kQueued);
  Report(1, 0);
  workers->reserves[0]->Answer(Ticket(5));
  EXPECT_EQ(workers->runs[0]->worker, 1);
}

TEST_F(AdmissionQueueTest, WhoWaitsForItsCachedPrefixLeavesAnIdlePrefillToOthers) {
  SetUpBusyFleet(2, 1, 300);
  Report(0, 250);
  prefixes.Add({WorkerRole::kPrefill, 0}, HashPages(std::vector<TokenId>(400, 1), 16));
  const auto first = Start(1, 401);
  const auto second = Start(2, 10);
  Report(1, 0);
  EXPECT_EQ(first->flow->state(), FlowState::kQueued);
  EXPECT_THAT(Reserved(), ElementsAre(2));
}

TEST_F(AdmissionQueueTest, WaitingForPrefillIsNotWaitingForRoom) {
  SetUpBusyFleet(1, 1, 300);
  const auto request = Start(1, 10);
  loop.Advance(absl::Seconds(20));
  Report(0, 0);
  workers->reserves[0]->Answer(NoRoom(1000));
  EXPECT_EQ(request->flow->state(), FlowState::kWaitingForRoom);
}

TEST_F(AdmissionQueueTest, APromptThatDecodeMayComputeItselfDoesNotWaitForPrefill) {
  SetUpBusyFleet(1, 1, 300);
  workers->decode(0).status->set_local_prefill_tokens_max(16);
  loop.Advance(absl::Seconds(1));
  const auto too_long = Start(1, 17);
  EXPECT_THAT(workers->reserves, IsEmpty());
  const auto refused = Start(2, 16);
  const auto taken = Start(3, 16);
  ASSERT_THAT(Reserved(), ElementsAre(2, 3));
  EXPECT_TRUE(workers->reserves[0]->request.only_local());
  EXPECT_EQ(workers->reserves[0]->request.ship().queue_seconds(), 3);
  proto::ReserveReply no;
  no.set_not_local(true);
  workers->reserves[0]->Answer(no);
  proto::ReserveReply yes = Ticket(5);
  yes.set_local(true);
  workers->reserves[1]->Answer(yes);
  EXPECT_EQ(refused->flow->state(), FlowState::kQueued);
  EXPECT_EQ(taken->flow->state(), FlowState::kHandingOff);
  EXPECT_EQ(Queued(), 2);
  Report(0, 0);
  EXPECT_THAT(Reserved(), ElementsAre(2, 3, 1, 2));
  EXPECT_FALSE(workers->reserves[3]->request.only_local());
}

TEST_F(AdmissionQueueTest, AWaiterWhoseTurnComesWhileDecodeIsAskedAloneAsksAnew) {
  SetUpBusyFleet(1, 1, 300);
  workers->decode(0).status->set_local_prefill_tokens_max(16);
  loop.Advance(absl::Seconds(1));
  const auto request = Start(1, 16);
  Report(0, 0);
  ASSERT_EQ(workers->reserves.size(), 2u);
  EXPECT_TRUE(workers->reserves[0]->cancelled);
  workers->reserves[1]->Answer(Ticket(5));
  EXPECT_EQ(request->flow->state(), FlowState::kHandingOff);
}

TEST_F(AdmissionQueueTest, ADecodeThatDiesWhileItIsAskedAloneLeavesTheWaiterInItsPlace) {
  SetUpBusyFleet(1, 2, 300);
  workers->decode(0).status->set_local_prefill_tokens_max(16);
  loop.Advance(absl::Seconds(1));
  const auto request = Start(1, 16);
  ASSERT_EQ(workers->reserves.size(), 1u);
  workers->decode(0).status->set_epoch(77);
  loop.Advance(absl::Seconds(1));
  EXPECT_TRUE(workers->reserves[0]->cancelled);
  EXPECT_EQ(request->flow->state(), FlowState::kQueued);
  EXPECT_FALSE(request->client.failure.has_value());
  Report(0, 0);
  EXPECT_EQ(workers->reserves.size(), 2u);
}

TEST_F(AdmissionQueueTest, AWorkerIsNotAskedInALoopBecauseSomebodyWaits) {
  SetUpBusyFleet(1, 1, 0);
  const auto first = Start(1, 400);
  workers->reserves[0]->Answer(Ticket(5));
  Report(0, 400);
  const auto second = Start(2, 10);
  workers->prefill(0).status = absl::UnavailableError("connection refused");
  for (int i = 0; i < 3; ++i) fleet->Refresh({WorkerRole::kPrefill, 0});
  loop.Settle();  // would not return
  EXPECT_EQ(HttpStatusOf(*second), 503);
}

}  // namespace
}  // namespace sluice
