// Decode with more requests than its pool holds: who is parked comes back and answers as if nothing had been.
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <list>

#include "common/rng.h"
#include "tests/decode/worker_fixture.h"
#include "tests/model/parked_file.h"

namespace sluice::decode {
namespace {

class ParkedWorkerTest : public WorkerFixture {
 protected:
  explicit ParkedWorkerTest(int park_pages = 160, const std::string& folder = "")
      : WorkerFixture(/*prefix_cache_pages=*/kPages, /*local_prefill_tokens=*/1000, park_pages, folder) {
    ship_.emplace();
    ship_->set_compute_seconds(1e6);  // so that decode computes every prompt itself
  }

  std::vector<Held> ReserveMany(int requests, int max_tokens) {
    std::vector<Held> held;
    for (int i = 0; i < requests; ++i) held.push_back(ReserveLocal(Prompt(20, i), Sampling(max_tokens)));
    return held;
  }
};

// Three of 45 pages in a pool of 80.
TEST_F(ParkedWorkerTest, EveryAnswerIsThatOfARequestAlone) {
  std::vector<Held> held = ReserveMany(3, 160);
  bool parked = false;
  for (Held& each : held) {
    TurnUntil([&] {
      for (Held& other : held) Read(other);
      parked |= metrics_.requests_parked.Value() > 0;
      return each.end.has_value();
    });
    ExpectAnswered(each);
  }
  EXPECT_TRUE(parked);
  EXPECT_GT(metrics_.parkings.Value(), 0);
  EXPECT_EQ(metrics_.parkings.Value(), metrics_.returns.Value());
  EXPECT_EQ(metrics_.park_pages_used.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(ParkedWorkerTest, ChoicesOfOneRequestAreParkedTogether) {
  std::vector<Held> held;
  held.push_back(ReserveLocal(Prompt(20, 1), Sampling(160)));
  held.push_back(ReserveLocal(Prompt(21, 2), Sampling(80, 3)));
  TurnUntil([&] { return Read(held[0]) & Read(held[1]); });
  for (const Held& each : held) ExpectAnswered(each);
  EXPECT_GT(metrics_.parkings.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(ParkedWorkerTest, NobodyNewIsTakenWhileSomebodyIsParked) {
  std::vector<Held> held = ReserveMany(3, 160);
  TurnUntil([&] {
    for (Held& each : held) Read(each);
    return metrics_.requests_parked.Value() > 0;
  });
  const auto refused = TryReserve(Prompt(1), Sampling(1));
  ASSERT_TRUE(refused.ok() && refused->has_no_room());
  EXPECT_EQ(refused->no_room().pages_needed(), 1u);
  EXPECT_EQ(refused->no_room().pages_free(), 0u);
  EXPECT_GT(refused->no_room().retry_after_ms(), 0);
  StatusOr<proto::WorkerStatus> status = absl::InternalError("not answered");
  worker_->GetStatus([&status](StatusOr<proto::WorkerStatus> s) { status = std::move(s); });
  Turns(1);
  EXPECT_EQ(status->kv_pages_free(), 0u);
}

TEST_F(ParkedWorkerTest, AClientThatLeavesOrADeadlineEndsAParkedRequest) {
  std::vector<Held> held = ReserveMany(2, 160);
  SamplingParams sampling = Sampling(160);
  const auto reply = TryReserve(Prompt(20, 9), sampling, absl::Seconds(30));
  Held mortal{.prompt = Prompt(20, 9), .sampling = sampling};
  mortal.ticket.set_reservation_id(reply->reservation_id());
  mortal.ticket.set_decode_epoch(reply->epoch());
  mortal.tokens.resize(1);
  Attach(mortal);
  TurnUntil([&] {
    Read(held[0]);
    Read(held[1]);
    Read(mortal);
    return metrics_.requests_parked.Value() == 1;
  });
  clock_.Advance(absl::Seconds(31));
  Turns(1);
  EXPECT_EQ(metrics_.requests_parked.Value(), 0);
  ASSERT_TRUE(Read(mortal));
  EXPECT_EQ(mortal.end->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(park_->pages_free(), park_->pages_total());
  TurnUntil([&] { return Read(held[0]) & (Read(held[1]) | (metrics_.requests_parked.Value() == 1)); });
  if (metrics_.requests_parked.Value() == 1) {
    Leave(held[1]);
    EXPECT_EQ(park_->pages_free(), park_->pages_total());
  }
  ExpectAnswered(held[0]);
  ExpectNothingHeld();
}

// Neither those who run beside its request nor those who come: it is parked, though it is the oldest. It has no use for
// pages, so the engine sleeps.
TEST_F(ParkedWorkerTest, AReaderThatDoesNotReadHoldsNobodyUp) {
  std::vector<Held> held = ReserveMany(2, 160);
  TurnUntil([&] {
    Read(held[0]);
    Read(held[1]);
    return held[0].tokens[0].size() >= 80 && held[1].tokens[0].size() >= 80;
  });
  EXPECT_EQ(metrics_.parkings.Value(), 0);
  for (int i = 2; i < 5; ++i) {
    held.push_back(ReserveLocal(Prompt(20, i), Sampling(160)));
    TurnUntil([&] { return Read(held.back()); });
    ExpectAnswered(held.back());
    EXPECT_GT(metrics_.requests_parked.Value(), 0);
  }
  TurnUntil([&] { return worker_->NextTurn() > absl::InfinitePast(); });
  for (size_t i = 0; i < 2; ++i) {
    TurnUntil([&] { return Read(held[i]); });
    ExpectAnswered(held[i]);
  }
  EXPECT_EQ(metrics_.parkings.Value(), metrics_.returns.Value());
  ExpectNothingHeld();
}

// Sixteen sequences take turns in these tests. Those that are parked do not, so the oldest request does, though it was
// the last to arrive.
TEST_F(ParkedWorkerTest, WhoIsParkedTakesNobodysTurn) {
  ship_.reset();
  Held oldest = Reserve(Prompt(100, 1), Sampling(40));
  ship_.emplace();
  ship_->set_compute_seconds(1e6);
  Held crowd = ReserveLocal(Prompt(4, 2), Sampling(17, 16));
  TurnUntil([&] {
    Read(crowd);
    return !crowd.tokens.back().empty();
  });
  const auto sender = NewSender();
  SendAllKv(*sender, oldest);
  SendCommit(*sender, oldest);
  TurnUntil([&] { return Read(oldest) & Read(crowd); });
  EXPECT_GT(metrics_.parkings.Value(), 0);
  ExpectAnswered(oldest);
  ExpectAnswered(crowd);
  ExpectNothingHeld();
}

// Who may go on since pages have come back does so at once: it waits for no message and no deadline.
TEST_F(ParkedWorkerTest, TheEngineDoesNotSleepWhileSomebodyMayGoOn) {
  std::vector<Held> held = ReserveMany(3, 160);
  while (!(Read(held[0]) & Read(held[1]) & Read(held[2]))) {
    ASSERT_EQ(worker_->NextTurn(), absl::InfinitePast());
    Turns(1);
  }
  EXPECT_GT(metrics_.parkings.Value(), 0);
}

class FileParkedWorkerTest : public ParkedWorkerTest {
 protected:
  FileParkedWorkerTest() : ParkedWorkerTest(160, testing::TempDir()) {}
};

TEST_F(FileParkedWorkerTest, EveryAnswerIsThatOfARequestAlone) {
  std::vector<Held> held = ReserveMany(3, 160);
  TurnUntil([&] { return Read(held[0]) & Read(held[1]) & Read(held[2]); });
  for (const Held& each : held) ExpectAnswered(each);
  EXPECT_GT(metrics_.parkings.Value(), 0);
}

TEST_F(FileParkedWorkerTest, WhatTheFileHasLostFailsItsRequestAndNoOther) {
  std::vector<Held> held = ReserveMany(3, 160);
  TurnUntil([&] {
    for (Held& each : held) Read(each);
    return metrics_.requests_parked.Value() == 1;
  });
  ASSERT_EQ(ftruncate(ParkedFileDescriptor(), 0), 0);
  TurnUntil([&] { return Read(held[0]) & Read(held[1]) & Read(held[2]); });
  ExpectAnswered(held[0]);
  int failed = 0;
  for (const Held& each : held) failed += each.end->ok() ? 0 : 1;
  // The file has no such bytes, or zeros where others were parked behind them since.
  EXPECT_TRUE(absl::IsUnavailable(*held[2].end) || absl::IsDataLoss(*held[2].end)) << *held[2].end;
  EXPECT_EQ(metrics_.requests_failed.Value(), failed);
  ExpectNothingHeld();
}

TEST_F(FileParkedWorkerTest, AFileThatTakesNothingFailsWhomItShouldTakeAndNoOther) {
  std::vector<Held> held = ReserveMany(3, 160);
  const int reads_only = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(dup2(reads_only, ParkedFileDescriptor()), 0);
  close(reads_only);
  while (!(Read(held[0]) & Read(held[1]) & Read(held[2]))) {
    ASSERT_EQ(worker_->NextTurn(), absl::InfinitePast());
    Turns(1);
  }
  ExpectAnswered(held[0]);
  EXPECT_TRUE(absl::IsUnavailable(*held[2].end)) << *held[2].end;
  EXPECT_EQ(metrics_.parkings.Value(), 0);
  ExpectNothingHeld();
}

// --- ten hours ---

// Requests come by chance, a tenth more than decode can serve; clients that find no room try again after the hint, and
// give up after a minute. Some leave in the middle, some have little time, some want several choices, many begin alike.
class TenHours : public ParkedWorkerTest, public testing::WithParamInterface<uint64_t> {
 protected:
  TenHours() : ParkedWorkerTest(120) { forward_takes_ = absl::Milliseconds(500); }

  double Chance() { return RandomUniform(GetParam(), draws_++); }
  int Between(int low, int high) { return low + static_cast<int>(Chance() * (high - low + 1)); }

  struct Client {
    Held held;
    absl::Time came;
    absl::Duration time;  // of the whole request
    absl::Time tries_again;
    std::optional<absl::Time> leaves;
    absl::Time reads_again;
    bool accepted = false;
  };

  Client NewClient() {
    Client client;
    client.came = client.tries_again = clock_.Now();
    client.held.prompt = Prompt(20, Between(1, 4));  // what a service puts before every prompt
    const std::vector<TokenId> own = Prompt(Between(1, 20), 1000 + static_cast<int>(draws_));
    client.held.prompt.insert(client.held.prompt.end(), own.begin(), own.end());
    client.held.sampling = Sampling(Between(5, 120), Chance() < 0.1 ? 2 : 1);
    client.time = Chance() < 0.05 ? absl::Seconds(60) : absl::Hours(2);
    if (Chance() < 0.05) client.leaves = clock_.Now() + absl::Seconds(Between(5, 100));
    return client;
  }

  // False where there was no room.
  bool Ask(Client& client) {
    Held& held = client.held;
    const auto reply = TryReserve(held.prompt, held.sampling, client.time);
    SLUICE_CHECK(reply.ok());
    if (reply->has_no_room()) {
      client.tries_again = clock_.Now() + absl::Milliseconds(reply->no_room().retry_after_ms());
      return false;
    }
    held.ticket.set_reservation_id(reply->reservation_id());
    held.ticket.set_decode_epoch(reply->epoch());
    held.tokens.resize(static_cast<size_t>(held.sampling.n));
    Attach(held);
    return client.accepted = true;
  }

  // True where the client is done: answered, refused, gone, or out of time.
  bool Serve(Client& client) {
    if (!client.accepted) {
      if (clock_.Now() < client.tries_again || Ask(client)) return false;
      if (clock_.Now() - client.came < absl::Minutes(1)) return false;
      ++refused_;
      return true;
    }
    if (client.leaves && clock_.Now() >= *client.leaves) {
      Leave(client.held);
      ++left_;
      return true;
    }
    if (clock_.Now() < client.reads_again) return false;
    if (Chance() < 0.0002) client.reads_again = clock_.Now() + absl::Minutes(Between(1, 20));
    if (!Read(client.held)) return false;
    if (client.held.end->ok()) {
      ExpectAnswered(client.held);
      ++answered_;
    } else {
      EXPECT_EQ(client.held.end->code(), absl::StatusCode::kDeadlineExceeded) << *client.held.end;
      EXPECT_EQ(client.time, absl::Seconds(60)) << "nobody else waits for two hours";
      ++out_of_time_;
    }
    return true;
  }

  uint64_t draws_ = 0;
  int answered_ = 0;
  int refused_ = 0;
  int left_ = 0;
  int out_of_time_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Seeds, TenHours, testing::Values(1, 2));

TEST_P(TenHours, OfTrafficAboveWhatFitsEndWithEveryRequestAnsweredOrRefusedAndAllPagesFree) {
  // Alone, the engine makes 4 tokens in each half second; a request wants 69 with its prompt's chunks counted.
  const absl::Duration between = absl::Seconds(69 / 8.0 / 1.1);
  const absl::Time begin = clock_.Now();
  std::list<Client> clients;
  int came = 0;
  for (absl::Time next = begin; next < begin + absl::Hours(10) || !clients.empty();) {
    while (next <= clock_.Now() && next < begin + absl::Hours(10)) {
      clients.push_back(NewClient());
      ++came;
      next += between * -std::log(1 - Chance());
    }
    const absl::Time before = clock_.Now();
    Turns(1);
    if (clock_.Now() == before) clock_.Advance(absl::Milliseconds(100));  // idle, or everybody waits
    std::erase_if(clients, [this](Client& client) { return Serve(client); });
    ASSERT_LT(clock_.Now(), begin + absl::Hours(13)) << clients.size() << " requests never end";
  }
  EXPECT_EQ(answered_ + refused_ + left_ + out_of_time_, came);
  EXPECT_GT(answered_, came / 2);
  EXPECT_GT(refused_, 0);
  EXPECT_GT(left_, 0);
  EXPECT_GT(metrics_.parkings.Value(), 100);
  ExpectNothingHeld();
  clock_.Advance(absl::Minutes(6));
  Turns(1);
  EXPECT_EQ(Free(), kPages);
  EXPECT_EQ(park_->pages_free(), park_->pages_total());
  std::printf("%d came: %d answered, %d refused, %d left, %d out of time; parked %.0f times\n", came, answered_,
              refused_, left_, out_of_time_, metrics_.parkings.Value());
}

}  // namespace
}  // namespace sluice::decode
