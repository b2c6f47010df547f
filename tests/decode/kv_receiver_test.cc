// What comes off the KV wire, in good order and in bad: a scripted prefill against a whole worker.
#include <numeric>

#include "tests/decode/worker_fixture.h"
#include "tests/prefill/fake_transport.h"

namespace sluice::decode {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class ReceiverFixture : public WorkerFixture {
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

  // A frame one of whose bits is flipped on its way.
  void SendDamaged(Sender& sender, const Held& held, int layer, int first_token, int tokens) {
    sender.Send(KvHeader(held, layer, first_token, tokens), ToyBody(held.prompt, layer, first_token, tokens, wire_),
                /*flip_payload_byte=*/7);
  }
  // A frame whose last byte does not arrive.
  void SendCut(Sender& sender, const Held& held, int layer, int first_token, int tokens) {
    const std::string body = ToyBody(held.prompt, layer, first_token, tokens, wire_);
    KvFrameHeader header = KvHeader(held, layer, first_token, tokens);
    header.payload_bytes = body.size();
    header.number = sender.NextNumber();
    sender.SendRaw(Encode(header, {reinterpret_cast<const std::byte*>(body.data()), body.size()}),
                   body.substr(0, body.size() - 1));
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

// Frames in the pool's own codec, which land in its pages, and in another, which are recoded into them.
class KvReceiverTest : public ReceiverFixture, public testing::WithParamInterface<KvCodec> {
 protected:
  KvReceiverTest() { wire_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Wire, KvReceiverTest, testing::Values(KvCodec::kBf16, KvCodec::kF32),
                         [](const auto& info) { return std::string(sluice::Name(info.param)); });

TEST_P(KvReceiverTest, AWholeHandoffIsAcknowledgedAndAnswered) {
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
  const auto bytes = static_cast<double>(3 * BodyBytes(kToyLayout, wire_, 1, 10));
  EXPECT_EQ(metrics_.kv_bytes_received.Value(), bytes);
  EXPECT_EQ(metrics_.kv_bytes_recoded.Value(), wire_ == KvCodec::kBf16 ? 0 : bytes);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, AFrameMayHoldSeveralLayers) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  KvFrameHeader header = KvHeader(held, 0, 0, 10);
  header.layers = 3;
  std::string body;
  for (int layer = 0; layer < kToyLayout.layers; ++layer) body += ToyBody(held.prompt, layer, 0, 10, wire_);
  sender->Send(header, body);
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, FramesMayComeInAnyOrderAndInPiecesOfAnySize) {
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

TEST_P(KvReceiverTest, ACommitThatOvertakesFramesIsHeldUntilTheLastOne) {
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

TEST_P(KvReceiverTest, AGapEndsWithTheLeaseAndBothSidesAreTold) {
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

// Whoever waits for the count, and then takes a turn, finds the frame's effect.
TEST_P(KvReceiverTest, AFrameIsCountedAfterTheEngineWasTold) {
  std::vector<double> counted_when_told;
  KvReceiver receiver({.hello = MakeHello("decode", Epoch{3}, "toy", layout_proto_, KvCodec::kBf16,
                                          {KvCodec::kBf16, KvCodec::kF32}),
                       .connections_max = 1,
                       .credit_bytes = kCreditBytes},
                      pool_.get(), staging_.get(), &metrics_,
                      [&](const ReceiverEvent&) { counted_when_told.push_back(metrics_.frames_received.Value()); });
  prefill::FakeTransport wire_out;
  receiver.Start(&wire_out);
  const proto::Hello theirs = MakeHello("prefill", Epoch{5}, "toy", layout_proto_, KvCodec::kBf16, {wire_});
  ASSERT_TRUE(receiver.OnHello(ConnectionId{7}, theirs.SerializeAsString()).ok());
  Held held = Reserve(Prompt(10), Sampling(6));
  held.ticket.set_decode_epoch(3);
  const TransferKey key{ReservationId{held.ticket.reservation_id()}, Tenure{held.ticket.generation()}};
  const PageLease pages = *pool_->Lease(pool_->PagesFor(10));
  receiver.Open({.key = key,
                 .handoff = {.request = RequestId{held.ticket.request_id()},
                             .prompt_tokens = 10,
                             .kv_tokens = 10,
                             .max_tokens = 6,
                             .vocab_size = kToyVocab},
                 .pages = {pages.pages().begin(), pages.pages().end()}});
  uint64_t number = 0;
  const auto land = [&](KvFrameHeader header, const std::string& payload) {
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(payload.data()), payload.size());
    header.payload_bytes = bytes.size();
    if (header.kind == FrameKind::kKv) header.number = ++number;
    const auto landing = receiver.OnMessage(ConnectionId{7}, Encode(header, bytes), bytes.size());
    ASSERT_TRUE(landing.ok()) << landing.status();
    ASSERT_FALSE(landing->drop);
    landing->Copy(bytes);
    receiver.OnLanded(ConnectionId{7}, landing->token, absl::OkStatus());
    receiver.TakeProgress();
  };
  for (int layer = 0; layer < kToyLayout.layers; ++layer)
    land(KvHeader(held, layer, 0, 10), ToyBody(held.prompt, layer, 0, 10, wire_));
  land(Header(held, FrameKind::kCommit), Record(held));
  EXPECT_THAT(counted_when_told, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(metrics_.frames_received.Value(), 4);
  Release(held);
}

TEST_P(KvReceiverTest, AFrameThatComesTwiceIsDroppedAndCounted) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  SendKv(*sender, held, 0, 0, 10);
  SendKv(*sender, held, 0, 3, 4);
  AwaitCount(metrics_.dropped_duplicate, 2);
  SendKv(*sender, held, 1, 0, 10);
  SendKv(*sender, held, 2, 0, 10);
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, ACommitThatComesTwiceIsDroppedAndCounted) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(150));
  SendCommit(*sender, held);
  SendCommit(*sender, held);
  AwaitCount(metrics_.dropped_duplicate, 1);
  SendAllKv(*sender, held);
  TurnUntil([this] { return metrics_.commits.Value() == 1; });
  SendCommit(*sender, held);  // decode has begun with it
  AwaitCount(metrics_.dropped_duplicate, 2);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_THAT(sender->results(), SizeIs(1));
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, ARangeOfWhichSomeCameFailsTheTransfer) {
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

TEST_P(KvReceiverTest, FramesBeyondTheCommitFailTheTransfer) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(1));  // ends with its first token: the commit names no KV
  SendKv(*sender, held, 0, 0, 10);
  SendCommit(*sender, held);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kInvalidArgument);
  Release(held);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, FramesOfAFormerHolderAreDroppedCountedAndAnswered) {
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

TEST_P(KvReceiverTest, AnotherConnectionCannotWriteIntoATransfer) {
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

TEST_P(KvReceiverTest, AFrameForNobodyIsDroppedAndItsSenderIsTold) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  Release(held);
  SendKv(*sender, held, 0, 0, 10);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kAborted);
  EXPECT_EQ(metrics_.dropped_unknown.Value(), 1);
  EXPECT_FALSE(sender->closed());
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, AFrameForAnotherStartOfTheProcessIsDropped) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  KvFrameHeader header = KvHeader(held, 0, 0, 10);
  header.epoch = Epoch{1};
  sender->Send(header, ToyBody(held.prompt, 0, 0, 10, wire_));
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kAborted);
  EXPECT_EQ(metrics_.dropped_other_epoch.Value(), 1);
  Release(held);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, AnotherLayoutFailsTheTransferWithBothHashes) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  KvFrameHeader header = KvHeader(held, 0, 0, 10);
  header.layout_hash = 0xabc;
  sender->Send(header, ToyBody(held.prompt, 0, 0, 10, wire_));
  const auto result = AwaitResult(*sender);
  EXPECT_EQ(ToStatus(result).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(result.message(), HasSubstr("abc"));
  EXPECT_THAT(result.message(), HasSubstr(std::string(absl::AlphaNum(absl::Hex(held.ticket.layout_hash())).Piece())));
  ExpectAnotherPrefillSucceeds(held);
}

TEST_P(KvReceiverTest, WhatWasNotReservedFailsTheTransfer) {
  const auto send_wrong = [this](Held& held, const std::function<void(KvFrameHeader&)>& change) {
    const auto sender = NewSender();
    KvFrameHeader header = KvHeader(held, 0, 0, 10);
    change(header);
    sender->Send(header, ToyBody(held.prompt, 0, 0, 10, wire_));
    EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kInvalidArgument);
    held.ticket = *Rearm(held);
  };
  Held held = Reserve(Prompt(10), Sampling(6));
  send_wrong(held, [](KvFrameHeader& header) { header.layer = 3; });
  send_wrong(held, [](KvFrameHeader& header) { header.first_token = 1; });
  send_wrong(held, [](KvFrameHeader& header) { header.tokens = 9; });
  send_wrong(held, [](KvFrameHeader& header) { header.layers = 4; });
  send_wrong(held, [](KvFrameHeader& header) { header.codec = KvCodec::kF16; });  // which the hello did not name
  EXPECT_EQ(metrics_.dropped_wrong.Value(), 5);
  ExpectAnotherPrefillSucceeds(held);
}

TEST_P(KvReceiverTest, AFrameWithAFlippedBitIsAskedForAgain) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendCommit(*sender, held);
  SendDamaged(*sender, held, 0, 2, 5);
  SendKv(*sender, held, 0, 0, 2);
  SendKv(*sender, held, 0, 7, 3);
  SendKv(*sender, held, 1, 0, 10);
  SendKv(*sender, held, 2, 0, 10);
  TurnUntil([&sender] { return sender->resends().size() == 1; });
  const KvFrameHeader asked = sender->resends()[0];
  EXPECT_EQ(asked.reservation.value, held.ticket.reservation_id());
  EXPECT_EQ(asked.generation.value, held.ticket.generation());
  EXPECT_EQ(asked.codec, wire_);
  EXPECT_EQ(asked.layer, 0);
  EXPECT_EQ(asked.layers, 1);
  EXPECT_EQ(asked.first_token, 2u);
  EXPECT_EQ(asked.tokens, 5u);
  Turns(3);
  EXPECT_FALSE(Read(held));
  SendKv(*sender, held, 0, 2, 5);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(metrics_.crc_failures.Value(), 1);
  EXPECT_EQ(metrics_.resends_asked.Value(), 1);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, AFrameThatComesDamagedTwiceIsDataLoss) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendDamaged(*sender, held, 0, 0, 10);
  SendDamaged(*sender, held, 0, 0, 10);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
  EXPECT_EQ(metrics_.crc_failures.Value(), 2);
  EXPECT_EQ(metrics_.frames_received.Value(), 0);
  EXPECT_THAT(sender->resends(), SizeIs(1));
  ExpectAnotherPrefillSucceeds(held);
}

TEST_P(KvReceiverTest, OfTwoRequestsOfOnePromptTheFailureOfOneIsNotTheOthers) {
  const auto sender = NewSender();
  Held first = Reserve(Prompt(10), Sampling(6));
  Held second = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, first, 0, 0, 10);
  SendAllKv(*sender, second);
  SendDamaged(*sender, first, 1, 0, 10);
  SendDamaged(*sender, first, 1, 0, 10);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
  SendCommit(*sender, second);
  ReadToEnd(second);
  ExpectAnswered(second);
  ExpectAnotherPrefillSucceeds(first);
}

TEST_P(KvReceiverTest, TooManyDamagedFramesAreDataLoss) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  for (int i = 0; i < 20; ++i) SendDamaged(*sender, held, i / 10, i % 10, 1);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
  EXPECT_THAT(sender->resends(), SizeIs(16));
  ExpectAnotherPrefillSucceeds(held);
}

TEST_P(KvReceiverTest, AFrameThatIsCutShortIsAskedForAgain) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendCut(*sender, held, 0, 0, 10);
  TurnUntil([&sender] { return sender->resends().size() == 1; });
  SendAllKv(*sender, held);
  SendCommit(*sender, held);
  SendCut(*sender, held, 0, 0, 10);  // nobody misses it
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(metrics_.dropped_damaged.Value(), 1);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, AFlippedBitInTheRecordIsDataLoss) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendAllKv(*sender, held);
  sender->Send(Header(held, FrameKind::kCommit), Record(held), /*flip_payload_byte=*/5);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
  ExpectAnotherPrefillSucceeds(held);
}

TEST_P(KvReceiverTest, ARecordThatContradictsItsReservationIsRefused) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendAllKv(*sender, held);
  Held other = held;
  other.sampling.max_tokens = 500;  // more than pages were reserved for
  SendCommit(*sender, other);
  EXPECT_NE(AwaitResult(*sender).code(), 0);
  ExpectAnotherPrefillSucceeds(held);
}

// Its memory would be what the transport says, which nothing bounds but the transport.
TEST_P(KvReceiverTest, ACommitOrAbortOfAnotherSizeThanItSaysTakesNoMemory) {
  for (const FrameKind kind : {FrameKind::kCommit, FrameKind::kAbort}) {
    const auto sender = NewSender();
    Held held = Reserve(Prompt(10), Sampling(6));
    KvFrameHeader header = Header(held, kind);
    header.payload_bytes = 10;
    sender->SendRaw(Encode(header, std::vector<std::byte>(10)), std::string(1000, 'x'));
    EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kDataLoss);
    Release(held);
  }
  EXPECT_EQ(metrics_.dropped_damaged.Value(), 2);
}

TEST_P(KvReceiverTest, APrefillThatGivesUpFailsItsTransferAtOnce) {
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

TEST_P(KvReceiverTest, APrefillThatVanishesFailsAllItsTransfersAtOnce) {
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

TEST_P(KvReceiverTest, APrefillThatVanishesAfterItsCommitChangesNothing) {
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

TEST_P(KvReceiverTest, AClientThatLeavesDuringTheTransferStopsThePrefill) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  SendKv(*sender, held, 0, 0, 10);
  AwaitCount(metrics_.frames_received, 1);
  Leave(held);
  EXPECT_EQ(AwaitCode(*sender), absl::StatusCode::kCancelled);
  ExpectNothingHeld();
}

TEST_P(KvReceiverTest, AHeaderOfGarbageClosesTheConnection) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  sender->SendRaw(std::string(kKvFrameHeaderBytes, 'x'), "payload");
  TurnUntil([&sender] { return sender->closed(); });
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(ReceiverFixture, AHelloThatDoesNotFitIsRefusedWithBothValues) {
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
  EXPECT_THAT(refused(MakeHello("prefill", Epoch{5}, "toy", layout_proto_, KvCodec::kF32, {KvCodec::kF16})),
              testing::AllOf(HasSubstr("bf16|f32"), HasSubstr("f16")));
  layout = layout_proto_;
  layout.set_tensor_parallel(2);
  EXPECT_THAT(refused(MakeHello("prefill", Epoch{5}, "toy", layout, KvCodec::kBf16, {KvCodec::kBf16})),
              HasSubstr("tensor_parallel is 1 here and 2 there"));
  EXPECT_EQ(metrics_.hellos_refused.Value(), 4);
}

TEST_P(KvReceiverTest, EveryByteOfKvIsGivenBackOnce) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  Held released = Reserve(Prompt(10), Sampling(6));
  Release(released);
  SendKv(*sender, held, 0, 0, 10);
  SendKv(*sender, held, 0, 0, 10);      // its range is there
  SendKv(*sender, released, 0, 0, 10);  // for nobody
  SendDamaged(*sender, held, 1, 0, 10);
  SendCut(*sender, held, 2, 0, 10);
  const uint64_t bytes = BodyBytes(kToyLayout, wire_, 1, 10);
  TurnUntil([&] { return sender->credit() == 5 * bytes; });
  SendKv(*sender, held, 1, 0, 10);
  SendKv(*sender, held, 2, 0, 10);
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(sender->credit(), 7 * bytes);
  ExpectNothingHeld();
}

// Its sender has sent it once: also where the first of both came damaged, and its range is open again.
TEST_P(KvReceiverTest, AFrameThatTheTransportOffersTwiceGivesItsCreditBackOnce) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(10), Sampling(6));
  const std::string body = ToyBody(held.prompt, 0, 0, 10, wire_);
  KvFrameHeader header = KvHeader(held, 0, 0, 10);
  header.payload_bytes = body.size();
  header.number = sender->NextNumber();
  const std::string encoded = Encode(header, {reinterpret_cast<const std::byte*>(body.data()), body.size()});
  std::string damaged = body;
  damaged[7] = static_cast<char>(damaged[7] ^ 1);
  sender->SendRaw(encoded, damaged);
  sender->SendRaw(encoded, body);
  AwaitCount(metrics_.dropped_duplicate, 1);
  TurnUntil([&sender] { return sender->resends().size() == 1; });
  SendAllKv(*sender, held);
  SendCommit(*sender, held);
  ReadToEnd(held);
  ExpectAnswered(held);
  EXPECT_EQ(sender->credit(), 4 * body.size());
  ExpectNothingHeld();
}

// Whatever was damaged in it: nothing of it is believed, and no credit is left out.
TEST_P(KvReceiverTest, ADamagedHeaderClosesTheConnection) {
  Held held = Reserve(Prompt(10), Sampling(6));
  const std::string body = ToyBody(held.prompt, 0, 0, 10, wire_);
  int sent = 0;
  for (const size_t byte : {8, 24, 32, 40, 48, 56, 64, 72, 80}) {  // a field each, and the CRC
    const auto sender = NewSender();
    KvFrameHeader header = KvHeader(held, 0, 0, 10);
    header.payload_bytes = body.size();
    header.number = sender->NextNumber();
    std::string encoded = Encode(header, {reinterpret_cast<const std::byte*>(body.data()), body.size()});
    encoded[byte] = static_cast<char>(encoded[byte] ^ 1);
    sender->SendRaw(encoded, body);
    TurnUntil([&sender] { return sender->closed(); });
    EXPECT_THAT(sender->results(), testing::IsEmpty());
    EXPECT_EQ(metrics_.crc_failures.Value(), ++sent);
  }
  ExpectAnotherPrefillSucceeds(held);
}

TEST(FrameNumbers, AreNotedOnceInAnyOrderAndNotFarAheadOfAMissingOne) {
  FrameNumbers numbers;
  EXPECT_TRUE(*numbers.Note(2));
  EXPECT_FALSE(*numbers.Note(2));
  EXPECT_TRUE(*numbers.Note(1));
  EXPECT_FALSE(*numbers.Note(1));
  EXPECT_FALSE(*numbers.Note(2));
  for (uint64_t number = 4; number <= 3 + FrameNumbers::kAheadMax; ++number) EXPECT_TRUE(*numbers.Note(number));
  const Status far = numbers.Note(4 + FrameNumbers::kAheadMax).status();
  EXPECT_THAT(std::string(far.message()), HasSubstr("KV frame 4100 came, and frame 3 did not"));
  EXPECT_TRUE(*numbers.Note(3));
  EXPECT_TRUE(*numbers.Note(4 + FrameNumbers::kAheadMax));
}

TEST_P(KvReceiverTest, MoreThanTheCreditClosesTheConnection) {
  const auto sender = NewSender();
  Held held = Reserve(Prompt(190), Sampling(6));
  KvFrameHeader header = KvHeader(held, 0, 0, 190);
  header.layers = 3;
  std::string body;
  for (int layer = 0; layer < kToyLayout.layers; ++layer) body += ToyBody(held.prompt, layer, 0, 190, wire_);
  ASSERT_GT(body.size(), kCreditBytes);
  sender->Send(header, body);
  TurnUntil([&sender] { return sender->closed(); });
  ExpectAnotherPrefillSucceeds(held);
}

TEST_F(ReceiverFixture, MorePrefillProcessesThanConnectionsAreRefusedWithBothNumbers) {
  std::vector<std::unique_ptr<Sender>> senders;
  for (int i = 0; i < kConnections; ++i) senders.push_back(NewSender());
  const proto::Hello hello = MakeHello("prefill", Epoch{5}, "toy", layout_proto_, KvCodec::kBf16, {KvCodec::kBf16});
  const Status refused = Sender().Connect(transport_->address(), hello).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("8 prefill processes connected, at most 8"));
  senders.pop_back();
  // Its end is noticed by the transport's thread.
  TurnUntil([&] { return Sender().Connect(transport_->address(), hello).ok(); });
}

TEST(Staging, GivesOutAndMergesPiecesOfAnySize) {
  const auto staging = *Staging::Create(1024);
  std::optional<Staging::Lease> a = staging->Take(100), b = staging->Take(300), c = staging->Take(500);
  EXPECT_EQ(staging->bytes_free(), 1024u - 128 - 320 - 512);
  b.reset();
  a.reset();
  (void)staging->Take(400);
  c.reset();
  (void)staging->Take(1024);
  (void)staging->Take(0);
  EXPECT_EQ(staging->bytes_free(), 1024u);
  EXPECT_EQ(staging->pieces_from_heap(), 0u);
}

TEST(Staging, TakesFromTheHeapWhatNoGapHolds) {
  const auto staging = *Staging::Create(1024);
  const Staging::Lease a = staging->Take(300);
  std::optional<Staging::Lease> b = staging->Take(300);
  const Staging::Lease c = staging->Take(300);
  b.reset();
  Staging::Lease heap = staging->Take(400);  // 384 are free, in two gaps
  ASSERT_EQ(heap.bytes().size(), 400u);
  std::fill(heap.bytes().begin(), heap.bytes().end(), std::byte{1});
  const Staging::Lease moved = std::move(heap);
  EXPECT_EQ(moved.bytes()[399], std::byte{1});
  EXPECT_EQ(staging->pieces_from_heap(), 1u);
  EXPECT_EQ(staging->bytes_free(), 1024u - 2 * 320);
}

}  // namespace
}  // namespace sluice::decode
