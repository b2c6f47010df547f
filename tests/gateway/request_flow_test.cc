#include "gateway/request_flow.h"

#include "gmock/gmock.h"
#include "tests/gateway/flow_fixture.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class RequestFlowTest : public FlowFixture {
 protected:
  // All of an answer at once.
  static proto::GenerateEvent Answer(int tokens) {
    proto::GenerateEvent event = Tokens("a", true);
    for (int i = 1; i < tokens; ++i) event.add_tokens()->set_token(200 + i);
    event.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(tokens));
    return event;
  }
  std::string FailureMessage() const {
    return client.failure.has_value() ? std::string(client.failure->message()) : "";
  }
};

TEST_F(RequestFlowTest, TokensReachTheClientAndTheLastEndsIt) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  EXPECT_EQ(workers->streams[0]->request.reservation_id(), 5u);
  EXPECT_EQ(workers->runs[0]->request.ticket(), "ticket 5");
  workers->runs[0]->Answer(proto::PrefillReply());
  workers->streams[0]->Event(Tokens("a"));
  workers->streams[0]->Event(Tokens("b", true));
  EXPECT_EQ(client.text, "ab");
  EXPECT_TRUE(client.done);
  EXPECT_EQ(flow->state(), FlowState::kFinished);
  EXPECT_THAT(workers->released, IsEmpty());
}

TEST_F(RequestFlowTest, ALocalPrefillNeedsNoPrefillLeg) {
  SetUpFleet(1, 1);
  StartFlow();
  const proto::ReserveRequest& request = workers->reserves[0]->request;
  EXPECT_THAT(request.prompt_ids(), ElementsAre(1, 2, 3));
  EXPECT_GT(request.ship().compute_seconds(), 0);
  proto::ReserveReply local;
  local.set_local(true);
  local.set_reservation_id(5);
  local.set_epoch(1000);
  workers->reserves[0]->Answer(local);
  EXPECT_EQ(workers->streams[0]->request.reservation_id(), 5u);
  EXPECT_TRUE(workers->runs.empty());
  EXPECT_THAT(metrics.metrics().Text(), HasSubstr("sluice_gateway_route_decisions_total{outcome=\"local\"} 1"));
  workers->streams[0]->Event(Tokens("a", true));
  EXPECT_TRUE(client.done);
}

TEST_F(RequestFlowTest, ALocalPrefillIsReleasedAndStartedOverLikeAnyOther) {
  SetUpFleet(1, 2);
  StartFlow();
  proto::ReserveReply local;
  local.set_local(true);
  local.set_reservation_id(5);
  local.set_epoch(1000);
  workers->reserves[0]->Answer(local);
  workers->streams[0]->End(absl::UnavailableError("gone"));
  ASSERT_EQ(workers->reserves.size(), 2u);
  workers->reserves[1]->Answer(local);
  flow.reset();
  EXPECT_TRUE(workers->streams[1]->cancelled);
  EXPECT_THAT(workers->released, ElementsAre(Pair(0, 5u), Pair(1, 5u)));
}

TEST_F(RequestFlowTest, WhoServedAPromptIsRememberedForTheNextTurn) {
  SetUpFleet(2, 2);
  prompt.clear();
  for (int i = 0; i < 40; ++i) prompt.push_back(i);
  StartFlow();
  GrantReservation(5);
  ASSERT_EQ(workers->runs[0]->worker, 0);
  workers->streams[0]->Event(Answer(21));
  ASSERT_TRUE(client.done);
  const PageHashes hashes = HashPages(prompt, 16);
  EXPECT_EQ(prefixes.KnownPages({WorkerRole::kPrefill, 0}, hashes), 2);
  EXPECT_EQ(prefixes.KnownPages({WorkerRole::kPrefill, 1}, hashes), 0);
  EXPECT_EQ(prefixes.KnownPages({WorkerRole::kDecode, workers->reserves[0]->worker}, hashes), 2);
  EXPECT_EQ(prefixes.size(), 3u) << "and decode has the answer";
}

TEST_F(RequestFlowTest, DecodeHasNoKvOfItsLastToken) {
  SetUpFleet(1, 1);
  prompt.assign(40, 1);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->Event(Answer(8));  // 47 tokens with KV
  EXPECT_EQ(prefixes.size(), 2u);
}

TEST_F(RequestFlowTest, DecodeHasNothingOfAnAnswerOfOneToken) {
  SetUpFleet(1, 1);
  prompt.assign(40, 1);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->Event(Answer(1));
  ASSERT_TRUE(client.done);
  const PageHashes hashes = HashPages(prompt, 16);
  EXPECT_EQ(prefixes.KnownPages({WorkerRole::kPrefill, 0}, hashes), 2);
  EXPECT_EQ(prefixes.KnownPages({WorkerRole::kDecode, 0}, hashes), 0);
}

TEST_F(RequestFlowTest, GenerateIsOpenBeforePrefillRuns) {
  SetUpFleet(1, 1);
  StartFlow();
  EXPECT_TRUE(workers->streams.empty());
  GrantReservation(5);
  EXPECT_EQ(workers->streams.size(), 1u);
  EXPECT_EQ(workers->streams[0]->wanted, 1);
}

TEST_F(RequestFlowTest, PrefillMayAnswerAfterTheLastToken) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->Event(Tokens("a", true));
  EXPECT_TRUE(client.done);
  EXPECT_TRUE(workers->runs[0]->let_finish);
  EXPECT_FALSE(workers->runs[0]->cancelled);
}

TEST_F(RequestFlowTest, AClientThatLeavesCancelsBothLegsAndReleases) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  flow.reset();
  EXPECT_TRUE(workers->streams[0]->cancelled);
  EXPECT_TRUE(workers->runs[0]->cancelled);
  EXPECT_THAT(workers->released, ElementsAre(Pair(0, 5u)));
}

TEST_F(RequestFlowTest, AClientThatLeavesWhileReservingAbandonsTheCall) {
  SetUpFleet(1, 1);
  StartFlow();
  flow.reset();
  EXPECT_TRUE(workers->reserves[0]->cancelled);
}

TEST_F(RequestFlowTest, NoRoomTriesTheOtherDecodeAtOnce) {
  SetUpFleet(1, 2);
  StartFlow();
  EXPECT_EQ(workers->reserves[0]->worker, 0);
  workers->reserves[0]->Answer(NoRoom(500));
  ASSERT_EQ(workers->reserves.size(), 2u);
  EXPECT_EQ(workers->reserves[1]->worker, 1);
}

TEST_F(RequestFlowTest, NoRoomAnywhereWaitsAsHintedAndAsksAgain) {
  SetUpFleet(1, 1);
  StartFlow();
  workers->reserves[0]->Answer(NoRoom(500));
  EXPECT_EQ(flow->state(), FlowState::kWaitingForRoom);
  loop.Advance(absl::Milliseconds(499));
  EXPECT_EQ(workers->reserves.size(), 1u);
  loop.Advance(absl::Milliseconds(260));
  ASSERT_EQ(workers->reserves.size(), 2u);
  GrantReservation(5);
  EXPECT_EQ(flow->state(), FlowState::kHandingOff);
}

TEST_F(RequestFlowTest, AZeroHintIsNotAskedAgainAtOnce) {
  SetUpFleet(1, 1);
  StartFlow();
  workers->reserves[0]->Answer(NoRoom(0));
  loop.Advance(absl::Milliseconds(49));
  EXPECT_EQ(workers->reserves.size(), 1u);
}

TEST_F(RequestFlowTest, WaitingForRoomEndsIn429WithTheNumbers) {
  SetUpFleet(1, 1);
  StartFlow();
  for (int i = 0; i < 100 && !client.failure.has_value(); ++i) {
    if (workers->reserves.back()->done) workers->reserves.back()->Answer(NoRoom(1000));
    loop.Advance(absl::Milliseconds(100));
  }
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(HttpStatus(client.failure->code()), 429);
  EXPECT_THAT(FailureMessage(), HasSubstr("needs 8 KV pages, 3 of 100 are free"));
  EXPECT_GE(client.retry_after, absl::Seconds(1));
}

TEST_F(RequestFlowTest, ARequestThatCanNeverFitIsTheClientsError) {
  SetUpFleet(1, 2);
  StartFlow();
  workers->reserves[0]->Answer(absl::OutOfRangeError("needs 900 pages, the pool has 100"));
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(HttpStatus(client.failure->code()), 400);
  EXPECT_EQ(workers->reserves.size(), 1u);
}

TEST_F(RequestFlowTest, ADecodeThatIsGoneIsLeftForAnother) {
  SetUpFleet(1, 2);
  StartFlow();
  workers->reserves[0]->Answer(absl::UnavailableError("connection refused"));
  ASSERT_EQ(workers->reserves.size(), 2u);
  EXPECT_EQ(workers->reserves[1]->worker, 1);
}

TEST_F(RequestFlowTest, APrefillThatDiesGivesItsReservationToAnother) {
  SetUpFleet(2, 1);
  StartFlow();
  GrantReservation(5);
  const int first = workers->runs[0]->worker;
  workers->runs[0]->Answer(absl::UnavailableError("gone"));
  ASSERT_EQ(workers->rearms.size(), 1u);
  EXPECT_EQ(workers->rearms[0]->request.reservation_id(), 5u);
  EXPECT_FALSE(workers->streams[0]->cancelled);
  workers->rearms[0]->Answer(Ticket(5));
  ASSERT_EQ(workers->runs.size(), 2u);
  EXPECT_NE(workers->runs[1]->worker, first);
  workers->streams[0]->Event(Tokens("a", true));
  EXPECT_TRUE(client.done);
  EXPECT_THAT(workers->released, IsEmpty());
}

TEST_F(RequestFlowTest, ARearmThatComesAfterTheCommitWaitsForItsTokens) {
  SetUpFleet(2, 1);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(absl::UnavailableError("its connection to decode ended"));
  workers->rearms[0]->Answer(absl::FailedPreconditionError("it runs already"));
  EXPECT_FALSE(client.failure.has_value());
  EXPECT_FALSE(workers->streams[0]->cancelled);
  workers->streams[0]->Event(Tokens("a", true));
  EXPECT_TRUE(client.done);
  EXPECT_EQ(workers->reserves.size(), 1u);
  EXPECT_THAT(workers->released, IsEmpty());
}

TEST_F(RequestFlowTest, WithoutAnotherPrefillItEndsIn503AndReleases) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(absl::UnavailableError("gone"));
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(HttpStatus(client.failure->code()), 503);
  EXPECT_THAT(FailureMessage(), HasSubstr("prefill p0: gone"));
  EXPECT_TRUE(workers->streams[0]->cancelled);
  EXPECT_THAT(workers->released, ElementsAre(Pair(0, 5u)));
}

TEST_F(RequestFlowTest, PrefillIsTriedAtMostTwice) {
  SetUpFleet(3, 1);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(absl::UnavailableError("gone"));
  workers->rearms[0]->Answer(Ticket(5));
  workers->runs[1]->Answer(absl::UnavailableError("gone too"));
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(workers->runs.size(), 2u);
}

TEST_F(RequestFlowTest, ADecodeThatPrefillHasLostIsLeftAndNotThePrefill) {
  SetUpFleet(1, 2);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(AtPeer(absl::UnavailableError("connection lost")));
  EXPECT_THAT(workers->rearms, IsEmpty());
  ASSERT_EQ(workers->reserves.size(), 2u);
  EXPECT_NE(workers->reserves[1]->worker, workers->reserves[0]->worker);
  GrantReservation(6);
  ASSERT_EQ(workers->runs.size(), 2u);
  EXPECT_EQ(workers->runs[1]->worker, workers->runs[0]->worker);
}

TEST_F(RequestFlowTest, WithoutAnotherDecodeAnotherPrefillMayReachIt) {
  SetUpFleet(2, 1);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(AtPeer(absl::UnavailableError("connection lost")));
  ASSERT_EQ(workers->rearms.size(), 1u);
  const int accuser = workers->runs[0]->worker;
  EXPECT_FALSE(fleet->snapshot().prefill[static_cast<size_t>(accuser)].suspect);
  workers->rearms[0]->Answer(Ticket(5));  // decode is there
  EXPECT_TRUE(fleet->snapshot().prefill[static_cast<size_t>(accuser)].suspect);
  ASSERT_EQ(workers->runs.size(), 2u);
  EXPECT_NE(workers->runs[1]->worker, accuser);
}

TEST_F(RequestFlowTest, APrefillThatLosesOneDecodeAfterTheOtherIsSuspectItself) {
  SetUpFleet(1, 3);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(AtPeer(absl::UnavailableError("connection lost")));
  EXPECT_FALSE(fleet->snapshot().prefill[0].suspect);
  GrantReservation(6);
  workers->runs[1]->Answer(AtPeer(absl::UnavailableError("connection lost")));
  EXPECT_TRUE(fleet->snapshot().prefill[0].suspect);
  for (const WorkerSnapshot& decode : fleet->snapshot().decode) EXPECT_FALSE(decode.suspect);
}

TEST_F(RequestFlowTest, DamagedKvIsPrefilledAgainByTheSameWorker) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(absl::DataLossError("crc"));
  workers->rearms[0]->Answer(Ticket(5));
  EXPECT_EQ(workers->runs.size(), 2u);
}

TEST_F(RequestFlowTest, ALostReservationStartsOverOnTheSameDecode) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->End(absl::AbortedError("expired"));
  EXPECT_EQ(client.restarts, 1);
  EXPECT_TRUE(workers->runs[0]->cancelled);
  ASSERT_EQ(workers->reserves.size(), 2u);
  EXPECT_EQ(workers->reserves[1]->worker, 0);
}

TEST_F(RequestFlowTest, StartingOverIsBounded) {
  SetUpFleet(1, 1);
  StartFlow();
  for (int i = 0; i < 10 && !client.failure.has_value(); ++i) {
    GrantReservation(i);
    workers->streams.back()->End(absl::AbortedError("expired"));
  }
  EXPECT_EQ(workers->reserves.size(), 3u);
  EXPECT_EQ(HttpStatus(client.failure->code()), 503);
}

TEST_F(RequestFlowTest, ADecodeThatDiesAfterTheFirstByteIsAnError) {
  SetUpFleet(1, 2);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->Event(Tokens("a"));
  workers->streams[0]->End(absl::UnavailableError("gone"));
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(client.restarts, 0);
  EXPECT_EQ(workers->reserves.size(), 1u);
}

TEST_F(RequestFlowTest, ADecodeThatDiesBeforeTheClientSawAnythingIsReplaced) {
  client.streams = false;
  SetUpFleet(1, 2);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->Event(Tokens("a"));
  workers->streams[0]->End(absl::UnavailableError("gone"));
  EXPECT_EQ(client.restarts, 1);
  ASSERT_EQ(workers->reserves.size(), 2u);
  EXPECT_EQ(workers->reserves[1]->worker, 1);
}

TEST_F(RequestFlowTest, AStreamThatEndsWithoutALastEventIsAFailure) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->End(absl::OkStatus());
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_THAT(FailureMessage(), HasSubstr("before the last token"));
}

TEST_F(RequestFlowTest, HowPrefillFaresNoLongerMattersOnceTokensCome) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->streams[0]->Event(Tokens("a"));
  workers->runs[0]->Answer(absl::UnavailableError("died after the commit"));
  workers->streams[0]->Event(Tokens("b", true));
  EXPECT_TRUE(client.done);
}

TEST_F(RequestFlowTest, TheDeadlineNeedsNoTrafficToFire) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  loop.Advance(absl::Seconds(61));
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(HttpStatus(client.failure->code()), 504);
  EXPECT_TRUE(workers->runs[0]->cancelled);
  EXPECT_THAT(workers->released, ElementsAre(Pair(0, 5u)));
}

TEST_F(RequestFlowTest, ASilentPrefillIsReplacedWhenTheFleetLosesIt) {
  SetUpFleet(2, 1);
  StartFlow();
  GrantReservation(5);
  workers->prefill(workers->runs[0]->worker).silent = true;
  loop.Advance(absl::Seconds(7));
  EXPECT_EQ(workers->rearms.size(), 1u);
  EXPECT_TRUE(workers->runs[0]->cancelled);
}

TEST_F(RequestFlowTest, ARestartedDecodeBreaksItsStreamsAtOnce) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->decode(0).status->set_epoch(2000);
  loop.Advance(absl::Seconds(1));
  EXPECT_TRUE(workers->streams[0]->cancelled);
}

TEST_F(RequestFlowTest, ASlowClientHoldsTheStreamBack) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  client.stalled = true;
  workers->streams[0]->Event(Tokens("a"));
  EXPECT_EQ(workers->streams[0]->wanted, 0);
  client.stalled = false;
  flow->Resume();
  EXPECT_EQ(workers->streams[0]->wanted, 1);
}

TEST_F(RequestFlowTest, WithoutWorkersItIs503WithTheReason) {
  SetUpFleet(1, 1);
  workers->prefill(0).status = absl::UnavailableError("connection refused");
  loop.Advance(absl::Seconds(1));
  StartFlow();
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(HttpStatus(client.failure->code()), 503);
  EXPECT_THAT(FailureMessage(), HasSubstr("p0: does not answer (connection refused)"));
  EXPECT_THAT(metrics.metrics().Text(), HasSubstr("route_decisions_total{outcome=\"no_worker\"} 1"));
}

TEST_F(RequestFlowTest, AWrongClusterKeyIsNotTheClientsFault) {
  SetUpFleet(1, 1);
  StartFlow();
  GrantReservation(5);
  workers->runs[0]->Answer(absl::UnauthenticatedError("ticket mac"));
  ASSERT_TRUE(client.failure.has_value());
  EXPECT_EQ(HttpStatus(client.failure->code()), 503);
}

}  // namespace
}  // namespace sluice
