// Prefill's sender, a transport and decode's worker in one process, with checksums of the pages on both sides: of every
// layer, row by row and from the pools' own planes, so that neither a wrong layout nor a wrong stride can agree with
// itself.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/proto/convert.h"
#include "common/rng.h"
#include "decode/worker.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "prefill/kv_sender.h"
#include "transport/backends.h"

namespace sluice::decode {

inline constexpr int kVocab = 4096;
inline constexpr int kFamilies = 40;  // of prompts that begin alike
inline constexpr int kPrefillPages = 400;
inline constexpr int kDecodePages = 300;
inline constexpr size_t kUnderWayMax = 12;
inline constexpr Epoch kEpoch{77};

struct ChecksumCase {
  const char* backend;
  KvLayout layout;
  KvCodec codec;
  int prefill_page_tokens = 16;
  int decode_page_tokens = 16;
  int cache_pages = 0;      // of decode
  FaultPolicy faults = {};  // of what comes to decode
};

using Checksums = std::vector<uint32_t>;  // by layer

// Of the first `tokens` tokens in `pages`.
inline Checksums ChecksumsOf(const KvPool& pool, absl::Span<const PageIndex> pages, int64_t tokens) {
  const KvPoolOptions& o = pool.options();
  Checksums checksums;
  for (int layer = 0; layer < o.layout.layers; ++layer) {
    uint32_t crc = 0;
    for (int tensor = 0; tensor < o.layout.tensors(); ++tensor) {
      const PlaneBytes slot = TensorBytes(o.layout, o.codec, 1);
      for (int64_t t = 0; t < tokens; ++t) {
        const KvPlane plane = pool.Plane(pages[static_cast<size_t>(t / o.page_tokens)], layer, tensor);
        const auto at = static_cast<size_t>(t % o.page_tokens);
        crc = Crc32c(plane.codes + at * slot.codes, slot.codes, crc);
        crc = Crc32c(plane.scales + at * slot.scales, slot.scales, crc);
      }
    }
    checksums.push_back(crc);
  }
  return checksums;
}

// Both processes but for gRPC and the model. The test plays the engine of prefill, whose rows are drawn from the tokens
// before them, and the gateway; the engine of decode is asked for one token of each request and looks at its pages.
class ChecksumPair {
 public:
  explicit ChecksumPair(const ChecksumCase& c)
      : layout_(c.layout),
        codec_(c.codec),
        prefill_pool_(*KvPool::Create({c.layout, c.codec, c.prefill_page_tokens, kPrefillPages})),
        decode_pool_(*KvPool::Create({c.layout, c.codec, c.decode_page_tokens, kDecodePages})) {
    WorkerOptions options{.scheduler = {.batch_sequences_max = 8, .admitted_max = 64},
                          .reservations = {.lease = absl::Minutes(5),
                                           .queue_wait_max = absl::Minutes(5),
                                           .reservations_max = 64,
                                           .prefix_cache_pages = c.cache_pages,
                                           .prefix_cache_keep = absl::Minutes(5),
                                           .id_key = 3},
                          .mailbox_messages_max = 256,
                          .stream_tokens_max = 8,
                          .store = c.codec,
                          .wire = {c.codec},
                          .connections_max = 2,
                          .credit_bytes = 512 << 10};
    options.identity.set_role("decode");
    options.identity.set_epoch(kEpoch.value);
    options.identity.set_model_hash("drawn");
    *options.identity.mutable_layout() = ToProto(layout_);
    const ModelFacts model{.eos_ids = {0}, .vocab_size = kVocab, .context_tokens_max = 4096};
    worker_ = std::make_unique<Worker>(
        options, model, key_, [this](const Batch& batch, KvPool&) { return Forward(batch); }, decode_pool_.get(),
        staging_.get(), &clock_, &decode_metrics_);
    server_ = *CreateTransport(c.backend, {.listen_address = "127.0.0.1:0", .faults = c.faults}, worker_->receiver());
    worker_->Start(server_.get());
    const prefill::KvSenderOptions sender_options = {
        .hello = MakeHello("prefill", Epoch{5}, "drawn", ToProto(layout_), c.codec, {c.codec}),
        .send_memory_bytes = 1 << 20,
        .connection_bytes_in_flight_max = 512 << 10,
        .frame_bytes_min = 1 << 10,
        .frame_bytes_max = 64 << 10,
        .connections_max = 2,
        .connect_timeout = absl::Minutes(1),
        .result_timeout = absl::Minutes(1)};
    sender_ = *prefill::KvSender::Create(sender_options, prefill_pool_.get(), &clock_, &prefill_metrics_);
    client_ = *CreateTransport(c.backend, {}, sender_->receiver());
    sender_->Attach(client_.get(), [this](prefill::TransferId id, const prefill::TransferReport& report) {
      Ended(id.value, report.status);
    });
  }
  ~ChecksumPair() {
    sender_->Stop();
    sender_->Poll(clock_.Now());
    client_.reset();
    worker_->Stop();
    worker_->Turn(absl::InfinitePast());
    server_.reset();
  }

  // Starts as many requests, of which every `leaves`-th is given up somewhere on its way (0: none), and follows them to
  // their ends.
  void Run(int requests, int leaves = 0) {
    const absl::Time give_up = absl::Now() + absl::Minutes(5);
    while (started_ < requests || !under_way_.empty()) {
      ASSERT_LT(absl::Now(), give_up) << under_way_.size() << " of " << started_ << " requests did not end";
      if (started_ < requests && under_way_.size() < kUnderWayMax) {
        Start(leaves > 0 && started_ % leaves == leaves - 1);
      }
      Round();
      ASSERT_EQ(decode_pool_->pages_free() + decode_pool_->pages_leased() + decode_pool_->pages_quarantined() +
                    decode_pool_->pages_cached(),
                kDecodePages);
    }
    // What left may have frames on their way still.
    while ((decode_pool_->pages_quarantined() > 0 || !leases_.empty()) && absl::Now() < give_up) Round();
  }

  void ExpectNothingLost() {
    EXPECT_EQ(decode_pool_->pages_leased(), 0);
    EXPECT_EQ(decode_pool_->pages_quarantined(), 0);
    EXPECT_EQ(decode_pool_->pages_free() + decode_pool_->pages_cached(), kDecodePages);
    EXPECT_EQ(decode_metrics_.reservations.Value(), 0);
    EXPECT_EQ(staging_->bytes_free(), staging_->bytes_total());
    EXPECT_EQ(prefill_pool_->pages_free(), kPrefillPages);
  }

  int answered() const { return answered_; }
  int left() const { return left_; }
  int compared() const { return compared_; }
  double late_frames() const { return decode_metrics_.dropped_unknown.Value(); }
  int64_t cached_tokens() const { return cached_tokens_; }
  double bytes_sent() { return prefill_metrics_.kv_bytes_sent(codec_).Value(); }
  double bytes_received() const { return decode_metrics_.kv_bytes_received.Value(); }
  int64_t tokens_sent() const { return tokens_sent_; }

 private:
  struct UnderWay {
    proto::Ticket ticket;
    std::shared_ptr<TokenStream> stream;
    std::vector<TokenId> prompt;
    Checksums sent;        // of the whole prompt in prefill's pages
    int rounds_left = -1;  // until its client leaves; -1: it stays
    bool compared = false;
  };

  // Some prompts begin like others, so that decode has whole pages of them.
  std::vector<TokenId> Prompt(int number) {
    const uint64_t draw = RandomBits(7, static_cast<uint64_t>(number));
    const uint64_t family = draw % (1 + draw / 1024 % kFamilies);  // some more often than others
    const auto shared = static_cast<size_t>(1 + RandomBits(family, 1000) % 40);
    const auto tokens = shared + RandomBits(static_cast<uint64_t>(number), 1001) % 12;
    std::vector<TokenId> prompt;
    for (size_t i = 0; i < tokens; ++i) {
      const uint64_t seed = i < shared ? family : static_cast<uint64_t>(number) + 100'000;
      prompt.push_back(static_cast<TokenId>(RandomBits(seed, i) % kVocab));
    }
    return prompt;
  }

  // The rows of each token are drawn from it and all before it. Writes those of `tokens` from position `from` on.
  void Compute(KvPool& pool, absl::Span<const TokenId> tokens, size_t from, absl::Span<const PageIndex> pages) {
    const auto page_tokens = static_cast<size_t>(pool.options().page_tokens);
    const int width = layout_.row().width();
    std::vector<float> rows(static_cast<size_t>(layout_.rows_per_token() * width));
    const PlaneBytes slot = TensorBytes(layout_, codec_, 1);
    uint64_t state = 1;
    for (size_t t = 0; t < tokens.size(); ++t) {
      state = RandomBits(state, static_cast<uint64_t>(tokens[t]));
      if (t < from) continue;
      for (int layer = 0; layer < layout_.layers; ++layer) {
        for (int tensor = 0; tensor < layout_.tensors(); ++tensor) {
          Rng rng(state + static_cast<uint64_t>(layer * 2 + tensor));
          for (float& x : rows) x = static_cast<float>(rng.Uniform() * 6 - 3);
          const KvPlane plane = pool.Plane(pages[t / page_tokens], layer, tensor);
          (void)Info(codec_).encode(layout_.row(), rows.data(), layout_.rows_per_token(), width,
                                    plane.codes + t % page_tokens * slot.codes,
                                    plane.scales + t % page_tokens * slot.scales);
        }
      }
    }
  }

  void Start(bool leaves) {
    const int number = started_;
    const TokenId first_token = number % (kVocab - 1) + 1;
    if (under_way_.count(first_token) > 0) return;
    UnderWay request{.prompt = Prompt(number)};
    proto::ReserveRequest reserve;
    reserve.set_request_id(static_cast<uint64_t>(number) + 1);
    reserve.set_prompt_tokens(static_cast<uint32_t>(request.prompt.size()));
    *reserve.mutable_prompt_ids() = {request.prompt.begin(), request.prompt.end()};
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = 2;
    sampling.ignore_eos = true;
    *reserve.mutable_sampling() = ToProto(sampling);
    reserve.set_deadline_unix_ms(absl::ToUnixMillis(clock_.Now() + absl::Hours(1)));
    StatusOr<proto::ReserveReply> reply = absl::InternalError("not answered");
    worker_->Reserve(reserve, [&reply](StatusOr<proto::ReserveReply> r) { reply = std::move(r); });
    worker_->Turn(absl::InfinitePast());
    ASSERT_TRUE(reply.ok()) << reply.status();
    if (reply->has_no_room()) return;  // later
    request.ticket = *Open(reply->ticket(), key_);
    ++started_;
    cached_tokens_ += request.ticket.kv_from_token();
    worker_->Attach(GenerateOf(request), [&request](StatusOr<std::shared_ptr<TokenStream>> s) { request.stream = *s; });
    worker_->Turn(absl::InfinitePast());
    if (leaves) request.rounds_left = static_cast<int>(RandomBits(9, static_cast<uint64_t>(number)) % 3);
    Send(request, first_token, static_cast<uint64_t>(number) + 1, reserve.sampling());
    under_way_.emplace(first_token, std::move(request));
  }

  void Send(UnderWay& request, TokenId first_token, uint64_t id, const proto::SamplingParams& sampling) {
    const auto tokens = static_cast<int64_t>(request.prompt.size());
    const int64_t from = request.ticket.kv_from_token();
    PageLease lease = *prefill_pool_->Lease(prefill_pool_->PagesFor(tokens));
    Compute(*prefill_pool_, request.prompt, 0, lease.pages());
    request.sent = ChecksumsOf(*prefill_pool_, lease.pages(), tokens);
    sender_->Begin({id}, request.ticket, {lease.pages().begin(), lease.pages().end()}, clock_.Now() + absl::Minutes(5));
    leases_.emplace(id, std::move(lease));
    // In two chunks, layer by layer, as an engine's steps make them.
    const int64_t middle = from + (tokens - from) / 2;
    for (const auto& [first, end] : {std::pair{from, middle}, std::pair{middle, tokens}}) {
      for (int layer = 0; layer < layout_.layers && first < end; ++layer)
        sender_->Send({id}, {.layer = layer, .first_token = first, .tokens = end - first});
    }
    tokens_sent_ += tokens - from;
    proto::HandoffRecord record;
    record.set_request_id(id);
    *record.mutable_prompt_ids() = {request.prompt.begin(), request.prompt.end()};
    *record.mutable_sampling() = sampling;
    proto::ChoiceState& choice = *record.add_choices();
    choice.add_generated(first_token);
    choice.add_unsent()->set_token(first_token);
    record.set_kv_from_token(static_cast<uint32_t>(from));
    record.set_kv_tokens(static_cast<uint32_t>(tokens));
    record.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(tokens));
    record.mutable_usage()->set_completion_tokens(1);
    sender_->Commit({id}, record);
  }

  // A step of decode: each sequence's first generated token says whose it is.
  StatusOr<absl::Span<const float>> Forward(const Batch& batch) {
    logits_.assign(batch.sequences.size() * kVocab, 0.0f);
    for (const SequenceChunk& chunk : batch.sequences) {
      const auto found = under_way_.find(chunk.tokens[0]);
      if (found == under_way_.end()) continue;  // its client has left in this turn
      UnderWay& request = found->second;
      EXPECT_EQ(chunk.start_position, static_cast<int64_t>(request.prompt.size()));
      EXPECT_FALSE(request.compared) << "decoded twice";
      EXPECT_EQ(ChecksumsOf(*decode_pool_, chunk.pages, chunk.start_position), request.sent)
          << "request " << request.ticket.request_id() << " of " << request.prompt.size() << " tokens, "
          << request.ticket.kv_from_token() << " of them cached";
      request.compared = true;
      ++compared_;
      std::vector<TokenId> tokens = request.prompt;
      tokens.push_back(chunk.tokens[0]);
      Compute(*decode_pool_, tokens, request.prompt.size(), chunk.pages);
    }
    return absl::MakeConstSpan(logits_);
  }

  static proto::GenerateRequest GenerateOf(const UnderWay& request) {
    proto::GenerateRequest generate;
    generate.set_reservation_id(request.ticket.reservation_id());
    generate.set_epoch(kEpoch.value);
    return generate;
  }

  void Round() {
    sender_->Poll(clock_.Now());
    // Frames of those who leave now are on their way.
    EraseWhere([this](UnderWay& request) { return request.rounds_left == 0 && Leave(request); });
    worker_->Turn(absl::Now() + absl::Microseconds(50));
    clock_.Advance(absl::Microseconds(100));
    EraseWhere([this](UnderWay& request) { return HasEnded(request); });
    for (auto& [token, request] : under_way_) --request.rounds_left;
  }
  template <typename Predicate>
  void EraseWhere(Predicate predicate) {
    for (auto it = under_way_.begin(); it != under_way_.end();)
      it = predicate(it->second) ? under_way_.erase(it) : ++it;
  }

  bool HasEnded(UnderWay& request) {
    std::optional<Status> end;
    while (request.stream->Take(&end).has_value()) {
    }
    if (!end.has_value()) return false;
    EXPECT_TRUE(end->ok()) << *end;
    EXPECT_TRUE(request.compared) << "answered without its pages";
    ++answered_;
    return true;
  }
  bool Leave(UnderWay& request) {
    request.stream->Detach();
    worker_->Detach(GenerateOf(request));
    ++left_;
    return true;
  }

  void Ended(uint64_t id, const Status& status) {
    EXPECT_EQ(leases_.erase(id), 1u) << "a transfer ended twice";
    EXPECT_TRUE(status.ok() || absl::IsAborted(status) || absl::IsCancelled(status)) << status;
  }

  const KvLayout layout_;
  const KvCodec codec_;
  ManualClock clock_;
  const ClusterKey key_ = ClusterKey::Generate();
  std::unique_ptr<KvPool> prefill_pool_;
  std::unique_ptr<KvPool> decode_pool_;
  std::unique_ptr<Staging> staging_ = *Staging::Create(1 << 20);
  DecodeMetrics decode_metrics_;
  prefill::PrefillMetrics prefill_metrics_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<prefill::KvSender> sender_;
  std::unique_ptr<Transport> client_;
  std::map<TokenId, UnderWay> under_way_;  // by their first generated token
  std::map<uint64_t, PageLease> leases_;   // prefill's, by transfer
  std::vector<float> logits_;
  int started_ = 0;
  int answered_ = 0;
  int left_ = 0;
  int compared_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t tokens_sent_ = 0;
};

}  // namespace sluice::decode
