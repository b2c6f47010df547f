// When decode computes a prompt itself, and that its answer is then what it would have been.
#include "decode/local_prefill.h"

#include "tests/decode/worker_fixture.h"

namespace sluice::decode {
namespace {

// 10 tokens at 100/s: 0.1 s here, against 0.1 s and the handoff.
constexpr LocalPrefillFacts kFacts = {
    .uncached_tokens = 10, .compute_seconds = 0.1, .tokens_max = 64, .tokens_per_second = 100, .chunk_tokens = 4};

LocalPrefillFacts With(std::function<void(LocalPrefillFacts&)> change) {
  LocalPrefillFacts facts = kFacts;
  change(facts);
  return facts;
}

TEST(PrefillsLocally, WhereTheFirstTokenComesNoLater) {
  const std::pair<LocalPrefillFacts, bool> cases[] = {
      {kFacts, true},
      {With([](auto& f) { f.compute_seconds = 0.05; }), false},
      {With([](auto& f) { f.compute_seconds = 0.05, f.queue_seconds = 0.06; }), true},
      {With([](auto& f) { f.compute_seconds = 0.05, f.transfer_seconds_per_token = 0.006; }), true},
      // Longer than may be computed here, or nothing at all may.
      {With([](auto& f) { f.tokens_max = 9; }), false},
      {With([](auto& f) { f.tokens_max = 0, f.compute_seconds = 9; }), false},
      {With([](auto& f) { f.tokens_per_second = 0, f.compute_seconds = 9; }), false},
      // Behind 20 others tokens: 0.3 s.
      {With([](auto& f) { f.waiting_tokens = 20, f.compute_seconds = 0.29; }), false},
      {With([](auto& f) { f.waiting_tokens = 20, f.compute_seconds = 0.31; }), true},
      // Three chunks with a step of 0.05 s before each, and one sequence that waits 0.1 s: 0.35 s.
      {With([](auto& f) { f.running_sequences = 1, f.step_seconds = 0.05, f.compute_seconds = 0.34; }), false},
      {With([](auto& f) { f.running_sequences = 1, f.step_seconds = 0.05, f.compute_seconds = 0.36; }), true},
      // Steps that are not run cost nothing.
      {With([](auto& f) { f.step_seconds = 5; }), true},
      // The more wait for it, the dearer it is.
      {With([](auto& f) { f.running_sequences = 20, f.compute_seconds = 2; }), false},
  };
  for (size_t i = 0; i < std::size(cases); ++i) EXPECT_EQ(PrefillsLocally(cases[i].first), cases[i].second) << i;
}

class DecodeLocalPrefillTest : public WorkerFixture {
 protected:
  static proto::ReleaseRequest ReleaseOf(const proto::ReserveReply& reply) {
    proto::ReleaseRequest request;
    request.set_reservation_id(reply.reservation_id());
    request.set_epoch(reply.epoch());
    return request;
  }
  DecodeLocalPrefillTest() : WorkerFixture(kPages, 64) {
    ship_.emplace();
    ship_->set_compute_seconds(100);
  }
};

TEST_F(DecodeLocalPrefillTest, WhoAsksForThatAloneHoldsNothingWhereItIsNot) {
  only_local_ = true;
  Held held = ReserveLocal(Prompt(64), Sampling(9));
  ReadToEnd(held);
  ExpectAnswered(held);
  const auto reply = TryReserve(Prompt(65, 2), Sampling(9));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->not_local());
  EXPECT_EQ(metrics_.reservations.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(DecodeLocalPrefillTest, AnswersAsIfItHadBeenShipped) {
  for (const int tokens : {1, 3, 4, 5, 8, 17, 64}) {
    Held held = ReserveLocal(Prompt(tokens, tokens), Sampling(9));
    ReadToEnd(held);
    ExpectAnswered(held);
    EXPECT_EQ(held.last.usage().cached_tokens(), 0u);
  }
  EXPECT_EQ(metrics_.local_prefills.Value(), 7);
  EXPECT_EQ(metrics_.local_prefill_tokens.Value(), 1 + 3 + 4 + 5 + 8 + 17 + 64);
  EXPECT_EQ(metrics_.commits.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(DecodeLocalPrefillTest, OnlyWhatIsNotCachedIsComputedAndCounted) {
  Held first = ReserveLocal(Prompt(20), Sampling(5));
  ReadToEnd(first);
  Held again = ReserveLocal(Prompt(20), Sampling(5));
  ReadToEnd(again);
  ExpectAnswered(again);
  EXPECT_EQ(again.last.usage().cached_tokens(), 16u);
  EXPECT_EQ(metrics_.local_prefill_tokens.Value(), 24);
  // A long prompt is computed here where little of it is new.
  std::vector<TokenId> prompt = Prompt(100, 3);
  ship_.reset();
  const auto sender = NewSender();
  Held shipped = Reserve(prompt, Sampling(4));
  SendAllKv(*sender, shipped);
  SendCommit(*sender, shipped);
  ReadToEnd(shipped);
  ship_.emplace().set_compute_seconds(100);
  Held held = ReserveLocal(prompt, Sampling(4));
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(held.last.usage().cached_tokens(), 96u);
}

TEST_F(DecodeLocalPrefillTest, LongRestsAndRequestsWithoutAPredictionAreShipped) {
  EXPECT_TRUE(TryReserve(Prompt(65), Sampling(2))->has_ticket());
  ship_->set_compute_seconds(0.001);
  EXPECT_TRUE(TryReserve(Prompt(30), Sampling(2))->has_ticket());
  ship_.reset();
  EXPECT_TRUE(TryReserve(Prompt(3), Sampling(2))->has_ticket());
}

TEST_F(DecodeLocalPrefillTest, ChoicesStopsAndLimitsAreThoseOfAnyRequest) {
  const auto prompt = Prompt(9);
  Held four = ReserveLocal(prompt, Sampling(9, 4));
  ReadToEnd(four);
  ExpectAnswered(four);
  Held one = ReserveLocal(prompt, Sampling(1));
  ReadToEnd(one);
  ExpectAnswered(one);
  EXPECT_EQ(one.last.finish(), proto::FINISH_LENGTH);
  SamplingParams stop = Sampling(9);
  stop.stop_token_ids = {ToyAnswers(prompt, stop)[0][0]};
  Held stopped = ReserveLocal(prompt, stop);
  ReadToEnd(stopped);
  ExpectAnswered(stopped);
  EXPECT_EQ(stopped.last.finish(), proto::FINISH_STOP);
  ExpectNothingHeld();
}

TEST_F(DecodeLocalPrefillTest, AChunkATurnAndStepsInBetween) {
  Held running = ReserveLocal(Prompt(3), Sampling(40));
  TurnUntil([&] { return Read(running), running.tokens[0].size() == 3; });
  Held held = ReserveLocal(Prompt(20, 2), Sampling(3));
  const double computed = metrics_.local_prefill_tokens.Value();
  const size_t tokens = (Read(running), running.tokens[0].size());
  Turns(2);
  Read(running);
  EXPECT_EQ(metrics_.local_prefill_tokens.Value(), computed + 8);
  EXPECT_EQ(running.tokens[0].size(), tokens + 2);
  while (!Read(running) || !Read(held)) Turns(1);
  ExpectAnswered(running);
  ExpectAnswered(held);
}

TEST_F(DecodeLocalPrefillTest, RestsOfFewTokensDoNotSayHowFastALongOneIs) {
  forward_takes_ = absl::Seconds(1);
  for (int i = 0; i < 20; ++i) {
    Held held = ReserveLocal(Prompt(1, i), Sampling(1));
    ReadToEnd(held);
  }
  ship_->set_compute_seconds(0.5);
  EXPECT_TRUE(TryReserve(Prompt(4, 99), Sampling(1))->local());
}

TEST_F(DecodeLocalPrefillTest, AfterASlowTimeItIsTriedAgain) {
  forward_takes_ = absl::Seconds(60);
  ship_->set_compute_seconds(1e6);
  for (int i = 0; i < 20; ++i) {
    Held held = ReserveLocal(Prompt(4, i), Sampling(1));
    ReadToEnd(held);
  }
  forward_takes_ = absl::ZeroDuration();
  ship_->set_compute_seconds(0.1);
  int shipped = 0;
  for (bool local = false; !local && shipped < 200; shipped += local ? 0 : 1) {
    const auto reply = TryReserve(Prompt(4, shipped), Sampling(1));
    ASSERT_TRUE(reply.ok()) << reply.status();
    local = reply->local();
    worker_->Release(ReleaseOf(*reply), [](const auto&) {});
    Turns(1);
  }
  EXPECT_GT(shipped, 0);
  EXPECT_LT(shipped, 200);
}

TEST_F(DecodeLocalPrefillTest, WhoeverLeavesIsLateOrFailsGivesEverythingBack) {
  Held leaves = ReserveLocal(Prompt(60), Sampling(3));
  Leave(leaves);
  Held released = ReserveLocal(Prompt(60), Sampling(3));
  Release(released);
  Held late = ReserveLocal(Prompt(60), Sampling(3));
  clock_.Advance(absl::Minutes(11));
  Turns(1);
  EXPECT_TRUE(Read(late));
  EXPECT_EQ(late.end->code(), absl::StatusCode::kDeadlineExceeded);
  Held unread = ReserveLocal(Prompt(60), Sampling(3), /*read=*/false);
  clock_.Advance(absl::Seconds(11));
  Turns(1);
  const auto prompt = Prompt(10);
  poison_token_ = prompt[9];
  forward_fails_ = absl::InternalError("odd");
  Held fails = ReserveLocal(prompt, Sampling(3));
  ReadToEnd(fails);
  EXPECT_EQ(fails.end->code(), absl::StatusCode::kInternal);
  forward_fails_ = absl::OkStatus();
  poison_with_nan_ = true;
  Held nan = ReserveLocal(prompt, Sampling(3));
  ReadToEnd(nan);
  EXPECT_EQ(nan.end->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(pool_->pages_free(), kPages);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace sluice::decode
