// What comes off the KV wire, in good order and in bad: a scripted prefill against a whole worker.
#include <numeric>

#include "tests/decode/worker_fixture.h"

namespace sluice::decode {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class KvReceiverTest : public WorkerFixture {
 protected:
  using WorkerFixture::WorkerFixture;

  // The sender's only result so far.
  proto::TransferResult AwaitResult(const Sender& sender) {
    TurnUntil([&sender] { return !sender.results().empty(); });
    EXPECT_THAT(sender.results(), SizeIs(1));
    return sender.results().empty() ? proto::TransferResult() : sender.results()[0];
  }
  absl::StatusCode AwaitCode(const Sender& sender) { return ToStatus(AwaitResult(sender)).code(); }

  void AwaitCount(const prometheus::Counter& counter, double value) {
    TurnUntil([&counter, value] { return counter.Value() >= value; });
    EXPECT_EQ(counter.Value(), value);
  }

  // Another prefill delivers the same request whole, and its answer is right.
  void ExpectAnotherPrefillSucceeds(Held& held) {
    const auto ticket = Rearm(held);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_EQ(ticket->generation(), held.ticket.generation() + 1);
    held.ticket = *ticket;
    const auto sender = NewSender();
    SendAllKv(*sender, held);
    SendCommit(*sender, held);
    ReadToEnd(held);
    ExpectAnswered(held);
    ExpectNothingHeld();
  }
};

TEST_F(KvReceiverTest, AWholeHandoffIsAcknowledgedAndAnswered) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendAllKv(*sender, held);
  SendCommit(*sender, held);
  const auto result = AwaitResult(*sender);
  EXPECT_EQ(result.code(), 0);
  EXPECT_EQ(result.request_id(), held.ticket.request_id());
  EXPECT_EQ(result.reservation_id(), held.ticket.reservation_id());
  EXPECT_EQ(result.generation(), held.ticket.generation());
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, FramesMayComeInAnyOrderAndInPiecesOfAnySize) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(11), Sampling(6));
  for (const int layer : {2, 0, 1}) {
    SendKv(*sender, held, layer, 9, 2);
    SendKv(*sender, held, layer, 0, 3);
    SendKv(*sender, held, layer, 3, 6);
  }
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, ACommitThatOvertakesFramesIsHeldUntilTheLastOne) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  SendCommit(*sender, held);
  SendKv(*sender, held, 2, 0, 10);
  AwaitCount(metrics_.frames_received, 3);
  Turns(2);
  EXPECT_FALSE(Read(held));
  EXPECT_THAT(held.tokens[0], testing::IsEmpty());
  SendKv(*sender, held, 1, 0, 10);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AGapEndsWithTheLeaseAndBothSidesAreTold) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  SendKv(*sender, held, 1, 0, 10);
  SendKv(*sender, held, 2, 0, 9);
  SendCommit(*sender, held);
  AwaitCount(metrics_.frames_received, 4);
  Turns(1);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kAborted);
  EXPECT_TRUE(Read(held));
  EXPECT_EQ(held.end->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(metrics_.expired_reservations.Value(), 1);
  EXPECT_EQ(metrics_.commits.Value(), 0);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, ARangeThatComesTwiceFailsTheTransfer) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 6);
  SendKv(*sender, held, 0, 5, 5);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kInvalidArgument);
  SendKv(*sender, held, 1, 0, 10);  // was on its way
  AwaitCount(metrics_.dropped_failed_transfer, 1);
  EXPECT_THAT(sender->results(), SizeIs(1));
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, FramesBeyondTheCommitFailTheTransfer) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(1));  // ends with its first token: the commit names no KV
  SendKv(*sender, held, 0, 0, 10);
  SendCommit(*sender, held);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kInvalidArgument);
  Release(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, FramesOfAFormerHolderAreDroppedCountedAndAnswered) {
  const auto former = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*former, held, 0, 0, 10);
  AwaitCount(metrics_.frames_received, 1);
  Held as_former = held;
  const auto ticket = Rearm(held);
  ASSERT_TRUE(ticket.ok());
  held.ticket = *ticket;
  EXPECT_EQ(AwaitCode(*former), absl::StatusCode::kAborted);

  as_former.prompt = Prompt(10, 2);  // what it would write now is wrong
  SendKv(*former, as_former, 1, 0, 10);
  SendCommit(*former, as_former);
  AwaitCount(metrics_.dropped_old_generation, 2);
  TurnUntil([&former] { return former->results().size() == 3; });
  const auto sender = NewSender();
  SendAllKv(*sender, held);
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_FALSE(former->closed());
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AnotherConnectionCannotWriteIntoATransfer) {
  const auto sender = NewSender();
  const auto stranger = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  AwaitCount(metrics_.frames_received, 1);
  Held as_stranger = held;
  as_stranger.prompt = Prompt(10, 2);
  SendKv(*stranger, as_stranger, 1, 0, 10);
  AwaitCount(metrics_.dropped_other_connection, 1);
  SendKv(*sender, held, 1, 0, 10);
  SendKv(*sender, held, 2, 0, 10);
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AFrameForNobodyIsDroppedAndItsSenderIsTold) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  Release(held);
  SendKv(*sender, held, 0, 0, 10);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kAborted);
  EXPECT_EQ(metrics_.dropped_unknown.Value(), 1);
  EXPECT_FALSE(sender->closed());
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AFrameForAnotherStartOfTheProcessIsDropped) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  KvFrameHeader header = Header(held, FrameKind::kKv);
  header.epoch = Epoch{1};
  header.tokens = 10;
  sender->Send(header, ToyBody(held.prompt, 0, 0, 10));
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kAborted);
  EXPECT_EQ(metrics_.dropped_other_epoch.Value(), 1);
  Release(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AnotherLayoutFailsTheTransferWithBothHashes) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  KvFrameHeader header = Header(held, FrameKind::kKv);
  header.tokens = 10;
  header.layout_hash = 0xabc;
  sender->Send(header, ToyBody(held.prompt, 0, 0, 10));
  const auto result = AwaitResult(*sender);
  EXPECT_EQ(ToStatus(result).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(result.message(), HasSubstr("abc"));
  EXPECT_THAT(result.message(), HasSubstr(std::string(absl::AlphaNum(absl::Hex(held.ticket.layout_hash())).Piece())));
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, WhatWasNotReservedFailsTheTransfer) {
  const auto send_wrong = [this](Held& held, const std::function<void(KvFrameHeader&)>& change) {
    const auto sender = NewSender();
    KvFrameHeader header = Header(held, FrameKind::kKv);
    header.tokens = 10;
    change(header);
    sender->Send(header, ToyBody(held.prompt, 0, 0, 10));
    EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kInvalidArgument);
    held.ticket = *Rearm(held);
  };
  Held held = Reserve(Prompt(10), Sampling(6));
  send_wrong(held, [](KvFrameHeader& header) { header.layer = 3; });
  send_wrong(held, [](KvFrameHeader& header) { header.first_token = 1; });
  send_wrong(held, [](KvFrameHeader& header) { header.tokens = 9; });
  EXPECT_EQ(metrics_.dropped_wrong.Value(), 3);
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, AFlippedBitIsDataLossAndNothingOfItIsPlaced) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  KvFrameHeader header = Header(held, FrameKind::kKv);
  header.tokens = 10;
  sender->Send(header, ToyBody(held.prompt, 0, 0, 10), /*flip_payload_byte=*/77);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
  EXPECT_EQ(metrics_.crc_failures.Value(), 1);
  EXPECT_EQ(metrics_.frames_received.Value(), 0);
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, AFlippedBitInTheRecordIsDataLoss) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendAllKv(*sender, held);
  sender->Send(Header(held, FrameKind::kCommit), Record(held), /*flip_payload_byte=*/5);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, ARecordThatContradictsItsReservationIsRefused) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendAllKv(*sender, held);
  Held other = held;
  other.sampling.max_tokens = 500;  // more than pages were reserved for
  SendCommit(*sender, other);
  EXPECT_NE(AwaitResult(*sender).code(), 0);
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, APrefillThatGivesUpFailsItsTransferAtOnce) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  const auto reason =
      MakeTransferResult(RequestId{held.ticket.request_id()}, ReservationId{held.ticket.reservation_id()},
                         Tenure{held.ticket.generation()}, absl::InternalError("ran hot"));
  sender->Send(Header(held, FrameKind::kAbort), reason.SerializeAsString());
  const auto result = AwaitResult(*sender);
  EXPECT_EQ(ToStatus(result).code(), absl::StatusCode::kInternal);
  EXPECT_THAT(result.message(), HasSubstr("ran hot"));
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, APrefillThatVanishesFailsAllItsTransfersAtOnce) {
  auto sender = NewSender();
  Held first = Reserve(Prompt(10), Sampling(6));
  Held second = Reserve(Prompt(7, 2), Sampling(3));
  SendKv(*sender, first, 0, 0, 10);
  SendKv(*sender, second, 0, 0, 7);
  AwaitCount(metrics_.frames_received, 2);
  sender->Vanish();
  AwaitCount(metrics_.transfers_failed, 2);
  second.ticket = *Rearm(second);
  const auto other = NewSender();
  SendAllKv(*other, second);
  SendCommit(*other, second);
  ReadToEnd(second);
  ExpectAnswered(second);
  ExpectAnotherPrefillSucceeds(first);
}

TEST_F(KvReceiverTest, APrefillThatVanishesAfterItsCommitChangesNothing) {
  auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendAllKv(*sender, held);
  SendCommit(*sender, held);
  AwaitResult(*sender);
  sender->Vanish();
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AClientThatLeavesDuringTheTransferStopsThePrefill) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  AwaitCount(metrics_.frames_received, 1);
  Leave(held);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kCancelled);
  ExpectNothingHeld();
}

TEST_F(KvReceiverTest, AHeaderOfGarbageClosesTheConnection) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  sender->SendRaw(std::string(kKvFrameHeaderBytes, 'x'), "payload");
  TurnUntil([&sender] { return sender->closed(); });
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(KvReceiverTest, AHelloThatDoesNotFitIsRefusedWithBothValues) {
  const auto refused = [this](const proto::Hello& hello) {
    Sender sender;
    return std::string(sender.Connect(transport_->address(), hello).status().message());
  };
  proto::KvLayout layout = layout_proto_;
  layout.set_head_dim(32);
  EXPECT_THAT(refused(MakeHello("prefill", Epoch{5}, "toy", layout, KvCodec::kBf16, {KvCodec::kBf16})),
              testing::AllOf(HasSubstr("head_dim"), HasSubstr("32")));
  EXPECT_THAT(refused(MakeHello("prefill", Epoch{5}, "other", layout_proto_, KvCodec::kBf16, {KvCodec::kBf16})),
              testing::AllOf(HasSubstr("toy"), HasSubstr("other")));
  EXPECT_THAT(refused(MakeHello("prefill", Epoch{5}, "toy", layout_proto_, KvCodec::kF32, {KvCodec::kF32})),
              testing::AllOf(HasSubstr("bf16"), HasSubstr("f32")));
  EXPECT_EQ(metrics_.hellos_refused.Value(), 3);
}

class SmallStagingTest : public KvReceiverTest {
 protected:
  SmallStagingTest() : KvReceiverTest(/*staging_bytes=*/4096) {}
};

TEST_F(SmallStagingTest, WithoutMemoryToLandInATransferFailsAndOthersGoOn) {
  const auto sender = NewSender();
  Held large = Reserve(Prompt(100), Sampling(2));  // a frame has 12,800 bytes
  Held small = Reserve(Prompt(5), Sampling(6));
  SendAllKv(*sender, large);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(metrics_.dropped_no_staging.Value(), 1);
  for (int layer = 0; layer < kToyLayout.layers; ++layer) {
    SendKv(*sender, small, layer, 0, 5);
    AwaitCount(metrics_.frames_received, layer + 1);
    Turns(1);
  }
  Release(large);
  EXPECT_EQ(Free(), kPages - 3);
  Release(small);
  ExpectNothingHeld();
}

TEST(Staging, GivesOutAndMergesPiecesOfAnySize) {
  const auto staging = *Staging::Create(1024);
  auto a = staging->Take(100);
  auto b = staging->Take(300);
  auto c = staging->Take(500);
  ASSERT_TRUE(a && b && c);
  EXPECT_FALSE(staging->Take(100).has_value());
  b.reset();
  EXPECT_FALSE(staging->Take(400).has_value());  // the gap in the middle has 320
  a.reset();
  ASSERT_TRUE(staging->Take(400).has_value());
  c.reset();
  EXPECT_TRUE(staging->Take(1024).has_value());
  EXPECT_TRUE(staging->Take(0).has_value());
  EXPECT_EQ(staging->bytes_free(), 1024u);
}

}  // namespace
}  // namespace sluice::decode
