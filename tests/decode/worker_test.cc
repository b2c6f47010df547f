// From a whole handoff to the last token, and every way in which it can end otherwise.
#include <algorithm>
#include <thread>

#include "common/rng.h"
#include "tests/decode/worker_fixture.h"

namespace sluice::decode {
namespace {

class WorkerTest : public WorkerFixture {
 protected:
  void SetUp() override { sender_ = NewSender(); }

  // Reserved, attached and delivered.
  Held Start(std::vector<TokenId> prompt, SamplingParams sampling) {
    Held held = Reserve(std::move(prompt), std::move(sampling));
    Deliver(held);
    return held;
  }
  void Deliver(const Held& held) {
    const double commits = metrics_.commits.Value();
    const std::string record = Record(held);
    proto::HandoffRecord parsed;
    SLUICE_CHECK(parsed.ParseFromString(record));
    if (parsed.kv_tokens() > 0) SendAllKv(*sender_, held);
    SendCommit(*sender_, held);
    TurnUntil([this, commits] { return metrics_.commits.Value() > commits; });
  }
  // A token that the answer to `prompt` has at `index`.
  static TokenId TokenAt(const std::vector<TokenId>& prompt, const SamplingParams& sampling, size_t index) {
    return ToyAnswers(prompt, sampling)[0][index];
  }

  // A token that is fed back in one answer and not in the other.
  static TokenId TokenOnlyIn(const Held& held, const Held& other) {
    const auto answer = ToyAnswers(held.prompt, held.sampling)[0];
    const auto others = ToyAnswers(other.prompt, other.sampling)[0];
    const auto only = std::find_if(answer.begin(), answer.end() - 1, [&others](TokenId token) {
      return std::find(others.begin(), others.end(), token) == others.end();
    });
    SLUICE_CHECK(only != answer.end() - 1);
    return *only;
  }

  std::unique_ptr<Sender> sender_;
};

class PromptLengthTest : public WorkerTest, public testing::WithParamInterface<int> {};

TEST_P(PromptLengthTest, IsAnsweredWithTheModelsOwnTokens) {
  for (const int max_tokens : {1, 2, 7}) {
    Held held = Start(Prompt(GetParam()), Sampling(max_tokens));
    ReadToEnd(held);
    ExpectAnswered(held);
    EXPECT_EQ(held.tokens[0].size(), static_cast<size_t>(max_tokens));
    ExpectNothingHeld();
  }
}

INSTANTIATE_TEST_SUITE_P(AroundPages, PromptLengthTest, testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 100));

TEST_F(WorkerTest, TheFirstTokenIsReadBeforeTheFirstStep) {
  Held held = Reserve(Prompt(10), Sampling(6));
  Deliver(held);
  const auto event = held.stream->Take(&held.end);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->tokens(0).token(), TokenAt(held.prompt, held.sampling, 0));
}

TEST_F(WorkerTest, AFirstTokenThatEndsTheTextEndsTheRequestWithoutKv) {
  SamplingParams sampling = Sampling(20);
  sampling.ignore_eos = false;
  for (sampling.seed = 1; ToyAnswers(Prompt(6), sampling)[0].size() != 1;) ++sampling.seed;
  Held held = Start(Prompt(6), sampling);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(held.last.finish(), proto::FINISH_STOP);
  EXPECT_EQ(metrics_.tokens.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, AStopTokenThatIsTheFirstTokenEndsTheRequest) {
  SamplingParams sampling = Sampling(20);
  sampling.stop_token_ids = {TokenAt(Prompt(6), sampling, 0)};
  Held held = Start(Prompt(6), sampling);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(held.last.finish(), proto::FINISH_STOP);
  EXPECT_EQ(held.last.usage().completion_tokens(), 1u);
}

TEST_F(WorkerTest, FourChoicesGoTheirOwnWaysAndUsageIsTheirSum) {
  Held held = Start(Prompt(10), Sampling(12, 4));
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(held.last.usage().completion_tokens(), 48u);
  EXPECT_NE(held.tokens[0], held.tokens[1]);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, ChoicesThatEndEarlyGiveTheirPagesBackWhileOthersGoOn) {
  SamplingParams sampling = Sampling(60, 4);
  sampling.ignore_eos = false;
  Held held = Start(Prompt(8), sampling);
  const auto answers = ToyAnswers(held.prompt, sampling);
  const auto shortest = std::min_element(answers.begin(), answers.end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
  ASSERT_LT(shortest->size(), 60u);
  const int free = Free();
  TurnUntil([&] {
    Read(held);
    return held.tokens[static_cast<size_t>(shortest - answers.begin())].size() == shortest->size();
  });
  EXPECT_FALSE(held.end.has_value());
  EXPECT_GT(Free(), free);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, SlotsInUseAreThoseWithKvAndSharedPagesCountOnce) {
  const Held held = Start(Prompt(10), Sampling(30, 3));
  for (int turn = 0; turn < 4; ++turn) {
    Turns(1);
    // Two whole pages of the prompt are shared, the rest of it each choice has for itself.
    EXPECT_EQ(metrics_.kv_slots_used.Value(), 8 + 3 * 2 + metrics_.tokens.Value());
    EXPECT_LT(metrics_.kv_slots_used.Value(), metrics_.kv_pages_reserved.Value() * kToyPageTokens);
  }
  EXPECT_GT(metrics_.tokens.Value(), 0);
  Leave(held);
  EXPECT_EQ(metrics_.kv_slots_used.Value(), 0);
}

TEST_F(WorkerTest, ManyAtOnceEachGetTheirOwnAnswer) {
  std::vector<Held> all;
  for (int i = 0; i < 12; ++i) all.push_back(Start(Prompt(3 + i, i), Sampling(5 + i % 4)));
  TurnUntil([&] { return std::count_if(all.begin(), all.end(), [this](Held& held) { return Read(held); }) == 12; });
  for (const Held& held : all) ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, TheContextsEndIsTheAnswersEnd) {
  SamplingParams sampling = Sampling(100);
  Held held = Start(Prompt(kToyContext - 10), sampling);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(held.tokens[0].size(), 10u);
  EXPECT_EQ(held.last.finish(), proto::FINISH_LENGTH);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, ASlowReaderPausesItsOwnChoiceAndNobodyElse) {
  Held slow = Start(Prompt(5), Sampling(100));
  Held quick = Start(Prompt(6), Sampling(100));
  ReadToEnd(quick);
  ExpectAnswered(quick);
  EXPECT_TRUE(slow.stream->Full(0));
  Turns(3);
  const double tokens = metrics_.tokens.Value();
  Turns(3);
  EXPECT_EQ(metrics_.tokens.Value(), tokens);
  ReadToEnd(slow);
  ExpectAnswered(slow);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, AClientThatLeavesStopsItsRequest) {
  Held held = Start(Prompt(5), Sampling(40, 3));
  Held other = Start(Prompt(6), Sampling(20));
  Turns(2);
  Leave(held);
  EXPECT_EQ(metrics_.requests_released.Value(), 1);
  ReadToEnd(other);
  ExpectAnswered(other);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, ReleaseEndsTheStreamWithAbortedAndMayBeRepeated) {
  Held held = Start(Prompt(5), Sampling(100));
  Release(held);
  EXPECT_TRUE(Read(held));
  EXPECT_EQ(held.end->code(), absl::StatusCode::kAborted);
  ExpectNothingHeld();
  Release(held);
  EXPECT_EQ(metrics_.requests_released.Value(), 1);
}

TEST_F(WorkerTest, ADeadlineFiresWithoutTraffic) {
  Held held = Reserve(Prompt(5), Sampling(100));
  clock_.Advance(absl::Seconds(60));
  Turns(1);
  EXPECT_TRUE(Read(held));
  EXPECT_EQ(held.end->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(metrics_.expired_reservations.Value(), 1);
  EXPECT_EQ(metrics_.expired_requests.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, ARequestsOwnDeadlineEndsItWhileItRuns) {
  Held held = Start(Prompt(5), Sampling(150));
  clock_.Advance(absl::Minutes(10));
  Turns(1);
  EXPECT_TRUE(Read(held));
  EXPECT_EQ(held.end->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(metrics_.expired_requests.Value(), 1);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, AShortAnswerWaitsForAReaderWhoComesLate) {
  Held held = Reserve(Prompt(5), Sampling(3), /*read=*/false);
  Deliver(held);
  TurnUntil([this] { return metrics_.requests_finished.Value() == 1; });
  EXPECT_EQ(Free(), kPages);
  Attach(held);
  EXPECT_TRUE(Read(held));
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, AShortAnswerThatNobodyReadsIsForgotten) {
  Held held = Reserve(Prompt(5), Sampling(1), /*read=*/false);
  Deliver(held);
  clock_.Advance(absl::Seconds(10));
  ExpectNothingHeld();
}

TEST_F(WorkerTest, ARequestThatNobodyReadsIsGivenUp) {
  Held held = Reserve(Prompt(5), Sampling(100), /*read=*/false);
  Deliver(held);
  clock_.Advance(absl::Seconds(10));
  ExpectNothingHeld();
}

TEST_F(WorkerTest, AStepThatFailsEndsOnlyTheRequestThatMakesItFail) {
  Held bad = Reserve(Prompt(5, 3), Sampling(40));
  Held good = Reserve(Prompt(6, 4), Sampling(40));
  forward_fails_ = absl::InternalError("the model broke");
  poison_token_ = TokenOnlyIn(bad, good);
  Deliver(good);
  Deliver(bad);
  TurnUntil([&] { return Read(bad) && Read(good); });
  EXPECT_EQ(bad.end->code(), absl::StatusCode::kInternal);
  ExpectAnswered(good);
  EXPECT_EQ(metrics_.requests_failed.Value(), 1);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, LogitsThatAreNoNumbersEndOnlyTheirRequest) {
  Held bad = Reserve(Prompt(5, 3), Sampling(40));
  Held good = Reserve(Prompt(6, 4), Sampling(40));
  poison_with_nan_ = true;
  poison_token_ = TokenOnlyIn(bad, good);
  Deliver(good);
  Deliver(bad);
  TurnUntil([&] { return Read(bad) && Read(good); });
  EXPECT_EQ(bad.end->code(), absl::StatusCode::kInternal);
  ExpectAnswered(good);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, NoRoomIsATypedAnswerWithAHint) {
  Held large = Reserve(Prompt(150), Sampling(50, 2));
  const auto reply = TryReserve(Prompt(150), Sampling(50));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_TRUE(reply->has_no_room());
  EXPECT_EQ(reply->no_room().pages_needed(), 50u);
  EXPECT_EQ(reply->no_room().pages_free(), static_cast<uint32_t>(Free()));
  EXPECT_EQ(reply->no_room().pages_total(), static_cast<uint32_t>(kPages));
  EXPECT_GT(reply->no_room().retry_after_ms(), 0);
  Release(large);
}

TEST_F(WorkerTest, ImpossibleRequestsAreRefusedWithAReason) {
  const auto code = [this](int prompt, const SamplingParams& sampling, absl::Duration time = absl::Minutes(1)) {
    return TryReserve(Prompt(prompt), sampling, time).status().code();
  };
  EXPECT_EQ(code(kToyContext, Sampling(1)), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(0, Sampling(1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(5, Sampling(0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(150, Sampling(50, 16)), absl::StatusCode::kOutOfRange);  // more pages than there are
  EXPECT_EQ(code(5, Sampling(1), absl::ZeroDuration()), absl::StatusCode::kDeadlineExceeded);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, StatusTellsWhatIsFreeAndWhere) {
  proto::WorkerStatus status;
  Held held = Start(Prompt(10), Sampling(6));
  worker_->GetStatus([&status](StatusOr<proto::WorkerStatus> reply) { status = *reply; });
  const int free = Free();
  Turns(1);
  EXPECT_EQ(status.kv_pages_free(), static_cast<uint32_t>(free));
  EXPECT_EQ(status.kv_pages_total(), static_cast<uint32_t>(kPages));
  EXPECT_EQ(status.kv_address(), transport_->address());
  EXPECT_FALSE(status.draining());
}

TEST_F(WorkerTest, DrainingTakesNothingNewAndFinishesWhatRuns) {
  Held held = Start(Prompt(10), Sampling(20));
  absl::Notification drained;
  worker_->Drain(&drained);
  EXPECT_EQ(TryReserve(Prompt(3), Sampling(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(drained.HasBeenNotified());
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_TRUE(drained.HasBeenNotified());
}

TEST_F(WorkerTest, StoppingEndsEveryStreamAndAnswersEveryCall) {
  Held held = Start(Prompt(10), Sampling(100));
  Status before = absl::OkStatus(), after = absl::OkStatus();
  worker_->Stop();
  worker_->GetStatus([&before](const StatusOr<proto::WorkerStatus>& reply) { before = reply.status(); });
  worker_->Run();
  worker_->GetStatus([&after](const StatusOr<proto::WorkerStatus>& reply) { after = reply.status(); });
  EXPECT_EQ(after.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Read(held));
  EXPECT_EQ(held.end->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Free(), kPages);
}

TEST_F(WorkerTest, AFullMailboxRefusesCallsAndTakesReleasingMessages) {
  Held held = Start(Prompt(10), Sampling(100));
  int refused = 0, answered = 0;
  for (int i = 0; i < 40; ++i) {
    worker_->GetStatus([&](const StatusOr<proto::WorkerStatus>& reply) {
      ++(reply.ok() ? answered : refused);
      EXPECT_EQ(reply.status().code(), reply.ok() ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
    });
  }
  EXPECT_EQ(refused, 8);
  Leave(held);
  EXPECT_EQ(answered, 32);
  ExpectNothingHeld();
}

TEST_F(WorkerTest, RunsOnItsOwnThreadAndSleepsUntilSomethingComes) {
  std::thread engine([this] { worker_->Run(); });
  absl::Notification answered;
  worker_->GetStatus([&answered](const StatusOr<proto::WorkerStatus>&) { answered.Notify(); });
  EXPECT_TRUE(answered.WaitForNotificationWithTimeout(absl::Seconds(10)));
  worker_->Stop();
  engine.join();
}

// Requests of any shape that end in any way, at any moment: what is read to the end is right, and nothing stays held.
class WorkerStormTest : public WorkerTest, public testing::WithParamInterface<uint64_t> {};

TEST_P(WorkerStormTest, NothingLeaksAndNothingIsWrong) {
  Rng rng(GetParam());
  std::vector<Held> open;
  int finished = 0;
  for (int i = 0; i < 400; ++i) {
    switch (rng.Bits() % 8) {
      case 0:
      case 1: {
        const auto prompt = Prompt(1 + static_cast<int>(rng.Bits() % 30), i);
        SamplingParams sampling = Sampling(1 + static_cast<int>(rng.Bits() % 20), 1 + static_cast<int>(rng.Bits() % 3));
        sampling.ignore_eos = rng.Bits() % 2 == 0;
        if (Free() < kPages / 2) break;
        open.push_back(Reserve(prompt, sampling));
        if (rng.Bits() % 4 != 0) Deliver(open.back());
        break;
      }
      case 2:
        if (!open.empty()) {
          Leave(open[rng.Bits() % open.size()]);
        }
        break;
      case 3:
        if (!open.empty()) SendKv(*sender_, open[rng.Bits() % open.size()], static_cast<int>(rng.Bits() % 3), 0, 1);
        break;
      case 4:
        clock_.Advance(absl::Milliseconds(rng.Bits() % 4000));
        break;
      default:
        Turns(static_cast<int>(rng.Bits() % 4));
    }
    std::erase_if(open, [&](Held& held) {
      if (!Read(held)) return false;
      if (held.end->ok()) ExpectAnswered(held);
      finished += held.end->ok() ? 1 : 0;
      return true;
    });
  }
  for (const Held& held : open) Leave(held);
  EXPECT_GT(finished, 10);
  TurnUntil([this] { return staging_->bytes_free() == staging_->bytes_total(); });
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(Seeds, WorkerStormTest, testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace sluice::decode
