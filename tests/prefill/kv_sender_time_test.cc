// The sender over a transport that the test plays, under manual time: waits, failures, credit.
#include <algorithm>
#include <map>
#include <tuple>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "prefill/kv_sender.h"
#include "tests/prefill/fake_transport.h"
#include "tests/prefill/kv_sender_fixture.h"

namespace sluice::prefill {
namespace {

using ::testing::HasSubstr;

class KvSenderTimeTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(SmallOptions()); }
  void Start(const KvSenderOptions& options) {
    given_.clear();
    sender_ = *KvSender::Create(options, filled_.pool.get(), &clock_, &metrics_);
    sender_->Attach(&transport_, [this](TransferId id, const TransferReport& r) { reports_[id.value] = r.status; });
  }
  absl::Time Poll() { return sender_->Poll(clock_.Now()); }
  void Send(uint64_t id, int64_t first_token, int64_t tokens) { sender_->Send({id}, AllLayers(first_token, tokens)); }
  void Begin(uint64_t id, const std::string& address = "d:1") {
    sender_->Begin({id}, TicketOf(id, address), filled_.pages(), clock_.Now() + absl::Seconds(60));
  }
  void AcceptConnection(size_t i, uint64_t credit_bytes = 1 << 20) {
    proto::Hello hello = HelloOf("decode", kDecodeEpoch, WireCodecs(kLayout));
    hello.set_credit_bytes(credit_bytes);
    transport_.connects.at(i)(hello.SerializeAsString());
    Poll();
  }
  void Deliver(const KvFrameHeader& header, const std::string& payload = "", ConnectionId connection = {1}) {
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload.data()), payload.size());
    KvFrameHeader whole = header;
    whole.payload_bytes = payload.size();
    const auto landing = sender_->receiver()->OnMessage(connection, Encode(whole, bytes), payload.size());
    ASSERT_TRUE(landing.ok()) << landing.status();
    landing->Copy(bytes);
    sender_->receiver()->OnLanded(connection, landing->token, absl::OkStatus());
    Poll();
  }
  void GiveCredit(uint64_t bytes, ConnectionId connection = {1}) {
    Deliver({.kind = FrameKind::kCredit}, EncodeCredit(given_[connection] += bytes), connection);
  }
  void AskAgain(const KvFrameHeader& frame) {
    KvFrameHeader header = frame;
    header.kind = FrameKind::kResend;
    header.number = 0;
    Deliver(header);
  }
  int Sent(FrameKind kind) const {
    return static_cast<int>(std::count_if(transport_.sends.begin(), transport_.sends.end(),
                                          [kind](const auto& sent) { return sent.header.kind == kind; }));
  }

  ManualClock clock_;
  PrefillMetrics metrics_;
  FilledPool filled_{100};
  FakeTransport transport_;
  std::unique_ptr<KvSender> sender_;
  std::map<uint64_t, Status> reports_;
  std::map<ConnectionId, uint64_t> given_;  // of credit
};

TEST_F(KvSenderTimeTest, TheRequestsDeadlineFiresWithoutTraffic) {
  Begin(1);
  EXPECT_EQ(Poll(), clock_.Now() + absl::Seconds(60));
  AcceptConnection(0);
  clock_.Advance(absl::Seconds(59));
  Poll();
  EXPECT_TRUE(reports_.empty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Poll(), absl::InfiniteFuture());
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(transport_.sends.back().header.kind, FrameKind::kAbort);
}

TEST_F(KvSenderTimeTest, ACommitWithoutAnAnswerIsUnavailableAfterTheResultsTimeout) {
  Begin(1);
  sender_->Commit({1}, RecordOf(1, 0));
  Poll();
  AcceptConnection(0);
  ASSERT_EQ(transport_.sends.size(), 1u);
  EXPECT_EQ(transport_.sends[0].header.kind, FrameKind::kCommit);
  EXPECT_EQ(Poll(), clock_.Now() + absl::Seconds(20));
  clock_.Advance(absl::Seconds(20));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
}

TEST_F(KvSenderTimeTest, NothingIsSentBeforeTheHandshake) {
  Begin(1);
  Send(1, 0, 16);
  Poll();
  EXPECT_TRUE(transport_.sends.empty());
  AcceptConnection(0);
  EXPECT_FALSE(transport_.sends.empty());
}

TEST_F(KvSenderTimeTest, BytesInFlightOfAConnectionAreBounded) {
  Begin(1);
  for (int64_t first = 0; first < 96; first += 16) Send(1, first, 16);
  Poll();
  AcceptConnection(0);
  EXPECT_EQ(transport_.sends.size(), 2u);  // 4096 bytes of 2048 a frame
  transport_.sends[0].done(absl::OkStatus());
  Poll();
  EXPECT_EQ(transport_.sends.size(), 3u);
}

TEST_F(KvSenderTimeTest, APeerWithManyFramesLeavesBuffersToOthers) {
  Begin(1, "d:1");
  Begin(2, "d:2");
  for (int64_t first = 0; first < 96; first += 16) {
    Send(1, first, 16);
    Send(2, first, 16);
  }
  Poll();
  AcceptConnection(0);
  AcceptConnection(1);
  EXPECT_EQ(transport_.sends.size(), 4u);  // all buffers
  for (size_t i = 0; i < 20; ++i) {
    transport_.sends[i].done(absl::OkStatus());
    Poll();
  }
  int of_first = 0;
  for (const auto& sent : transport_.sends) of_first += sent.header.reservation.value == 1;
  EXPECT_NEAR(of_first, static_cast<double>(transport_.sends.size()) / 2, 2);
}

TEST_F(KvSenderTimeTest, AFailedSendFailsItsTransferAndGivesTheBufferBack) {
  Begin(1);
  Send(1, 0, 16);
  Poll();
  AcceptConnection(0);
  const size_t sent = transport_.sends.size();
  for (size_t i = 0; i < sent; ++i) transport_.sends[i].done(absl::UnavailableError("gone"));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
  Begin(2);
  Send(2, 0, 16);
  Poll();
  EXPECT_EQ(Sent(FrameKind::kKv), 2 + 2);
  EXPECT_EQ(Sent(FrameKind::kAbort), 1) << "decode hears of it at once";
}

TEST_F(KvSenderTimeTest, NoMoreThanTheCreditIsEverOnItsWay) {
  Begin(1);
  Send(1, 0, 32);
  Poll();
  AcceptConnection(0, /*credit_bytes=*/4096);
  EXPECT_EQ(transport_.sends.size(), 2u);
  for (size_t i = 0; i < 2; ++i) transport_.sends[i].done(absl::OkStatus());
  Poll();
  EXPECT_EQ(transport_.sends.size(), 2u) << "that it has left gives nothing back";
  GiveCredit(2048);
  EXPECT_EQ(transport_.sends.size(), 3u);
}

TEST_F(KvSenderTimeTest, CreditHoldsForAnyOrderOfEvents) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    auto draw = [&, i = uint64_t{0}](uint64_t bound) mutable { return RandomBits(seed, i++) % bound; };
    KvSenderTimeTest::SetUp();
    transport_ = {};
    const uint64_t credit = 512 + draw(4000);
    Begin(seed);
    int64_t added = 0;
    Poll();
    AcceptConnection(0, credit);
    uint64_t given = 0, largest = 0;
    size_t done = 0;
    const auto sent = [&] {
      uint64_t bytes = 0;
      for (const auto& s : transport_.sends) bytes += s.header.kind == FrameKind::kKv ? s.payload.size() : 0;
      return bytes;
    };
    while (given < 64 * 128 * 3) {
      const uint64_t event = draw(3);
      if (event == 0 && added < 64) {
        Send(seed, added, 8);
        added += 8;
        Poll();
      } else if (event == 1 && done < transport_.sends.size()) {
        transport_.sends[done++].done(absl::OkStatus());
        Poll();
      } else if (event == 2 && sent() > given) {
        const uint64_t bytes = 1 + draw(sent() - given);
        given += bytes;
        GiveCredit(bytes);
      }
      ASSERT_LE(sent() - given, credit) << "seed " << seed;
      largest = std::max(largest, sent() - given);
    }
    EXPECT_GT(largest, credit / 2) << "seed " << seed;
    EXPECT_FALSE(reports_.contains(seed)) << reports_.at(seed);
  }
}

// A link of 300 kB/s, while KV is produced at 384 kB/s in bf16 and 216 kB/s in int8.
TEST_F(KvSenderTimeTest, ASlowLinkIsMeasuredAndTheNextTransferTakesACodecThatItCarries) {
  for (const bool adapts : {true, false}) {
    KvSenderOptions options = SmallOptions();
    options.hello = HelloOf("prefill", 1, WireCodecs(kLayout));
    options.wire_adapts = adapts;
    transport_ = {};
    Start(options);
    sender_->SetTokensPerSecond(1000);
    Begin(1);
    for (int64_t first = 0; first < 96; first += 16) Send(1, first, 16);
    Poll();
    AcceptConnection(0, /*credit_bytes=*/8192);
    for (size_t i = 0; i < transport_.sends.size(); ++i) {
      EXPECT_EQ(transport_.sends[i].header.codec, KvCodec::kBf16) << "nothing is known yet, and one transfer has one";
      clock_.Advance(absl::Seconds(2048 / 300e3));
      transport_.sends[i].done(absl::OkStatus());
      GiveCredit(2048);
    }
    ASSERT_EQ(transport_.sends.size(), 18u);
    Begin(2);
    Send(2, 0, 16);
    Poll();
    EXPECT_EQ(Name(transport_.sends.back().header.codec), adapts ? "int8" : "bf16");
    EXPECT_NEAR(metrics_.link_bytes_per_second.Value(), 300e3, 30e3);
    if (adapts) {
      EXPECT_NEAR(metrics_.link_ratio(KvCodec::kInt8).Value(), 300.0 / 216, 0.15);
    }
    sender_->Stop();
    Poll();
  }
}

TEST_F(KvSenderTimeTest, MoreCreditThanIsOutEndsTheConnection) {
  Begin(1);
  Send(1, 0, 8);
  Poll();
  AcceptConnection(0);
  GiveCredit(3 * 8 * 128 + 1);
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(reports_.at(1).message()), HasSubstr("credit for 3073 bytes while 3072 are out"));
  EXPECT_EQ(transport_.closed, std::vector<ConnectionId>{{1}});
}

TEST_F(KvSenderTimeTest, CreditThatComesTwiceLateOrNotAtAllIsCountedOnce) {
  Begin(1);
  Send(1, 0, 64);
  Poll();
  AcceptConnection(0, /*credit_bytes=*/4096);
  const auto told = [this](uint64_t given) { Deliver({.kind = FrameKind::kCredit}, EncodeCredit(given)); };
  for (size_t i = 0; i < 2; ++i) transport_.sends[i].done(absl::OkStatus());
  told(2048);
  told(2048);
  EXPECT_EQ(transport_.sends.size(), 3u);
  transport_.sends[2].done(absl::OkStatus());
  told(3 * 2048);  // what said 2 * 2048 was overtaken
  EXPECT_EQ(transport_.sends.size(), 5u);
  told(2 * 2048);
  EXPECT_EQ(transport_.sends.size(), 5u);
  EXPECT_TRUE(transport_.closed.empty());
}

TEST_F(KvSenderTimeTest, FramesOfAConnectionAreNumberedAlsoWhenSentAgain) {
  Begin(1);
  Send(1, 0, 4);
  Poll();
  AcceptConnection(0);
  AskAgain(transport_.sends[0].header);
  std::vector<uint64_t> numbers;
  for (const auto& sent : transport_.sends) numbers.push_back(sent.header.number);
  EXPECT_THAT(numbers, ::testing::ElementsAre(1, 2, 3, 4));
}

TEST_F(KvSenderTimeTest, CreditThatHoldsNoTokenIsRefusedWithBothNumbers) {
  for (const uint64_t credit : {0, 100}) {
    Begin(credit + 1, absl::StrCat("d:", credit));
    Poll();
    AcceptConnection(transport_.connects.size() - 1, credit);
    EXPECT_EQ(reports_.at(credit + 1).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(reports_.at(credit + 1).message()),
                HasSubstr(absl::StrCat("grants ", credit, " bytes of credit, a token's KV of one layer has 128")));
  }
}

TEST_F(KvSenderTimeTest, ADecodeThatGivesNoCreditIsLeft) {
  Begin(1);
  Send(1, 0, 32);
  Poll();
  AcceptConnection(0, /*credit_bytes=*/4096);
  for (size_t i = 0; i < 2; ++i) transport_.sends[i].done(absl::OkStatus());
  Poll();
  EXPECT_EQ(Poll(), clock_.Now() + absl::Seconds(20));
  clock_.Advance(absl::Seconds(20));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(reports_.at(1).message()), HasSubstr("no credit for 4096 bytes"));
}

TEST_F(KvSenderTimeTest, WhileKvArrivesTheAnswerToItsCommitIsNotLate) {
  Begin(1);
  Send(1, 0, 16);
  sender_->Commit({1}, RecordOf(1, 16));
  Poll();
  AcceptConnection(0);
  for (size_t i = 0; i < transport_.sends.size(); ++i) {
    transport_.sends[i].done(absl::OkStatus());
    Poll();
  }
  ASSERT_EQ(Sent(FrameKind::kCommit), 1);
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(absl::Seconds(15));
    GiveCredit(2048);
  }
  EXPECT_TRUE(reports_.empty());
  clock_.Advance(absl::Seconds(20));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
}

TEST_F(KvSenderTimeTest, AFrameThatIsWantedAgainIsSentAgainAlsoAfterTheCommit) {
  Begin(1);
  Send(1, 0, 16);
  sender_->Commit({1}, RecordOf(1, 16));
  Poll();
  AcceptConnection(0);
  for (size_t i = 0; i < transport_.sends.size(); ++i) {
    transport_.sends[i].done(absl::OkStatus());
    Poll();
  }
  ASSERT_EQ(Sent(FrameKind::kKv), 3);
  AskAgain(transport_.sends[1].header);
  ASSERT_EQ(Sent(FrameKind::kKv), 4);
  EXPECT_EQ(transport_.sends.back().payload, transport_.sends[1].payload);
  const KvFrameHeader first = transport_.sends[1].header, again = transport_.sends.back().header;
  EXPECT_EQ(std::tie(first.layer, first.layers, first.first_token, first.tokens, first.codec, first.generation),
            std::tie(again.layer, again.layers, again.first_token, again.tokens, again.codec, again.generation));
  EXPECT_EQ(metrics_.frames_sent_again.Value(), 1);
}

TEST_F(KvSenderTimeTest, DamageWithoutEndEndsTheTransfer) {
  Begin(1);
  Send(1, 0, 4);
  Poll();
  AcceptConnection(0);
  for (int i = 0; i < 9; ++i) AskAgain(transport_.sends[0].header);
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(transport_.sends.back().header.kind, FrameKind::kAbort);
  AskAgain(transport_.sends[0].header);
  EXPECT_EQ(metrics_.stray_resends.Value(), 1) << "its transfer has ended";
}

TEST_F(KvSenderTimeTest, AFrameThatWasNeverSentCannotBeWantedAgain) {
  Begin(1);
  Send(1, 0, 4);
  Poll();
  AcceptConnection(0);
  KvFrameHeader header = transport_.sends[0].header;
  header.first_token = 2;
  AskAgain(header);
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kInternal);
}

TEST_F(KvSenderTimeTest, WhatTheRecordDoesNotNeedStaysHereUnlessSomeOfItHasLeft) {
  Begin(1);
  for (int64_t first = 0; first < 64; first += 16) Send(1, first, 16);
  Poll();
  AcceptConnection(0);  // two layers of the first chunk leave
  sender_->Commit({1}, RecordOf(1, 0));
  for (size_t i = 0; i < transport_.sends.size(); ++i) {
    transport_.sends[i].done(absl::OkStatus());
    Poll();
  }
  EXPECT_EQ(Sent(FrameKind::kKv), 3);
  proto::HandoffRecord record;
  ASSERT_TRUE(record.ParseFromString(transport_.sends.back().payload));
  EXPECT_EQ(record.kv_tokens(), 16u);
  EXPECT_EQ(record.kv_wire_bytes(), 3u * 2048);
}

TEST_F(KvSenderTimeTest, ADecodeThatWasNotReachedIsTriedAgainSoonAndCostsLittleUntilThen) {
  Begin(1);
  Poll();
  transport_.connects.at(0)(absl::DeadlineExceededError("nobody there"));
  Poll();
  EXPECT_EQ(reports_.at(1).code(), absl::StatusCode::kUnavailable);
  Begin(2);
  Poll();
  EXPECT_EQ(reports_.at(2).code(), absl::StatusCode::kUnavailable) << "at once, without an attempt";
  EXPECT_THAT(std::string(reports_.at(2).message()), HasSubstr("nobody there"));
  EXPECT_EQ(transport_.connects.size(), 1u);
  clock_.Advance(Probation::kFirst);
  Begin(3);
  Poll();
  AcceptConnection(1);
  Send(3, 0, 4);
  Poll();
  EXPECT_FALSE(reports_.contains(3));
  EXPECT_EQ(Sent(FrameKind::kKv), 3);
}

TEST_F(KvSenderTimeTest, TheIdlestConnectionMakesRoomAndBusyOnesDoNot) {
  Begin(1, "d:1");
  Begin(2, "d:2");
  Poll();
  Begin(3, "d:3");
  Poll();
  EXPECT_EQ(reports_.at(3).code(), absl::StatusCode::kResourceExhausted);
  sender_->Cancel({1}, absl::CancelledError(""));
  Begin(4, "d:4");
  Poll();
  EXPECT_FALSE(reports_.contains(4));
  EXPECT_EQ(transport_.closed, std::vector<ConnectionId>{{1}});
}

}  // namespace
}  // namespace sluice::prefill
