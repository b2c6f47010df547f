// A whole decode worker but for sockets: real reservations, receiver, pages and generations; the transport is the
// loopback one, the clock moves by hand, and the model is a toy whose KV row holds its token, so that a misplaced row
// or a page with two owners changes what comes out.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "decode/worker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "model/kv_frame.h"
#include "transport/transport.h"

namespace sluice::decode {

// --- the toy model ---

inline constexpr int kToyVocab = 50;
inline constexpr int kToyContext = 200;
inline constexpr KvLayout kToyLayout{.layers = 3, .kv_heads = 2, .head_dim = 16};
inline constexpr int kToyPageTokens = 4;

// [kToyVocab] logits after `tokens`.
std::vector<float> ToyLogits(absl::Span<const TokenId> tokens);
// What the model generates after `prompt`, choice by choice: what every served answer must equal.
std::vector<std::vector<TokenId>> ToyAnswers(const std::vector<TokenId>& prompt, const SamplingParams& sampling);
// Body of a KV frame of the toy's tokens; bf16, which is the pool's own, or f32.
std::string ToyBody(absl::Span<const TokenId> prompt, int layer, int first_token, int tokens,
                    KvCodec wire = KvCodec::kBf16);

// --- the prefill side ---

// Scripted: sends what it is told to and keeps what it is answered.
class Sender final : public Receiver {
 public:
  explicit Sender(uint64_t epoch = 5) : epoch_(epoch) {}
  // Waits for the handshake.
  StatusOr<std::string> Connect(const std::string& address, const proto::Hello& hello);
  void Send(KvFrameHeader header, std::string payload, int flip_payload_byte = -1);
  void SendRaw(std::string header, std::string payload);
  uint64_t NextNumber() { return ++kv_frames_; }  // for a KV frame that SendRaw sends
  std::vector<proto::TransferResult> results() const;
  std::vector<KvFrameHeader> resends() const;  // that were asked for
  uint64_t credit() const;                     // given back so far
  bool closed() const;
  // The process dies.
  void Vanish() { transport_.reset(); }

  StatusOr<std::string> OnHello(ConnectionId, std::string_view) override;
  StatusOr<Landing> OnMessage(ConnectionId, std::string_view header, size_t payload_bytes) override;
  void OnLanded(ConnectionId, uint64_t token, const Status& status) override;
  void OnClosed(ConnectionId, const Status& why) override;

 private:
  const uint64_t epoch_;
  uint64_t kv_frames_ = 0;
  ConnectionId connection_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::string> landings_ ABSL_GUARDED_BY(mutex_);
  std::vector<proto::TransferResult> results_ ABSL_GUARDED_BY(mutex_);
  std::vector<KvFrameHeader> resends_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> credit_landings_ ABSL_GUARDED_BY(mutex_);  // of landings_
  uint64_t credit_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Transport> transport_;
};

// --- the whole ---

class WorkerFixture : public testing::Test {
 protected:
  static constexpr int kPages = 80;
  static constexpr int kConnections = 8;
  static constexpr size_t kCreditBytes = 64 << 10;

  explicit WorkerFixture(int prefix_cache_pages = 0, int64_t local_prefill_tokens = 0, int park_pages = 0,
                         const std::string& park_folder = "");
  ~WorkerFixture() override;

  // A request as the gateway sees it.
  struct Held {
    std::vector<TokenId> prompt;
    SamplingParams sampling;
    proto::Ticket ticket;
    std::shared_ptr<TokenStream> stream;
    // Read from the stream so far.
    std::vector<std::vector<TokenId>> tokens;
    std::optional<Status> end;
    proto::GenerateEvent last;
  };

  static std::vector<TokenId> Prompt(int tokens, int salt = 1);
  static SamplingParams Sampling(int max_tokens, int n = 1);

  StatusOr<proto::ReserveReply> TryReserve(const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                                           absl::Duration time = absl::Minutes(10));
  Held Reserve(std::vector<TokenId> prompt, SamplingParams sampling, bool read = true);
  // One that decode is to compute itself.
  Held ReserveLocal(std::vector<TokenId> prompt, SamplingParams sampling, bool read = true);
  void Attach(Held& held);
  StatusOr<proto::Ticket> Rearm(const Held& held);
  void Release(const Held& held);
  void Leave(const Held& held);

  // Takes turns until `done`, or fails the test after ten seconds.
  void TurnUntil(const std::function<bool()>& done);
  void Turns(int turns);
  // Reads what there is; true once the stream has ended.
  bool Read(Held& held);
  void ReadToEnd(Held& held);

  // What a prefill would send for the request.
  KvFrameHeader Header(const Held& held, FrameKind kind) const;
  KvFrameHeader KvHeader(const Held& held, int layer, int first_token, int tokens) const;  // one layer, in wire_
  void SendKv(Sender& sender, const Held& held, int layer, int first_token, int tokens);
  void SendAllKv(Sender& sender, const Held& held);
  std::string Record(const Held& held) const;
  void SendCommit(Sender& sender, const Held& held);
  std::unique_ptr<Sender> NewSender();

  // After every test, whatever it left behind: each page is in exactly one state, and the end of the worker and its
  // transport brings all of them back.
  void TearDown() override;
  void ExpectAnswered(const Held& held);
  void ExpectNothingHeld();
  int Free() const { return pool_->pages_free(); }

  KvCodec wire_ = KvCodec::kBf16;        // of what SendKv sends
  std::string wire_name_;                // that a record says KV came in; empty: nothing
  std::optional<proto::ShipTime> ship_;  // of what is reserved
  bool only_local_ = false;              // likewise
  proto::KvLayout layout_proto_ = ToProto(kToyLayout);
  ManualClock clock_;
  DecodeMetrics metrics_;
  ClusterKey key_ = ClusterKey::Generate();
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvPark> park_;  // null without pages
  std::unique_ptr<Staging> staging_;
  absl::Duration forward_takes_;  // on the clock
  Status forward_fails_;          // for batches that hold the token below
  TokenId poison_token_ = -1;     // -1: none
  bool poison_with_nan_ = false;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Transport> transport_;
  uint64_t requests_ = 0;

 private:
  StatusOr<absl::Span<const float>> Forward(const Batch& batch, KvPool& pool);

  std::vector<float> logits_;
};

}  // namespace sluice::decode
