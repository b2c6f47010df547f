// Pages whose reservation ends while a frame is on its way into them. The test plays the transport, so that a frame
// lands when it says so.
#include <functional>

#include "common/rng.h"
#include "tests/decode/worker_fixture.h"
#include "tests/prefill/fake_transport.h"

namespace sluice::decode {
namespace {

constexpr ConnectionId kConnection{7};
constexpr int kPromptTokens = 10;
constexpr int kPromptPages = 3;

class QuarantineTest : public WorkerFixture {
 protected:
  QuarantineTest() {
    worker_->Start(&wire_out_);
    const proto::Hello hello =
        MakeHello("prefill", Epoch{5}, "toy", layout_proto_, KvCodec::kBf16, {KvCodec::kBf16, KvCodec::kF32});
    SLUICE_CHECK(worker_->receiver()->OnHello(kConnection, hello.SerializeAsString()).ok());
  }

  struct Flight {
    Landing landing;
    std::string payload;
  };
  // The frame is on its way.
  Flight Begin(const KvFrameHeader& header, std::string payload) {
    KvFrameHeader whole = header;
    whole.payload_bytes = payload.size();
    if (header.kind == FrameKind::kKv) whole.number = ++kv_frames_;
    const std::string encoded = Encode(whole, Bytes(payload));
    StatusOr<Landing> landing = worker_->receiver()->OnMessage(kConnection, encoded, payload.size());
    SLUICE_CHECK(landing.ok() && !landing->drop);
    return {*std::move(landing), std::move(payload)};
  }
  Flight Begin(const Held& held, int layer) {
    return Begin(KvHeader(held, layer, 0, kPromptTokens), ToyBody(held.prompt, layer, 0, kPromptTokens, wire_));
  }
  void Land(const Flight& begun, const Status& status = absl::OkStatus()) {
    begun.landing.Copy(Bytes(begun.payload));
    worker_->receiver()->OnLanded(kConnection, begun.landing.token, status);
    Turns(1);
  }
  void DeliverWhole(const Held& held) {
    for (int layer = 0; layer < kToyLayout.layers; ++layer) Land(Begin(held, layer));
    Land(Begin(Header(held, FrameKind::kCommit), Record(held)));
  }
  static absl::Span<const std::byte> Bytes(const std::string& text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
  }
  Held Reserved() { return Reserve(Prompt(kPromptTokens), Sampling(6)); }
  int Quarantined() const { return static_cast<int>(metrics_.kv_pages_quarantined.Value()); }
  void ExpectQuarantined(int pages) {
    Turns(1);
    EXPECT_EQ(Quarantined(), pages);
    EXPECT_EQ(pool_->pages_quarantined(), pages);
    EXPECT_EQ(metrics_.kv_pages_free.Value(), kPages - pages);
  }

  prefill::FakeTransport wire_out_;
  uint64_t kv_frames_ = 0;
};

TEST_F(QuarantineTest, HoldsThePagesOfAReservationThatEndsUntilItsFrameHasLanded) {
  const std::vector<std::function<void(Held&)>> ends = {[this](Held& held) { Release(held); },
                                                        [this](Held& held) { Leave(held); },
                                                        [this](Held&) { clock_.Advance(absl::Seconds(60)); }};
  for (const auto& end : ends) {
    for (const Status& status : {absl::OkStatus(), absl::UnavailableError("gone")}) {
      Held held = Reserved();
      const Flight frame = Begin(held, 0);
      end(held);
      ExpectQuarantined(kPromptPages);
      EXPECT_EQ(metrics_.reservations.Value(), 0);
      Land(frame, status);
      ExpectNothingHeld();
    }
  }
}

TEST_F(QuarantineTest, HoldsThemUntilTheLastOfSeveralFramesHasLanded) {
  Held held = Reserved();
  const Flight first = Begin(held, 0);
  const Flight second = Begin(held, 1);
  Release(held);
  Land(first);
  ExpectQuarantined(kPromptPages);
  Land(second);
  ExpectNothingHeld();
}

TEST_F(QuarantineTest, PagesThatNothingIsOnItsWayIntoAreFreeAtOnce) {
  Held held = Reserved();
  Land(Begin(held, 0));
  Release(held);
  ExpectNothingHeld();
}

TEST_F(QuarantineTest, AFrameOnItsWayIntoStagingHoldsNoPages) {
  wire_ = KvCodec::kF32;
  Held held = Reserved();
  const Flight frame = Begin(held, 0);
  Release(held);
  ExpectQuarantined(0);
  Land(frame);
  ExpectNothingHeld();
}

TEST_F(QuarantineTest, OthersAreNotDisturbedByALateFrame) {
  Held former = Reserved();
  const Flight frame = Begin(former, 0);
  Release(former);
  std::vector<Held> others;  // all the pages that there are
  while (Free() >= 3) others.push_back(Reserve(Prompt(8, static_cast<int>(others.size()) + 2), Sampling(5)));
  EXPECT_TRUE(TryReserve(Prompt(12), Sampling(1))->has_no_room());
  for (Held& other : others) {
    for (int layer = 0; layer < kToyLayout.layers; ++layer)
      Land(Begin(KvHeader(other, layer, 0, 8), ToyBody(other.prompt, layer, 0, 8)));
  }
  Land(frame);
  for (Held& other : others) {
    Land(Begin(Header(other, FrameKind::kCommit), Record(other)));
    ReadToEnd(other);
    ExpectAnswered(other);
  }
  ExpectNothingHeld();
}

TEST_F(QuarantineTest, AnotherPrefillGetsOtherPagesWhereTheFormerOneMayStillWrite) {
  Held held = Reserved();
  Held as_former = held;
  as_former.prompt = Prompt(kPromptTokens, 2);  // what it writes is wrong
  const Flight frame = Begin(as_former, 0);
  held.ticket = *Rearm(held);
  EXPECT_EQ(Quarantined(), kPromptPages);
  DeliverWhole(held);
  Land(frame);
  ReadToEnd(held);
  ExpectAnswered(held);
  ExpectNothingHeld();
}

TEST_F(QuarantineTest, ARearmWithoutRoomForOtherPagesLosesTheReservation) {
  Held held = Reserved();
  const Flight frame = Begin(held, 0);
  Held large = Reserve(Prompt(100), Sampling(101));
  Held other = Reserve(Prompt(20), Sampling(4 * Free() - 20 - 4));
  ASSERT_LT(Free(), kPromptPages);
  EXPECT_EQ(Rearm(held).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Read(held));
  EXPECT_EQ(held.end->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Quarantined(), kPromptPages);
  Land(frame);
  Release(large);
  Release(other);
  ExpectNothingHeld();
}

TEST_F(QuarantineTest, AConnectionThatWritesForTooLongIsClosedWithoutTraffic) {
  Held held = Reserved();
  const Flight frame = Begin(held, 0);
  Release(held);
  clock_.Advance(absl::Seconds(10) - absl::Milliseconds(1));
  ExpectQuarantined(kPromptPages);
  EXPECT_THAT(wire_out_.closed, testing::IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  ExpectQuarantined(kPromptPages);
  EXPECT_THAT(wire_out_.closed, testing::ElementsAre(kConnection));
  Land(frame, absl::CancelledError("closed"));
  ExpectNothingHeld();
  Turns(2);
  EXPECT_THAT(wire_out_.closed, testing::SizeIs(1));
}

TEST_F(QuarantineTest, AFullPoolWhoseClientsAllLeaveDuringTheirTransfersIsFreeAgainWithoutTraffic) {
  std::vector<Held> all;
  std::vector<Flight> frames;
  while (Free() >= 4) {
    all.push_back(Reserved());
    frames.push_back(Begin(all.back(), 0));
  }
  ASSERT_GT(kPages - Free(), kPages * 9 / 10);
  for (const Held& held : all) Leave(held);
  ExpectQuarantined(static_cast<int>(all.size()) * kPromptPages);
  EXPECT_TRUE(TryReserve(Prompt(100), Sampling(6))->has_no_room());
  clock_.Advance(absl::Seconds(10));  // nobody calls, and prefill is silent
  Turns(1);
  EXPECT_THAT(wire_out_.closed, testing::AllOf(testing::Not(testing::IsEmpty()), testing::Each(kConnection)));
  for (const Flight& frame : frames) Land(frame, absl::CancelledError("closed"));
  ExpectNothingHeld();
  EXPECT_TRUE(TryReserve(Prompt(100), Sampling(6))->has_ticket());
}

// Random histories of frames that begin, land and break, and of reservations that end and change hands: each page is in
// one state, no frame lands in a page of another request, and what is answered is right.
class QuarantineStormTest : public QuarantineTest, public testing::WithParamInterface<uint64_t> {
 protected:
  void TryBegin(const KvFrameHeader& frame, const std::string& payload) {
    KvFrameHeader header = frame;
    header.payload_bytes = payload.size();
    if (header.kind == FrameKind::kKv) header.number = ++kv_frames_;
    auto landing = worker_->receiver()->OnMessage(kConnection, Encode(header, Bytes(payload)), payload.size());
    ASSERT_TRUE(landing.ok());
    if (!landing->drop) landing_.push_back({*std::move(landing), payload});
  }
  void DoSomething() {
    const uint64_t what = rng_.Bits() % 32;
    Held* const held = open_.empty() ? nullptr : &open_[rng_.Bits() % open_.size()];
    if (what < 4) {
      if (Free() >= 6) open_.push_back(Reserve(Prompt(kPromptTokens, static_cast<int>(++requests_made_)), Sampling(4)));
    } else if (what < 16 && !landing_.empty()) {
      std::swap(landing_[rng_.Bits() % landing_.size()], landing_.back());
      if (rng_.Bits() % 16 == 0) landing_.back().payload[3] ^= 1;  // damaged on its way
      Land(landing_.back());
      landing_.pop_back();
    } else if (what == 16) {
      clock_.Advance(absl::Milliseconds(rng_.Bits() % 1500));
      Turns(1);
    } else if (held == nullptr) {
      return;
    } else if (what == 17) {
      if (const auto ticket = Rearm(*held); ticket.ok()) held->ticket = *ticket;
    } else if (what == 18) {
      rng_.Bits() % 2 == 0 ? Release(*held) : Leave(*held);
    } else if (what < 22) {
      TryBegin(Header(*held, FrameKind::kCommit), Record(*held));
    } else {
      const int layer = static_cast<int>(rng_.Bits() % 3);
      TryBegin(KvHeader(*held, layer, 0, kPromptTokens), ToyBody(held->prompt, layer, 0, kPromptTokens));
    }
  }

  Rng rng_{GetParam()};
  std::vector<Held> open_;
  std::vector<Flight> landing_;
  uint64_t requests_made_ = 0;
};

TEST_P(QuarantineStormTest, NoPageIsLostAndNoneIsGivenAwayTooEarly) {
  int answered = 0, quarantined_most = 0;
  for (int i = 0; i < 2000; ++i) {
    DoSomething();
    Turns(1);
    ASSERT_EQ(pool_->pages_free() + pool_->pages_leased() + pool_->pages_quarantined(), kPages);
    quarantined_most = std::max(quarantined_most, Quarantined());
    std::erase_if(open_, [&](Held& each) {
      if (!Read(each)) return false;
      if (each.end->ok()) ExpectAnswered(each);
      answered += each.end->ok() ? 1 : 0;
      return true;
    });
  }
  EXPECT_GT(answered, 10);
  EXPECT_GT(quarantined_most, 0);
  for (const Held& held : open_) Release(held);
  for (const Flight& each : landing_) Land(each, absl::CancelledError("closed"));
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(Seeds, QuarantineStormTest, testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace sluice::decode
