// Requests that go on from what an earlier one left: whose KV is shared, what is still sent, and that nothing that
// fails spoils it. The toy's KV rows hold their tokens, so a page with wrong contents changes the answer.
#include "tests/decode/worker_fixture.h"

namespace sluice::decode {
namespace {

class DecodePrefixTest : public WorkerFixture {
 protected:
  DecodePrefixTest() : WorkerFixture(kPages) {}

  // A whole request. Returns the token from which its KV was sent.
  uint32_t Ask(Sender& sender, const std::vector<TokenId>& prompt, const SamplingParams& sampling) {
    Held held = Reserve(prompt, sampling);
    Finish(sender, held);
    return held.ticket.kv_from_token();
  }
  void Finish(Sender& sender, Held& held) {
    SendAllKv(sender, held);
    SendCommit(sender, held);
    ReadToEnd(held);
    ExpectAnswered(held);
  }
  // What a client sends next: prompt, answer and more.
  static std::vector<TokenId> NextTurn(std::vector<TokenId> prompt, const SamplingParams& sampling, int more) {
    const auto answer = ToyAnswers(prompt, sampling)[0];
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    const auto rest = Prompt(more, /*salt=*/99);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    return prompt;
  }
  void ExpectConserved() {
    EXPECT_EQ(pool_->pages_free() + pool_->pages_leased() + pool_->pages_cached() + pool_->pages_quarantined(), kPages);
  }
};

TEST_F(DecodePrefixTest, ANextTurnIsSentOnlyWhatIsNew) {
  const auto sender = NewSender();
  const auto first = Prompt(10);
  EXPECT_EQ(Ask(*sender, first, Sampling(8)), 0u);
  // KV of 10 + 7 tokens is here, four whole pages.
  EXPECT_EQ(pool_->pages_cached(), 4);
  const auto second = NextTurn(first, Sampling(8), 5);
  EXPECT_EQ(Ask(*sender, second, Sampling(8)), 16u);
  EXPECT_EQ(Ask(*sender, NextTurn(second, Sampling(8), 3), Sampling(8)), 28u);
  EXPECT_EQ(metrics_.prefix_hit_tokens.Value(), 16 + 28);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, KvThatCameCoarserThanTheLinkNowTakesIsSentAnewAndReplaced) {
  const auto sender = NewSender();
  const auto prompt = Prompt(20);
  wire_name_ = "int4";
  EXPECT_EQ(Ask(*sender, prompt, Sampling(3)), 0u);
  EXPECT_EQ(Ask(*sender, prompt, Sampling(3)), 16u);  // a transfer would bring nothing better
  wire_name_ = "bf16";
  EXPECT_EQ(Ask(*sender, Prompt(20, 2), Sampling(3)), 0u);
  EXPECT_EQ(Ask(*sender, prompt, Sampling(3)), 0u);
  EXPECT_EQ(Ask(*sender, prompt, Sampling(3)), 16u);
  wire_name_ = "int8";
  EXPECT_EQ(Ask(*sender, Prompt(20, 3), Sampling(3)), 0u);
  EXPECT_EQ(Ask(*sender, prompt, Sampling(3)), 16u);  // better than asked for
  wire_name_ = "int4";
  EXPECT_EQ(Ask(*sender, Prompt(20, 3), Sampling(3)), 16u);
  ExpectConserved();
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, TheSamePromptAgainIsSentAtLeastItsLastToken) {
  const auto sender = NewSender();
  for (int tokens = 1; tokens <= 17; ++tokens) {
    const auto prompt = Prompt(tokens, /*salt=*/tokens + 100);
    EXPECT_EQ(Ask(*sender, prompt, Sampling(6)), 0u);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(Ask(*sender, prompt, Sampling(6)),
                static_cast<uint32_t>((tokens - 1) / kToyPageTokens * kToyPageTokens))
          << tokens;
    }
  }
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, EachChoiceLeavesItsOwnAnswer) {
  const auto sender = NewSender();
  const auto prompt = Prompt(9);
  EXPECT_EQ(Ask(*sender, prompt, Sampling(9, 4)), 0u);
  const auto answers = ToyAnswers(prompt, Sampling(9, 4));
  for (const auto& answer : answers) {
    std::vector<TokenId> next = prompt;
    next.insert(next.end(), answer.begin(), answer.end());
    EXPECT_EQ(Ask(*sender, next, Sampling(2)), 16u);
  }
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, ChoicesThatEndEarlyLeaveTheirPagesWhileOthersRun) {
  const auto sender = NewSender();
  SamplingParams sampling = Sampling(30, 3);
  const auto prompt = Prompt(9);
  // A token that one choice meets early and the others later or never.
  sampling.stop_token_ids = {ToyAnswers(prompt, sampling)[1][3]};
  Ask(*sender, prompt, sampling);
  ExpectConserved();
  EXPECT_EQ(Ask(*sender, prompt, sampling), 8u);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, FramesBeforeTheFirstMissingTokenAreRefused) {
  const auto sender = NewSender();
  const auto prompt = Prompt(10);
  Ask(*sender, prompt, Sampling(8));
  Held held = Reserve(prompt, Sampling(8));
  ASSERT_EQ(held.ticket.kv_from_token(), 8u);
  SendKv(*sender, held, 0, 4, 6);
  // The sender may hear of it before the engine thread does.
  TurnUntil([&] { return !sender->results().empty() && sender->results().back().code() != 0; });
  TurnUntil([&] { return metrics_.transfers_failed.Value() == 1; });
  held.ticket = *Rearm(held);
  EXPECT_EQ(held.ticket.kv_from_token(), 8u) << "a rearmed reservation keeps its prefix";
  Finish(*sender, held);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, OfTwoThatShareAPrefixOneFailsAndBothAnswersAreRight) {
  const auto sender = NewSender();
  const auto prompt = Prompt(12);
  Ask(*sender, prompt, Sampling(4));
  Held fails = Reserve(NextTurn(prompt, Sampling(4), 6), Sampling(8));
  Held other = Reserve(NextTurn(prompt, Sampling(4), 7), Sampling(8));
  ASSERT_EQ(fails.ticket.kv_from_token(), 12u);
  ASSERT_EQ(other.ticket.kv_from_token(), 12u);
  SendKv(*sender, fails, 0, 12, 10);
  sender->Send(Header(fails, FrameKind::kAbort),
               MakeTransferResult({fails.ticket.request_id()}, {fails.ticket.reservation_id()},
                                  {fails.ticket.generation()}, absl::InternalError("prefill gave up"))
                   .SerializeAsString());
  TurnUntil([&] { return metrics_.transfers_failed.Value() == 1; });
  Finish(*sender, other);
  fails.ticket = *Rearm(fails);
  Finish(*sender, fails);
  EXPECT_EQ(Ask(*sender, prompt, Sampling(4)), 8u);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, AHandoffOfAnotherPromptIsRefused) {
  const auto sender = NewSender();
  const auto prompt = Prompt(10);
  Ask(*sender, prompt, Sampling(4));
  Held held = Reserve(prompt, Sampling(4));
  Held another = held;
  another.prompt.back() = (another.prompt.back() + 1) % kToyVocab;
  SendAllKv(*sender, another);
  SendCommit(*sender, another);
  TurnUntil([&] { return metrics_.transfers_failed.Value() == 1; });
  Release(held);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, CachedPagesGoWhenAReservationNeedsThem) {
  const auto sender = NewSender();
  for (int i = 0; i < 12; ++i) {
    Ask(*sender, Prompt(30, i + 1), Sampling(11));  // ten pages each, of eighty
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(pool_->pages_free() + pool_->pages_cached(), kPages);
  EXPECT_GT(metrics_.prefix_evictions.Value(), 0);
  EXPECT_EQ(Ask(*sender, Prompt(30, 1), Sampling(11)), 0u) << "the first went first";
  EXPECT_EQ(Ask(*sender, Prompt(30, 12), Sampling(11)), 28u);
  const auto all = TryReserve(Prompt(100, 77), Sampling(100));  // fifty pages
  ASSERT_TRUE(all.ok() && all->has_ticket());
  ExpectConserved();
}

TEST_F(DecodePrefixTest, WhoIsRefusedForWantOfRoomHoldsNothing) {
  const auto sender = NewSender();
  const auto prompt = Prompt(30);
  Ask(*sender, prompt, Sampling(3));
  Held large = Reserve(Prompt(100, 5), Sampling(100));   // fifty pages
  const auto reply = TryReserve(prompt, Sampling(120));  // 38 pages, seven of which are here
  ASSERT_TRUE(reply.ok() && reply->has_no_room());
  EXPECT_EQ(reply->no_room().pages_needed(), 38u - 7);
  EXPECT_EQ(reply->no_room().pages_free(), 80u - 50 - 7);
  EXPECT_EQ(pool_->pages_cached(), 8);
  Release(large);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, CachedPagesGoAfterTheirTimeWithoutTraffic) {
  const auto sender = NewSender();
  Ask(*sender, Prompt(12), Sampling(4));
  clock_.Advance(absl::Minutes(5) - absl::Seconds(1));
  Turns(1);
  EXPECT_GT(pool_->pages_cached(), 0);
  clock_.Advance(absl::Seconds(2));
  Turns(1);
  EXPECT_EQ(pool_->pages_free(), kPages);
}

// A prefill that has lost the prefix computes it in silence.
TEST_F(DecodePrefixTest, AReservationWithAPrefixIsHeldForAsLongAsItsReaderListens) {
  const auto sender = NewSender();
  const auto prompt = Prompt(10);
  Ask(*sender, prompt, Sampling(8));
  Held held = Reserve(prompt, Sampling(8));
  ASSERT_EQ(held.ticket.kv_from_token(), 8u);
  clock_.Advance(absl::Seconds(100));  // beyond the queue wait
  Turns(1);
  EXPECT_FALSE(held.end.has_value());
  Finish(*sender, held);
  ExpectNothingHeld();
}

TEST_F(DecodePrefixTest, AFailedRequestLeavesNothingBehind) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(12), Sampling(8));
  poison_token_ = ToyAnswers(held.prompt, held.sampling)[0][2];
  poison_with_nan_ = true;
  SendAllKv(*sender, held);
  SendCommit(*sender, held);
  ReadToEnd(held);
  EXPECT_FALSE(held.end->ok());
  EXPECT_EQ(pool_->pages_free(), kPages);
}

}  // namespace
}  // namespace sluice::decode
