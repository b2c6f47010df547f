#include "tests/decode/worker_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/synchronization/notification.h"
#include "common/proto/convert.h"
#include "common/rng.h"
#include "model/kv_body.h"
#include "transport/backends.h"

namespace sluice::decode {

namespace {
constexpr Epoch kEpoch{4242};
constexpr char kModelHash[] = "toy";
constexpr size_t kRowBytes = 32;  // 16 channels of bf16

struct ToyRow {
  int32_t token = 0;
  int32_t position = 0;
  int32_t layer = 0;
  int32_t value = 0;  // 0 in K, 1 in V
};

void WriteRow(std::byte* row, ToyRow content) {
  std::memset(row, 0, kRowBytes);
  std::memcpy(row, &content, sizeof(content));
}

ToyRow ReadRow(const std::byte* row) {
  ToyRow content;
  std::memcpy(&content, row, sizeof(content));
  return content;
}

GenerationContext ToyContext(const std::vector<TokenId>& prompt, const SamplingParams& sampling) {
  return {.sampling = sampling,
          .prompt_ids = prompt,
          .eos_ids = {0},
          .vocab_size = kToyVocab,
          .positions_max = kToyContext};
}
}  // namespace

std::vector<float> ToyLogits(absl::Span<const TokenId> tokens) {
  uint64_t state = 1;
  for (const TokenId token : tokens) state = RandomBits(state, static_cast<uint64_t>(token));
  std::vector<float> logits(kToyVocab);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(4 * RandomUniform(state, i));
  return logits;
}

std::vector<std::vector<TokenId>> ToyAnswers(const std::vector<TokenId>& prompt, const SamplingParams& sampling) {
  const GenerationContext context = ToyContext(prompt, sampling);
  std::vector<std::vector<TokenId>> answers;
  for (int i = 0; i < sampling.n; ++i) {
    Generation generation(&context, i);
    std::vector<TokenId> tokens = prompt;
    while (!generation.finished()) tokens.push_back(generation.Step(ToyLogits(tokens))->token());
    answers.emplace_back(tokens.begin() + static_cast<ptrdiff_t>(prompt.size()), tokens.end());
  }
  return answers;
}

namespace {
// bf16 is the upper half of f32.
std::string Widened(const std::string& bf16) {
  std::string f32;
  for (size_t i = 0; i < bf16.size(); i += 2) f32.append(2, '\0').append(bf16, i, 2);
  return f32;
}
}  // namespace

std::string ToyBody(absl::Span<const TokenId> prompt, int layer, int first_token, int tokens, KvCodec wire) {
  std::string body(BodyBytes(kToyLayout, KvCodec::kBf16, 1, tokens), '\0');
  const size_t half = body.size() / 2;
  for (int value = 0; value < 2; ++value) {
    for (int t = 0; t < tokens; ++t) {
      for (int head = 0; head < kToyLayout.kv_heads; ++head) {
        const size_t row = static_cast<size_t>(t * kToyLayout.kv_heads + head);
        WriteRow(reinterpret_cast<std::byte*>(body.data()) + static_cast<size_t>(value) * half + row * kRowBytes,
                 {prompt[static_cast<size_t>(first_token + t)], first_token + t, layer, value});
      }
    }
  }
  return wire == KvCodec::kF32 ? Widened(body) : body;
}

// --- Sender ---

StatusOr<std::string> Sender::Connect(const std::string& address, const proto::Hello& hello) {
  SLUICE_ASSIGN_OR_RETURN(transport_, CreateTransport("loopback", {}, this));
  proto::Hello mine = hello;
  mine.set_role("prefill");
  mine.set_epoch(epoch_);
  StatusOr<std::string> reply;
  absl::Notification done;
  connection_ = transport_->Connect(address, mine.SerializeAsString(), absl::Seconds(5), [&](StatusOr<std::string> r) {
    reply = std::move(r);
    done.Notify();
  });
  done.WaitForNotification();
  return reply;
}

void Sender::Send(KvFrameHeader header, std::string payload, int flip_payload_byte) {
  header.payload_bytes = payload.size();
  if (header.kind == FrameKind::kKv) header.number = NextNumber();
  auto bytes = std::make_shared<std::string>(std::move(payload));
  const absl::Span<const std::byte> span(reinterpret_cast<const std::byte*>(bytes->data()), bytes->size());
  std::string encoded = Encode(header, span);
  if (flip_payload_byte >= 0) (*bytes)[static_cast<size_t>(flip_payload_byte)] ^= 0x10;
  transport_->Send(connection_, std::move(encoded), span, [bytes](const Status&) {});
}

void Sender::SendRaw(std::string header, std::string payload) {
  auto bytes = std::make_shared<const std::string>(std::move(payload));
  const absl::Span<const std::byte> span(reinterpret_cast<const std::byte*>(bytes->data()), bytes->size());
  transport_->Send(connection_, std::move(header), span, [bytes](const Status&) {});
}

std::vector<proto::TransferResult> Sender::results() const {
  absl::MutexLock lock(&mutex_);
  return results_;
}

std::vector<KvFrameHeader> Sender::resends() const {
  absl::MutexLock lock(&mutex_);
  return resends_;
}

uint64_t Sender::credit() const {
  absl::MutexLock lock(&mutex_);
  return credit_;
}

bool Sender::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

StatusOr<std::string> Sender::OnHello(ConnectionId, std::string_view) { return absl::InternalError("not a listener"); }

StatusOr<Landing> Sender::OnMessage(ConnectionId, std::string_view header, size_t payload_bytes) {
  const KvFrameHeader decoded = *DecodeKvFrameHeader(header);
  absl::MutexLock lock(&mutex_);
  if (decoded.kind == FrameKind::kResend) {
    EXPECT_EQ(payload_bytes, 0u);
    resends_.push_back(decoded);
    return Landing{.drop = true};
  }
  const uint64_t token = landings_.size() + 1;
  if (decoded.kind == FrameKind::kCredit) {
    credit_landings_.insert(token);
  } else {
    EXPECT_EQ(decoded.kind, FrameKind::kResult);
  }
  std::string& memory = landings_.emplace(token, std::string(payload_bytes, '\0')).first->second;
  return Landing{.memory = {absl::MakeSpan(reinterpret_cast<std::byte*>(memory.data()), memory.size())},
                 .token = token};
}

void Sender::OnLanded(ConnectionId, uint64_t token, const Status& status) {
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) return;
  const std::string& payload = landings_.at(token);
  if (credit_landings_.contains(token)) {
    credit_ = *DecodeCredit({reinterpret_cast<const std::byte*>(payload.data()), payload.size()});
  } else {
    results_.push_back(*ParseTransferResult(payload));
  }
}

void Sender::OnClosed(ConnectionId, const Status&) {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

// --- WorkerFixture ---

WorkerFixture::WorkerFixture(int prefix_cache_pages, int64_t local_prefill_tokens, int park_pages,
                             const std::string& park_folder) {
  pool_ = *KvPool::Create({.layout = kToyLayout, .page_tokens = kToyPageTokens, .pages = kPages});
  if (park_pages > 0) {
    park_ = *KvPark::Create({.bytes = pool_->page_bytes() * static_cast<size_t>(park_pages), .folder = park_folder},
                            pool_->page_bytes());
  }
  staging_ = *Staging::Create(kConnections * kCreditBytes);
  WorkerOptions options{.scheduler = {.batch_sequences_max = 4, .admitted_max = 16},
                        .reservations = {.lease = absl::Seconds(10),
                                         .queue_wait_max = absl::Seconds(60),
                                         .reservations_max = 64,
                                         .prefix_cache_pages = prefix_cache_pages,
                                         .prefix_cache_keep = absl::Minutes(5),
                                         .growth_tokens = 8,
                                         .id_key = 3},
                        .mailbox_messages_max = 32,
                        .stream_tokens_max = 8,
                        .local_prefill_tokens_max = local_prefill_tokens,
                        .local_prefill_chunk_tokens = 4,
                        .prefill_tokens_per_s_guess = 100,
                        .store = KvCodec::kBf16,
                        .wire = {KvCodec::kBf16, KvCodec::kF32},
                        .connections_max = kConnections,
                        .credit_bytes = kCreditBytes};
  options.identity.set_role("decode");
  options.identity.set_epoch(kEpoch.value);
  options.identity.set_model_hash(kModelHash);
  *options.identity.mutable_layout() = layout_proto_;
  const ModelFacts model{.eos_ids = {0}, .vocab_size = kToyVocab, .context_tokens_max = kToyContext};
  worker_ = std::make_unique<Worker>(
      options, model, key_, [this](const Batch& batch, KvPool& pool) { return Forward(batch, pool); }, pool_.get(),
      staging_.get(), &clock_, &metrics_, park_.get());
  transport_ = *CreateTransport("loopback", {.listen_address = "decode:0"}, worker_->receiver());
  worker_->Start(transport_.get());
}

WorkerFixture::~WorkerFixture() = default;

StatusOr<absl::Span<const float>> WorkerFixture::Forward(const Batch& batch, KvPool& pool) {
  clock_.Advance(forward_takes_);
  logits_.clear();
  for (const SequenceChunk& chunk : batch.sequences) {
    const bool poisoned = std::find(chunk.tokens.begin(), chunk.tokens.end(), poison_token_) != chunk.tokens.end();
    if (poisoned && !forward_fails_.ok()) return forward_fails_;
    std::vector<TokenId> tokens;
    const int64_t end = chunk.start_position + static_cast<int64_t>(chunk.tokens.size());
    for (int64_t position = 0; position < end; ++position) {
      const PageIndex page = chunk.pages[static_cast<size_t>(position / kToyPageTokens)];
      const size_t slot = static_cast<size_t>(position % kToyPageTokens) * kToyLayout.kv_heads;
      for (int layer = 0; layer < kToyLayout.layers; ++layer) {
        for (size_t row = slot; row < slot + kToyLayout.kv_heads; ++row) {
          std::byte* const k = pool.Plane(page, layer, 0).codes + row * kRowBytes;
          std::byte* const v = pool.Plane(page, layer, 1).codes + row * kRowBytes;
          if (position >= chunk.start_position) {
            const TokenId token = chunk.tokens[static_cast<size_t>(position - chunk.start_position)];
            WriteRow(k, {token, static_cast<int32_t>(position), layer, 0});
            WriteRow(v, {token, static_cast<int32_t>(position), layer, 1});
          }
          const ToyRow key = ReadRow(k);
          const ToyRow value = ReadRow(v);
          EXPECT_EQ(key.position, position);
          EXPECT_EQ(key.layer, layer);
          EXPECT_EQ(key.value, 0);
          EXPECT_EQ(value.value, 1);
          EXPECT_EQ(key.token, value.token);
          if (layer == 0 && row == slot) tokens.push_back(key.token);
          EXPECT_EQ(key.token, tokens.back());
        }
      }
    }
    if (chunk.logits == LogitsFor::kNone) continue;
    const std::vector<float> logits = ToyLogits(tokens);
    logits_.insert(logits_.end(), logits.begin(), logits.end());
    if (poisoned && poison_with_nan_) {
      logits_.back() = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return absl::MakeConstSpan(logits_);
}

std::vector<TokenId> WorkerFixture::Prompt(int tokens, int salt) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < tokens; ++i) {
    prompt.push_back(
        static_cast<TokenId>(RandomBits(static_cast<uint64_t>(salt), static_cast<uint64_t>(i)) % kToyVocab));
  }
  return prompt;
}

SamplingParams WorkerFixture::Sampling(int max_tokens, int n) {
  SamplingParams sampling;
  sampling.max_tokens = max_tokens;
  sampling.n = n;
  sampling.seed = 11;
  sampling.ignore_eos = true;
  return sampling;
}

StatusOr<proto::ReserveReply> WorkerFixture::TryReserve(const std::vector<TokenId>& prompt,
                                                        const SamplingParams& sampling, absl::Duration time) {
  proto::ReserveRequest request;
  request.set_request_id(++requests_);
  request.set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  *request.mutable_prompt_ids() = {prompt.begin(), prompt.end()};
  if (ship_) *request.mutable_ship() = *ship_;
  request.set_only_local(only_local_);
  *request.mutable_sampling() = ToProto(sampling);
  request.set_deadline_unix_ms(absl::ToUnixMillis(clock_.Now() + time));
  StatusOr<proto::ReserveReply> reply = absl::InternalError("not answered");
  worker_->Reserve(request, [&reply](StatusOr<proto::ReserveReply> r) { reply = std::move(r); });
  Turns(1);
  return reply;
}

WorkerFixture::Held WorkerFixture::Reserve(std::vector<TokenId> prompt, SamplingParams sampling, bool read) {
  const auto reply = TryReserve(prompt, sampling);
  SLUICE_CHECK(reply.ok() && reply->has_ticket());
  Held held{.prompt = std::move(prompt), .sampling = std::move(sampling), .ticket = *Open(reply->ticket(), key_)};
  held.tokens.resize(static_cast<size_t>(held.sampling.n));
  if (read) Attach(held);
  return held;
}

WorkerFixture::Held WorkerFixture::ReserveLocal(std::vector<TokenId> prompt, SamplingParams sampling, bool read) {
  const auto reply = TryReserve(prompt, sampling);
  SLUICE_CHECK(reply.ok() && reply->local());
  Held held{.prompt = std::move(prompt), .sampling = std::move(sampling)};
  held.ticket.set_reservation_id(reply->reservation_id());
  held.ticket.set_decode_epoch(reply->epoch());
  held.tokens.resize(static_cast<size_t>(held.sampling.n));
  if (read) Attach(held);
  return held;
}

void WorkerFixture::Attach(Held& held) {
  proto::GenerateRequest request;
  request.set_reservation_id(held.ticket.reservation_id());
  request.set_epoch(held.ticket.decode_epoch());
  worker_->Attach(request, [&held](StatusOr<std::shared_ptr<TokenStream>> stream) { held.stream = *stream; });
  Turns(1);
}

StatusOr<proto::Ticket> WorkerFixture::Rearm(const Held& held) {
  proto::RearmRequest request;
  request.set_reservation_id(held.ticket.reservation_id());
  request.set_epoch(held.ticket.decode_epoch());
  StatusOr<proto::ReserveReply> reply = absl::InternalError("not answered");
  worker_->Rearm(request, [&reply](StatusOr<proto::ReserveReply> r) { reply = std::move(r); });
  Turns(1);
  if (!reply.ok()) return reply.status();
  return Open(reply->ticket(), key_);
}

void WorkerFixture::Release(const Held& held) {
  proto::ReleaseRequest request;
  request.set_reservation_id(held.ticket.reservation_id());
  request.set_epoch(held.ticket.decode_epoch());
  Status status = absl::InternalError("not answered");
  worker_->Release(request, [&status](const StatusOr<proto::ReleaseReply>& reply) { status = reply.status(); });
  Turns(1);
  EXPECT_TRUE(status.ok()) << status;
}

void WorkerFixture::Leave(const Held& held) {
  proto::GenerateRequest request;
  request.set_reservation_id(held.ticket.reservation_id());
  request.set_epoch(held.ticket.decode_epoch());
  held.stream->Detach();
  worker_->Detach(request);
  Turns(1);
}

void WorkerFixture::TurnUntil(const std::function<bool()>& done) {
  const absl::Time give_up = absl::Now() + absl::Seconds(10);
  while (!done()) {
    ASSERT_LT(absl::Now(), give_up) << "nothing happened";
    worker_->Turn(absl::Now() + absl::Milliseconds(5));
  }
}

void WorkerFixture::Turns(int turns) {
  for (int i = 0; i < turns; ++i) worker_->Turn(absl::InfinitePast());
}

bool WorkerFixture::Read(Held& held) {
  while (auto event = held.stream->Take(&held.end)) {
    for (const auto& token : event->tokens()) held.tokens[event->choice()].push_back(token.token());
    if (event->last()) held.last = *event;
  }
  return held.end.has_value();
}

void WorkerFixture::ReadToEnd(Held& held) {
  TurnUntil([this, &held] { return Read(held); });
}

KvFrameHeader WorkerFixture::Header(const Held& held, FrameKind kind) const {
  KvFrameHeader header;
  header.kind = kind;
  header.request = RequestId{held.ticket.request_id()};
  header.reservation = ReservationId{held.ticket.reservation_id()};
  header.epoch = Epoch{held.ticket.decode_epoch()};
  header.generation = Tenure{held.ticket.generation()};
  header.layout_hash = held.ticket.layout_hash();
  return header;
}

KvFrameHeader WorkerFixture::KvHeader(const Held& held, int layer, int first_token, int tokens) const {
  KvFrameHeader header = Header(held, FrameKind::kKv);
  header.codec = wire_;
  header.layer = static_cast<uint16_t>(layer);
  header.layers = 1;
  header.first_token = static_cast<uint32_t>(first_token);
  header.tokens = static_cast<uint32_t>(tokens);
  return header;
}

void WorkerFixture::SendKv(Sender& sender, const Held& held, int layer, int first_token, int tokens) {
  sender.Send(KvHeader(held, layer, first_token, tokens), ToyBody(held.prompt, layer, first_token, tokens, wire_));
}

void WorkerFixture::SendAllKv(Sender& sender, const Held& held) {
  for (int layer = 0; layer < kToyLayout.layers; ++layer) {
    const int from = static_cast<int>(held.ticket.kv_from_token());
    SendKv(sender, held, layer, from, static_cast<int>(held.prompt.size()) - from);
  }
}

std::string WorkerFixture::Record(const Held& held) const {
  const GenerationContext context = ToyContext(held.prompt, held.sampling);
  proto::HandoffRecord record;
  record.set_request_id(held.ticket.request_id());
  *record.mutable_prompt_ids() = {held.prompt.begin(), held.prompt.end()};
  *record.mutable_sampling() = ToProto(held.sampling);
  bool any_goes_on = false;
  for (int i = 0; i < held.sampling.n; ++i) {
    Generation generation(&context, i);
    const proto::GeneratedToken first = *generation.Step(ToyLogits(held.prompt));
    proto::ChoiceState& choice = *record.add_choices();
    choice = generation.State();
    *choice.add_unsent() = first;
    any_goes_on |= !generation.finished();
  }
  record.set_kv_from_token(held.ticket.kv_from_token());
  record.set_kv_tokens(any_goes_on ? static_cast<uint32_t>(held.prompt.size()) : held.ticket.kv_from_token());
  record.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(held.prompt.size()));
  record.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(held.sampling.n));
  record.set_wire_codec(wire_name_);
  return record.SerializeAsString();
}

void WorkerFixture::SendCommit(Sender& sender, const Held& held) {
  sender.Send(Header(held, FrameKind::kCommit), Record(held));
}

std::unique_ptr<Sender> WorkerFixture::NewSender() {
  auto sender = std::make_unique<Sender>();
  const auto reply = sender->Connect(transport_->address(), MakeHello("prefill", Epoch{5}, kModelHash, layout_proto_,
                                                                      KvCodec::kBf16, {KvCodec::kBf16, KvCodec::kF32}));
  EXPECT_TRUE(reply.ok()) << reply.status();
  return sender;
}

void WorkerFixture::TearDown() {
  EXPECT_EQ(pool_->pages_free() + pool_->pages_leased() + pool_->pages_quarantined() + pool_->pages_cached(), kPages);
  worker_->Stop();
  worker_->Turn(absl::InfinitePast());
  transport_.reset();
  worker_.reset();
  EXPECT_EQ(pool_->pages_free(), kPages);
  if (park_ != nullptr) {
    EXPECT_EQ(park_->pages_free(), park_->pages_total());
  }
  EXPECT_EQ(staging_->bytes_free(), staging_->bytes_total());
}

void WorkerFixture::ExpectAnswered(const Held& held) {
  ASSERT_TRUE(held.end.has_value());
  EXPECT_TRUE(held.end->ok()) << *held.end;
  const auto answers = ToyAnswers(held.prompt, held.sampling);
  EXPECT_EQ(held.tokens, answers);
  size_t completion_tokens = 0;
  for (const auto& answer : answers) completion_tokens += answer.size();
  EXPECT_TRUE(held.last.last());
  EXPECT_EQ(held.last.usage().prompt_tokens(), held.prompt.size());
  EXPECT_EQ(held.last.usage().completion_tokens(), completion_tokens);
}

void WorkerFixture::ExpectNothingHeld() {
  Turns(1);
  EXPECT_EQ(pool_->pages_free() + pool_->pages_cached(), pool_->pages_total());
  EXPECT_EQ(pool_->pages_quarantined(), 0);
  EXPECT_EQ(staging_->bytes_free(), staging_->bytes_total());
  EXPECT_EQ(metrics_.reservations.Value(), 0);
}

}  // namespace sluice::decode
