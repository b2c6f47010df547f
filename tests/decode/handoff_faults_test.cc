// The handoff under faults: prefill's sender and decode's worker in one process, with a transport that drops, delays,
// doubles, reorders, flips, cuts, stalls or kills at any message of a transfer, on either side. Whatever happens: the
// answer is right or somebody is told a clear error within the deadlines, what is tried again is right in the end, and
// no page is missing on either side.
#include <map>
#include <set>

#include "absl/time/clock.h"
#include "common/rng.h"
#include "prefill/kv_sender.h"
#include "tests/decode/worker_fixture.h"
#include "transport/backends.h"
#include "transport/fault_policy.h"

namespace sluice::decode {
namespace {

constexpr int kPromptTokens = 10;
constexpr int kChunkTokens = 6;  // so that a transfer has two rounds of layers
constexpr int kTries = 5;

enum class Side { kDecode, kPrefill };  // whose receiving end the faults strike

struct Faults {
  Side side = Side::kDecode;
  FaultPolicy policy;
};

// One decode worker and one prefill sender, from their start to their end. The test plays the engine of prefill, which
// has computed the prompt already, and the gateway. Time is manual and runs with the rounds of the loop.
class FaultyPair : public WorkerFixture {
 public:
  FaultyPair(KvCodec wire, const Faults& faults) {
    transport_.reset();
    transport_ = Create("decode:0", worker_->receiver(), faults, Side::kDecode);
    worker_->Start(transport_.get());
    const prefill::KvSenderOptions options = {
        .hello = MakeHello("prefill", Epoch{5}, "toy", layout_proto_, KvCodec::kBf16, {wire}),
        .send_memory_bytes = 64 << 10,
        .connection_bytes_in_flight_max = 32 << 10,
        .frame_bytes_min = 1,
        .frame_bytes_max = 16 << 10,
        .connections_max = 2,
        .connect_timeout = absl::Seconds(20),
        .result_timeout = absl::Seconds(2)};
    sender_ = *prefill::KvSender::Create(options, prefill_pool_.get(), &clock_, &prefill_metrics_);
    client_ = Create("", sender_->receiver(), faults, Side::kPrefill);
    sender_->Attach(client_.get(), [this](prefill::TransferId id, const prefill::TransferReport& report) {
      EXPECT_TRUE(reports_.emplace(id.value, report.status).second) << "a transfer ended twice";
      leases_.erase(id.value);
    });
  }
  ~FaultyPair() override {
    KillPrefill();
    EXPECT_EQ(prefill_pool_->pages_free(), prefill_pool_->pages_total());
    TearDown();
  }

  // A request as the gateway handles it: rearms where prefill failed, starts over where the reservation is lost. True
  // where it was answered, and rightly; else every error on the way was a clear one.
  bool Ask(const std::vector<TokenId>& prompt) {
    for (int i = 0; i < kTries; ++i) {
      const auto reply = TryReserve(prompt, Sampling(4));
      if (!reply.ok() || !reply->has_ticket()) return false;
      Held held{.prompt = prompt, .sampling = Sampling(4), .ticket = *Open(reply->ticket(), key_)};
      held.tokens.resize(1);
      Attach(held);
      if (held.stream == nullptr) continue;
      if (Follow(held)) return true;
      if (sender_ == nullptr) return false;
    }
    return false;
  }

  // The process dies: what it had on its way is gone.
  void KillPrefill() {
    if (sender_ == nullptr) return;
    sender_->Stop();
    sender_->Poll(clock_.Now());
    client_.reset();
    sender_.reset();
    leases_.clear();
  }
  // How the transfer ends of a decode process that dies once so many messages have reached it.
  Status DeliverUntilDecodeDies(uint64_t messages) {
    const auto reply = TryReserve(SomePrompt(1), Sampling(4));
    const Held held{.prompt = SomePrompt(1), .sampling = Sampling(4), .ticket = *Open(reply->ticket(), key_)};
    const uint64_t transfer = BeginPrefill(held);
    const absl::Time too_late = clock_.Now() + absl::Minutes(1);
    while (!reports_.contains(transfer) && clock_.Now() < too_late) {
      sender_->Poll(clock_.Now());
      if (transport_ != nullptr && received(Side::kDecode) >= messages) transport_.reset();
      absl::SleepFor(absl::Microseconds(200));
      clock_.Advance(absl::Milliseconds(5));
    }
    EXPECT_TRUE(leases_.empty());
    transport_ = Create("decode:0", worker_->receiver(), {}, Side::kDecode);  // for the worker's own end
    worker_->Start(transport_.get());
    return reports_.contains(transfer) ? reports_.at(transfer) : absl::InternalError("it did not end");
  }
  // Both sides work for a while.
  void Round() {
    if (sender_ != nullptr) sender_->Poll(clock_.Now());
    Turns(1);
    absl::SleepFor(absl::Microseconds(200));
    clock_.Advance(absl::Milliseconds(5));
  }
  void ExpectNothingHeldInTheEnd() {
    for (int i = 0; i < 8000 && (Free() < kPages || !leases_.empty()); ++i) Round();
    EXPECT_TRUE(leases_.empty());
    ExpectNothingHeld();
  }
  // Of the sender's credit, on all connections.
  double kv_bytes_out() const { return prefill_metrics_.kv_bytes_out.Value(); }
  uint64_t struck() const {
    uint64_t struck = 0;
    for (const uint64_t count : transport_->counters().faults) struck += count;
    if (client_ != nullptr) {
      for (const uint64_t count : client_->counters().faults) struck += count;
    }
    return struck;
  }
  uint64_t received(Side side) const {
    return (side == Side::kDecode ? transport_ : client_)->counters().messages_received;
  }
  const std::set<absl::StatusCode>& errors() const { return errors_; }
  DecodeMetrics& metrics() { return metrics_; }
  static std::vector<TokenId> SomePrompt(int salt) { return Prompt(kPromptTokens, salt); }

  // Called in each round of a request.
  std::function<void()> each_round = [] {};

 private:
  void TestBody() override {}

  static std::unique_ptr<Transport> Create(const std::string& listen, Receiver* receiver, const Faults& faults,
                                           Side side) {
    TransportOptions options = {.listen_address = listen};
    if (faults.side == side) options.faults = faults.policy;
    return *CreateTransport("faulty-loopback", options, receiver);
  }

  // KV as prefill computes it, and the commit.
  uint64_t BeginPrefill(const Held& held) {
    const uint64_t id = ++last_transfer_;
    PageLease lease = *prefill_pool_->Lease(prefill_pool_->PagesFor(kPromptTokens));
    for (int layer = 0; layer < kToyLayout.layers; ++layer) {
      const std::string body = ToyBody(held.prompt, layer, 0, kPromptTokens);
      const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(body.data()), body.size());
      SLUICE_CHECK(
          DecodeBody(*prefill_pool_, lease.pages(), {.layer = layer, .tokens = kPromptTokens}, KvCodec::kBf16, bytes)
              .ok());
    }
    sender_->Begin({id}, held.ticket, {lease.pages().begin(), lease.pages().end()}, clock_.Now() + absl::Minutes(1));
    leases_.emplace(id, std::move(lease));
    for (int first = 0; first < kPromptTokens; first += kChunkTokens) {
      const int tokens = std::min(kChunkTokens, kPromptTokens - first);
      for (int layer = 0; layer < kToyLayout.layers; ++layer)
        sender_->Send({id}, {.layer = layer, .first_token = first, .tokens = tokens});
    }
    proto::HandoffRecord record;
    SLUICE_CHECK(record.ParseFromString(Record(held)));
    sender_->Commit({id}, record);
    return id;
  }

  // From the first prefill to the end of the stream. False where the reservation is lost.
  bool Follow(Held& held) {
    uint64_t transfer = sender_ != nullptr ? BeginPrefill(held) : 0;
    const absl::Time too_late = clock_.Now() + absl::Minutes(2);
    while (!Read(held)) {
      Round();
      each_round();
      EXPECT_LT(clock_.Now(), too_late) << "nobody ended this";
      if (clock_.Now() >= too_late) return false;
      const auto report = reports_.find(transfer);
      if (report == reports_.end() || report->second.ok() || !held.tokens[0].empty()) continue;
      Note(report->second);
      transfer = 0;
      if (sender_ == nullptr) continue;
      const auto ticket = Rearm(held);
      if (!ticket.ok()) {
        if (absl::IsFailedPrecondition(ticket.status())) continue;  // decode runs: only the answer was lost
        Leave(held);
        continue;
      }
      held.ticket = *ticket;
      transfer = BeginPrefill(held);
    }
    if (held.end->ok()) ExpectAnswered(held);
    if (!held.end->ok()) Note(*held.end);
    return held.end->ok();
  }
  void Note(const Status& error) {
    errors_.insert(error.code());
    EXPECT_NE(error.message(), "") << error;
  }

  std::unique_ptr<KvPool> prefill_pool_ =
      *KvPool::Create({.layout = kToyLayout, .codec = KvCodec::kBf16, .page_tokens = 8, .pages = 64});
  prefill::PrefillMetrics prefill_metrics_;
  std::unique_ptr<prefill::KvSender> sender_;
  std::unique_ptr<Transport> client_;
  uint64_t last_transfer_ = 0;
  std::map<uint64_t, Status> reports_;
  std::map<uint64_t, PageLease> leases_;
  std::set<absl::StatusCode> errors_;
};

struct FaultCase {
  FaultKind kind;
  Side side;
  KvCodec wire;
};

class HandoffFaultTest : public testing::TestWithParam<FaultCase> {
 protected:
  // How many messages one transfer without faults brings to a side.
  static uint64_t MessagesOfATransfer(KvCodec wire, Side side) {
    FaultyPair pair(wire, {});
    EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(1)));
    for (int i = 0; i < 20; ++i) pair.Round();
    EXPECT_TRUE(pair.errors().empty());
    return pair.received(side);
  }
};

TEST_P(HandoffFaultTest, AtAnyMessageLeavesARightAnswerAndAllPages) {
  const auto [kind, side, wire] = GetParam();
  const uint64_t messages = MessagesOfATransfer(wire, side);
  ASSERT_GE(messages, side == Side::kDecode ? 7u : 2u);
  for (uint64_t message = 0; message < messages; ++message) {
    SCOPED_TRACE(absl::StrCat("message ", message, " of ", messages));
    FaultRule rule = {.kind = kind, .at_message = message, .duration = absl::Milliseconds(5)};
    FaultyPair pair(wire, {.side = side, .policy = {.seed = message + 1, .rules = {rule}}});
    EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(1)));
    EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(2)));  // the next one is not disturbed
    pair.ExpectNothingHeldInTheEnd();
    // An answer may have as few messages to decode as it takes; those back are batched, and may be fewer than counted.
    if (side == Side::kDecode && kind != FaultKind::kTruncate && kind != FaultKind::kCorruptPayload) {
      EXPECT_EQ(pair.struck(), 1u);
    }
    if (kind == FaultKind::kDuplicate || kind == FaultKind::kReorder || kind == FaultKind::kDelay) {
      EXPECT_LE(pair.errors().size(), side == Side::kDecode ? 0u : 1u);
    }
  }
}

std::vector<FaultCase> AllCases() {
  std::vector<FaultCase> cases;
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    for (const Side side : {Side::kDecode, Side::kPrefill}) {
      for (const KvCodec wire : {KvCodec::kBf16, KvCodec::kF32})
        cases.push_back({static_cast<FaultKind>(kind), side, wire});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Faults, HandoffFaultTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  std::string name = absl::StrCat(std::string(kFaultNames[static_cast<size_t>(info.param.kind)]),
                                  info.param.side == Side::kDecode ? "_at_decode_" : "_at_prefill_",
                                  std::string(Name(info.param.wire)));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Where a damaged header ends the connection, its account ends with it; else all comes back without a time running out.
TEST(HandoffFaults, AllCreditComesBackOfFramesThatWereDoubledCutOrDamaged) {
  for (const FaultKind kind :
       {FaultKind::kCorruptHeader, FaultKind::kDuplicate, FaultKind::kTruncate, FaultKind::kCorruptPayload}) {
    for (const Side side : {Side::kDecode, Side::kPrefill}) {
      for (uint64_t message = 0; message < (side == Side::kDecode ? 7 : 2); ++message) {
        SCOPED_TRACE(absl::StrCat(std::string(kFaultNames[static_cast<size_t>(kind)]), " of message ", message));
        const FaultRule rule = {.kind = kind, .at_message = message};
        FaultyPair pair(KvCodec::kBf16, {.side = side, .policy = {.seed = message + 1, .rules = {rule}}});
        EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(1)));
        EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(2)));
        for (int i = 0; i < 300 && pair.kv_bytes_out() > 0; ++i) pair.Round();  // less than result_timeout
        EXPECT_EQ(pair.kv_bytes_out(), 0);
        pair.ExpectNothingHeldInTheEnd();
      }
    }
  }
}

// A damaged frame costs no second prefill.
TEST(HandoffFaults, ADamagedFrameIsSentAgainAndNothingFails) {
  for (const FaultKind kind : {FaultKind::kCorruptPayload, FaultKind::kTruncate}) {
    for (const KvCodec wire : {KvCodec::kBf16, KvCodec::kF32}) {
      for (uint64_t frame = 0; frame < 6; ++frame) {
        const FaultRule rule = {.kind = kind, .at_message = frame};
        FaultyPair pair(wire, {.policy = {.seed = frame, .rules = {rule}}});
        EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(1)));
        EXPECT_EQ(pair.metrics().resends_asked.Value(), 1);
        EXPECT_EQ(pair.metrics().transfers_failed.Value(), 0);
        EXPECT_TRUE(pair.errors().empty());
        pair.ExpectNothingHeldInTheEnd();
      }
    }
  }
}

TEST(HandoffFaults, APrefillThatDiesAtAnyMessageLeavesNothingBehind) {
  for (uint64_t messages = 0; messages < 8; ++messages) {
    FaultyPair pair(KvCodec::kBf16, {});
    pair.each_round = [&] {
      if (pair.received(Side::kDecode) >= messages) pair.KillPrefill();
    };
    (void)pair.Ask(FaultyPair::SomePrompt(1));
    pair.ExpectNothingHeldInTheEnd();
  }
}

// What is on its way when decode dies is over for prefill at once, and its pages come back.
TEST(HandoffFaults, ADecodeThatDiesAtAnyMessageEndsThePrefill) {
  for (uint64_t messages = 0; messages < 7; ++messages) {
    FaultyPair pair(KvCodec::kBf16, {});
    const Status status = pair.DeliverUntilDecodeDies(messages);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

// A peer that goes on but whose messages do not come is given up by the deadlines, and the next try is right.
TEST(HandoffFaults, APeerThatStallsAtAnyMessageIsGivenUp) {
  for (const Side side : {Side::kDecode, Side::kPrefill}) {
    for (uint64_t message = 0; message < (side == Side::kDecode ? 7 : 2); ++message) {
      const FaultRule rule = {.kind = FaultKind::kStall, .at_message = message, .duration = absl::Minutes(5)};
      FaultyPair pair(KvCodec::kBf16, {.side = side, .policy = {.rules = {rule}}});
      EXPECT_TRUE(pair.Ask(FaultyPair::SomePrompt(1)));
      pair.ExpectNothingHeldInTheEnd();
    }
  }
}

// All kinds at once, again and again.
class HandoffStormTest : public testing::TestWithParam<uint64_t> {};

TEST_P(HandoffStormTest, AnswersAreRightOrRefusedAndNoPageIsMissing) {
  const uint64_t seed = GetParam();
  FaultPolicy policy = {.seed = seed};
  for (size_t kind = 0; kind < kFaultKinds; ++kind)
    policy.rules.push_back(
        {.kind = static_cast<FaultKind>(kind), .probability = 0.01, .duration = absl::Milliseconds(5)});
  FaultyPair pair(seed % 2 == 0 ? KvCodec::kBf16 : KvCodec::kF32,
                  {.side = seed % 4 < 2 ? Side::kDecode : Side::kPrefill, .policy = policy});
  int answered = 0;
  for (int i = 0; i < 12; ++i) answered += pair.Ask(FaultyPair::SomePrompt(i)) ? 1 : 0;
  EXPECT_GE(answered, 10);
  pair.ExpectNothingHeldInTheEnd();
}

INSTANTIATE_TEST_SUITE_P(Seeds, HandoffStormTest, testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace sluice::decode
