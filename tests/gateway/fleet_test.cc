#include "gateway/fleet.h"

#include "common/proto/convert.h"
#include "gateway/readiness.h"
#include "gmock/gmock.h"
#include "tests/gateway/flow_fixture.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class FleetTest : public FlowFixture {};

TEST_F(FleetTest, AWorkerThatIsDownAtStartIsFoundWhenItComes) {
  workers = std::make_unique<ScriptedWorkers>(&loop, 1, 1);
  const auto up = workers->decode(0).status;
  workers->decode(0).status = absl::UnavailableError("connection refused");
  fleet = std::make_unique<Fleet>(&options, &loop, workers.get(), FleetModel{"hash", 258, 512});
  loop.Settle();
  EXPECT_THAT(fleet->NotReadyReason(), HasSubstr("d0: does not answer (connection refused)"));
  workers->decode(0).status = up;
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(fleet->NotReadyReason(), "");
}

TEST_F(FleetTest, AnotherModelIsRefusedNamingBothHashes) {
  SetUpFleet(1, 1);
  workers->prefill(0).status->set_model_hash("other");
  loop.Advance(absl::Seconds(1));
  EXPECT_THAT(fleet->NotReadyReason(), HasSubstr("hash other, the gateway's is hash"));
}

TEST_F(FleetTest, AWorkerListedUnderTheWrongRoleIsRefused) {
  SetUpFleet(1, 1);
  workers->prefill(0).status->set_role("decode");
  loop.Advance(absl::Seconds(1));
  EXPECT_THAT(fleet->NotReadyReason(), HasSubstr("is a decode worker, listed as prefill"));
}

TEST_F(FleetTest, LayoutsThatDifferAreNamedInTheReason) {
  SetUpFleet(1, 1);
  workers->prefill(0).status->mutable_layout()->set_rope_pairing("half");
  workers->decode(0).status->mutable_layout()->set_rope_pairing("interleaved");
  loop.Advance(absl::Seconds(1));
  EXPECT_THAT(fleet->NotReadyReason(), HasSubstr("rope pairing half and interleaved"));
}

TEST_F(FleetTest, DrainingAndNotReadyWorkersTakeNoWork) {
  SetUpFleet(1, 1);
  workers->decode(0).status->set_draining(true);
  workers->prefill(0).status->set_not_ready_reason("loading");
  loop.Advance(absl::Seconds(1));
  const FleetSnapshot snapshot = fleet->snapshot();
  EXPECT_EQ(snapshot.decode[0].unusable_because, "is draining");
  EXPECT_EQ(snapshot.prefill[0].unusable_because, "loading");
}

TEST_F(FleetTest, OneLateAnswerIsForgivenAndLongSilenceIsNot) {
  SetUpFleet(1, 1);
  int lost = 0;
  const auto subscription = fleet->Listen([&](WorkerRef, const Status&) { ++lost; });
  workers->prefill(0).silent = true;
  loop.Advance(absl::Milliseconds(2500));
  EXPECT_EQ(fleet->NotReadyReason(), "");
  loop.Advance(absl::Seconds(4));
  EXPECT_EQ(lost, 1);
  EXPECT_THAT(fleet->NotReadyReason(), HasSubstr("p0: does not answer"));
  workers->prefill(0).silent = false;
  loop.Advance(absl::Seconds(3));
  EXPECT_EQ(fleet->NotReadyReason(), "");
  EXPECT_EQ(lost, 1);
}

TEST_F(FleetTest, ARestartIsALoss) {
  SetUpFleet(1, 1);
  std::vector<WorkerRef> lost;
  const auto subscription = fleet->Listen([&](WorkerRef worker, const Status&) { lost.push_back(worker); });
  workers->decode(0).status->set_epoch(77);
  loop.Advance(absl::Seconds(2));
  EXPECT_THAT(lost, testing::ElementsAre(WorkerRef{WorkerRole::kDecode, 0}));
  EXPECT_EQ(fleet->NotReadyReason(), "");
}

TEST_F(FleetTest, PromisesCountUntilAReportMustContainThem) {
  SetUpFleet(1, 1);
  fleet->PromisePages(0, {.prompt_tokens = 32, .max_tokens = 16, .n = 1});
  const auto promise = fleet->PromisePrefill(0, 20);
  EXPECT_EQ(fleet->snapshot().decode[0].pages_free, 97);
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 20);
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(fleet->snapshot().decode[0].pages_free, 100);
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 20) << "it has not been sent yet";
  promise->Sent();
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 20);
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 0);
}

TEST_F(FleetTest, APromiseThatIsNotKeptCountsNoLonger) {
  SetUpFleet(1, 1);
  auto promise = fleet->PromisePrefill(0, 20);
  workers->prefill(0).status->set_epoch(77);
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 20);
  promise.reset();
  EXPECT_EQ(fleet->snapshot().prefill[0].queued_prompt_tokens, 0);
}

TEST_F(FleetTest, SuspicionGrowsWithFailuresInARowAndEnds) {
  SetUpFleet(1, 1);
  const WorkerRef prefill{WorkerRole::kPrefill, 0};
  fleet->ReportFailure(prefill);
  EXPECT_TRUE(fleet->snapshot().prefill[0].suspect);
  loop.Advance(absl::Milliseconds(501));
  EXPECT_FALSE(fleet->snapshot().prefill[0].suspect);
  for (int i = 0; i < 20; ++i) fleet->ReportFailure(prefill);
  loop.Advance(absl::Seconds(29));
  EXPECT_TRUE(fleet->snapshot().prefill[0].suspect);
  loop.Advance(absl::Seconds(2));
  EXPECT_FALSE(fleet->snapshot().prefill[0].suspect);
  fleet->ReportFailure(prefill);
  fleet->ReportSuccess(prefill);
  EXPECT_FALSE(fleet->snapshot().prefill[0].suspect);
}

TEST_F(FleetTest, TheSmallestContextOfThoseThatWorkCounts) {
  SetUpFleet(1, 2);
  workers->decode(1).status->set_context_tokens_max(64);
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(fleet->context_tokens_max(), 64);
}

TEST_F(FleetTest, PoliciesOfDecodesThatTakeWorkAreKnownEachOnce) {
  SetUpFleet(1, 4);
  const CachePolicySpec window = {.kind = CachePolicyKind::kSinkWindow, .budget = 32};
  for (const int decode : {1, 2}) *workers->decode(decode).status->mutable_policy() = ToProto(window);
  workers->decode(3).status->mutable_policy()->set_kind("h2o");
  workers->decode(3).status->set_draining(true);
  loop.Advance(absl::Seconds(1));
  EXPECT_THAT(fleet->decode_policies(), testing::ElementsAre(CachePolicySpec(), window));
}

class ReadinessTest : public FlowFixture {
 protected:
  void SetUpReadiness() {
    SetUpFleet(1, 1);
    readiness = std::make_unique<Readiness>(Environment());
    fleet->SetOnChange([this] { readiness->OnFleetChange(); });
    loop.Settle();
  }
  void AnswerCanary() {
    workers->reserves.back()->Answer(Ticket(1));
    workers->streams.back()->Event(Tokens("x", true));
    loop.Settle();
  }
  std::unique_ptr<Readiness> readiness;
};

TEST_F(ReadinessTest, NotReadyUntilACanaryHasComeBack) {
  SetUpReadiness();
  EXPECT_THAT(readiness->NotReadyReason(), HasSubstr("no canary has come back yet"));
  ASSERT_EQ(workers->reserves.size(), 1u);
  EXPECT_EQ(workers->reserves[0]->request.sampling().max_tokens(), 1);
  AnswerCanary();
  EXPECT_EQ(readiness->NotReadyReason(), "");
}

TEST_F(ReadinessTest, ACanaryThatHangsMakesItNotReadyWithinTenSeconds) {
  SetUpReadiness();
  AnswerCanary();
  loop.Advance(absl::Milliseconds(9'100));
  EXPECT_THAT(readiness->NotReadyReason(), HasSubstr("the canary fails"));
}

TEST_F(ReadinessTest, ASilentWorkerMakesItNotReadyWithinTenSeconds) {
  SetUpReadiness();
  AnswerCanary();
  workers->prefill(0).silent = true;
  loop.Advance(absl::Seconds(7));
  EXPECT_THAT(readiness->NotReadyReason(), HasSubstr("p0: does not answer"));
}

TEST_F(ReadinessTest, AFullCacheIsNotABrokenPath) {
  SetUpReadiness();
  AnswerCanary();
  loop.Advance(absl::Seconds(5));
  workers->reserves.back()->Answer(NoRoom(1000));
  loop.Settle();
  EXPECT_EQ(readiness->NotReadyReason(), "");
}

TEST_F(ReadinessTest, AQueueThatMovesIsNotABrokenPath) {
  SetUpReadiness();
  AnswerCanary();
  for (int i = 1; i < 60; ++i) {
    workers->prefill(0).status->set_prefill_tokens_per_s(i);
    loop.Advance(absl::Seconds(1));
    EXPECT_EQ(readiness->NotReadyReason(), "") << i;
  }
}

TEST_F(ReadinessTest, AMovingQueueAloneProvesNothing) {
  SetUpReadiness();
  for (int i = 1; i < 20; ++i) {
    workers->prefill(0).status->set_prefill_tokens_per_s(i);
    loop.Advance(absl::Seconds(1));
  }
  EXPECT_NE(readiness->NotReadyReason(), "");
}

TEST_F(ReadinessTest, ServedRequestsAreAsGoodAsACanary) {
  SetUpReadiness();
  for (int i = 0; i < 8; ++i) {
    if (workers->reserves.back()->done) workers->reserves.back()->Answer(NoRoom(1000));
    readiness->NoteServed();
    loop.Advance(absl::Seconds(5));
  }
  EXPECT_EQ(readiness->NotReadyReason(), "");
}

TEST_F(ReadinessTest, AFullCacheIsNoBrokenPathAsLongAsItsRequestsHaveTokens) {
  SetUpReadiness();
  AnswerCanary();
  const auto pass = [this](int seconds, bool tokens) {
    for (int i = 0; i < seconds; ++i) {
      workers->reserves.back()->Answer(NoRoom(1000));
      if (tokens) readiness->NoteTokens();
      loop.Advance(absl::Seconds(1));
    }
  };
  pass(60, true);
  EXPECT_EQ(readiness->NotReadyReason(), "");
  pass(25, false);
  EXPECT_THAT(readiness->NotReadyReason(), HasSubstr("no room"));
}

TEST_F(ReadinessTest, AChangeOfTheFleetBringsACanaryAtOnce) {
  SetUpReadiness();
  AnswerCanary();
  workers->decode(0).status->set_epoch(77);
  loop.Advance(absl::Milliseconds(600));
  EXPECT_EQ(workers->reserves.size(), 2u);
}

TEST_F(ReadinessTest, CanariesLeaveNoTraceInTheMetricsOfRequests) {
  SetUpReadiness();
  AnswerCanary();
  const std::string text = metrics.metrics().Text();
  EXPECT_THAT(text, HasSubstr("canary_total{outcome=\"ok\"} 1"));
  EXPECT_THAT(text, testing::Not(HasSubstr("route_decisions_total{")));
}

}  // namespace
}  // namespace sluice
