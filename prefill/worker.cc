#include "prefill/worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/proto/convert.h"
#include "model/first_tokens.h"
#include "spdlog/spdlog.h"

namespace sluice::prefill {

namespace {

// Ends of calls and of transfers, each at most twice a request: bounded by the requests.
size_t MailboxMessagesMax(const WorkerOptions& options) { return static_cast<size_t>(options.requests_max) * 4 + 16; }

constexpr double kRateMemorySeconds = 10;  // of computing, after which a measurement weighs 1/e

}  // namespace

Worker::Worker(const WorkerOptions& options, Forward forward, KvPool* pool, const Tokenizer* tokenizer,
               KvSender* sender, PrefillMetrics* metrics, const Clock* clock)
    : options_(options),
      forward_(std::move(forward)),
      pool_(pool),
      tokenizer_(tokenizer),
      sender_(sender),
      metrics_(metrics),
      clock_(clock),
      mailbox_(MailboxMessagesMax(options)),
      prefixes_(pool, options.prefix_cache_pages) {
  absl::MutexLock lock(&mutex_);
  load_.pages_free = pool->pages_free();
  load_.tokens_per_s = options.tokens_per_s_guess;
  metrics_->kv_pages_total.Set(pool->pages_total());
  metrics_->kv_pages_free.Set(pool->pages_free());
  metrics_->tokens_per_second.Set(options.tokens_per_s_guess);
  sender_->SetTokensPerSecond(options.tokens_per_s_guess);
}

// --- any thread ---

StatusOr<PromptId> Worker::Submit(proto::PrefillRequest request, proto::Ticket ticket, Done done) {
  auto prompt = std::make_unique<Prompt>();
  prompt->arrival = clock_->Now();
  prompt->deadline = absl::FromUnixMillis(request.deadline_unix_ms());
  prompt->request = std::move(request);
  prompt->ticket = std::move(ticket);
  if (prompt->ticket.has_policy()) {
    SLUICE_ASSIGN_OR_RETURN(prompt->policy, FromProto(prompt->ticket.policy()));
  }
  prompt->done = std::move(done);
  const int64_t tokens = prompt->tokens();
  const int64_t pool_tokens = static_cast<int64_t>(pool_->pages_total()) * pool_->options().page_tokens;
  if (PagesFor(*prompt) > pool_->pages_total()) {
    const int64_t kept = prompt->policy.Kept(tokens);
    return absl::OutOfRangeError(absl::StrCat("the prompt has ", tokens, " tokens",
                                              kept < tokens ? absl::StrCat(" and ", kept, " kept of them") : "",
                                              ", prefill's KV pool holds ", pool_tokens));
  }
  if (PruningBytesFor(*prompt) > options_.pruning_bytes_max) {
    return absl::OutOfRangeError(absl::StrCat("to prune ", tokens, " tokens by ", ToString(prompt->policy), " takes ",
                                              PruningBytesFor(*prompt), " bytes, prefill has ",
                                              options_.pruning_bytes_max));
  }

  absl::MutexLock lock(&mutex_);
  if (load_.draining) return absl::UnavailableError("prefill is draining");
  if (load_.requests >= options_.requests_max)
    return absl::ResourceExhaustedError(
        absl::StrCat("prefill has ", load_.requests, " requests, at most ", options_.requests_max));
  if (load_.queued_tokens > 0 && load_.queued_tokens + tokens > options_.queued_tokens_max)
    return absl::ResourceExhaustedError(absl::StrCat("prefill has ", load_.queued_tokens,
                                                     " prompt tokens waiting, at most ", options_.queued_tokens_max));
  prompt->id = {++last_id_};
  const PromptId id = prompt->id;
  ++load_.requests;
  load_.queued_tokens += tokens;
  // std::function copies its closure, so the prompt travels as a plain pointer; the message always runs.
  mailbox_.Post([this, raw = prompt.release()] { Accept(std::unique_ptr<Prompt>(raw)); });
  return id;
}

void Worker::Cancel(PromptId id) {
  mailbox_.Post([this, id] { OnCancel(id); });
}

void Worker::TransferEnded(TransferId id, const TransferReport& report) {
  mailbox_.Post([this, id, report] { OnTransferEnded({id.value}, report); });
}

Worker::Load Worker::load() const {
  absl::MutexLock lock(&mutex_);
  return load_;
}

bool Worker::Drain(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  load_.draining = true;
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return load_.requests == 0; };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

void Worker::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    load_.draining = true;
  }
  mailbox_.Post([this] {
    stopping_ = true;
    std::vector<Prompt*> all;
    for (const auto& [id, prompt] : prompts_) all.push_back(prompt.get());
    for (Prompt* prompt : all) GiveUp(*prompt, absl::UnavailableError("prefill is stopping"));
  });
}

// --- the engine thread ---

void Worker::Serve() {
  absl::Time wake_at = clock_->Now();
  while (!stopping_ || !prompts_.empty()) {
    std::vector<Message> messages = mailbox_.TakeAll(wake_at);
    for (Message& message : messages) message();
    wake_at = Step(clock_->Now());
  }
}

// Life of a request, step 4: the oldest prompts' next tokens share a forward pass; what it leaves in the pages goes to
// the sender while the next pass computes, and a prompt's last pass also gives the first tokens.
absl::Time Worker::Step(absl::Time now) {
  for (Message& message : mailbox_.TakeAll(absl::InfinitePast())) message();
  std::vector<Prompt*> prompts;
  const Decision decision = Decide(now, &prompts);
  if (!decision.chunks.empty()) RunChunks(decision.chunks, prompts);
  Publish();
  return decision.chunks.empty() ? decision.wake_at : now;
}

// What a prompt finds in the cache shows when it starts, and may leave room in the step for another one.
Decision Worker::Decide(absl::Time now, std::vector<Prompt*>* prompts) {
  for (;;) {
    prompts->clear();
    std::vector<PromptView> views;
    bool first_in_line = true;
    for (const auto& [id, prompt] : prompts_) {
      if (prompt->state != PromptState::kQueued && prompt->state != PromptState::kComputing) continue;
      prompts->push_back(prompt.get());
      views.push_back(View(*prompt));
      // Pages that others hold anyway need no room. Asked for the first in line only, since nobody overtakes it.
      if (!views.back().started && std::exchange(first_in_line, false))
        views.back().pages_needed -= prefixes_.PinnedPages(kFullPolicy, Reusable(*prompt));
    }
    Decision decision = Next(now, options_.limits, views, pool_->pages_free() + prefixes_.pages_evictable(),
                             options_.pruning_bytes_max - pruning_bytes_used_);
    for (const size_t i : decision.cancelled) GiveUp(*(*prompts)[i], absl::CancelledError("cancelled by the caller"));
    for (const size_t i : decision.expired)
      GiveUp(*(*prompts)[i], absl::DeadlineExceededError(absl::StrCat("the request's time is over: ",
                                                                      std::string(Name((*prompts)[i]->state)))));
    for (const size_t i : decision.start) Start(*(*prompts)[i], now);
    if (decision.start.empty()) return decision;
  }
}

void Worker::Accept(std::unique_ptr<Prompt> prompt) {
  const proto::PrefillRequest& request = prompt->request;
  prompt->generation = {.tokenizer = tokenizer_,
                        .sampling = FromProto(request.sampling()),
                        .prompt_ids = {request.prompt_ids().begin(), request.prompt_ids().end()},
                        .eos_ids = options_.eos_ids,
                        .vocab_size = options_.vocab_size,
                        .positions_max = prompt->policy.PositionsMax(options_.context_tokens_max)};
  Prompt& accepted = *(prompts_[prompt->id] = std::move(prompt));
  if (stopping_) GiveUp(accepted, absl::UnavailableError("prefill is stopping"));
}

void Worker::OnCancel(PromptId id) {
  const auto it = prompts_.find(id);
  if (it == prompts_.end()) return;
  it->second->cancelled = true;  // for the scheduler; it looks at these no more:
  if (it->second->state == PromptState::kHandingOff)
    GiveUp(*it->second, absl::CancelledError("cancelled by the caller"));
}

void Worker::OnTransferEnded(PromptId id, const TransferReport& report) {
  Prompt& prompt = *prompts_.at(id);
  const bool was_given_up = prompt.state == PromptState::kStopping;
  SLUICE_CHECK(Apply(prompt, PromptEvent::kTransferEnded));
  if (was_given_up) return Answer(prompt, prompt.why);
  if (!report.status.ok()) return Answer(prompt, report.status);
  prompt.times.set_transfer_us(absl::ToInt64Microseconds(report.handoff));
  metrics_->transfer_seconds.Observe(absl::ToDoubleSeconds(report.handoff));
  const int64_t sent = prompt.policy.Kept(prompt.tokens()) - prompt.ticket.kv_from_token();
  CountHandedOver(sent, report.handoff);
  metrics_->kv_tokens_sent.Increment(static_cast<double>(sent));
  metrics_->kv_tokens_skipped.Increment(static_cast<double>(prompt.tokens() - prompt.policy.Kept(prompt.tokens())));
  proto::PrefillReply reply;
  *reply.mutable_times() = prompt.times;
  reply.set_kv_bytes(report.kv_bytes);
  Answer(prompt, reply);
}

PromptView Worker::View(const Prompt& prompt) const {
  return {.prompt_tokens = prompt.tokens(),
          .computed_tokens = prompt.computed_tokens,
          .pages_needed = PagesFor(prompt),
          .pruning_bytes_needed = PruningBytesFor(prompt),
          .started = prompt.state == PromptState::kComputing,
          .cancelled = prompt.cancelled,
          .deadline = prompt.deadline};
}

absl::Span<const TokenId> Worker::Reusable(const Prompt& prompt) const {
  const int64_t scored = prompt.policy.QueriesScored(prompt.tokens());
  const int64_t reusable = prompt.tokens() - std::max<int64_t>(1, scored);
  return absl::MakeConstSpan(prompt.generation.prompt_ids).first(static_cast<size_t>(reusable));
}

int Worker::PagesFor(const Prompt& prompt) const {
  return pool_->PagesFor(prompt.tokens()) + Pruning::PagesFor(prompt.policy, *pool_, prompt.tokens());
}

int64_t Worker::PruningBytesFor(const Prompt& prompt) const {
  return Pruning::BytesToCompute(prompt.policy, pool_->options().layout, prompt.tokens());
}

void Worker::SetPruningBytes(Prompt& prompt, int64_t bytes) {
  pruning_bytes_used_ += bytes - std::exchange(prompt.pruning_bytes, bytes);
}

void Worker::Start(Prompt& prompt, absl::Time now) {
  PrefixTree::Hit hit = prefixes_.Match(now, kFullPolicy, Reusable(prompt));
  const int fresh_pages = pool_->PagesFor(prompt.tokens()) - static_cast<int>(hit.pages.pages().size());
  const int kept_pages = Pruning::PagesFor(prompt.policy, *pool_, prompt.tokens());
  prefixes_.Evict(fresh_pages + kept_pages - pool_->pages_free());
  SLUICE_CHECK(hit.pages.Extend(fresh_pages).ok() && Apply(prompt, PromptEvent::kStart));
  prompt.pages = std::move(hit.pages);
  if (prompt.policy.kind != CachePolicyKind::kFull) {
    StatusOr<PageLease> kept = pool_->Lease(kept_pages);
    SLUICE_CHECK(kept.ok());
    SetPruningBytes(prompt, PruningBytesFor(prompt));
    prompt.pruning = std::make_unique<Pruning>(prompt.policy, pool_, prompt.tokens(), *std::move(kept));
  }
  prompt.pin = std::move(hit.pin);
  prompt.cached_tokens = prompt.computed_tokens = hit.tokens;
  prompt.started = now;
  prompt.times.set_queued_us(absl::ToInt64Microseconds(now - prompt.arrival));
  metrics_->queue_seconds.Observe(absl::ToDoubleSeconds(now - prompt.arrival));
  metrics_->prefix_hit_tokens.Increment(static_cast<double>(hit.tokens));
  metrics_->prefix_miss_tokens.Increment(static_cast<double>(prompt.tokens() - hit.tokens));
  {
    absl::MutexLock lock(&mutex_);
    load_.queued_tokens -= hit.tokens;
  }
  const absl::Span<const PageIndex> sent = prompt.prunes() ? prompt.pruning->pages() : prompt.pages.pages();
  sender_->Begin({prompt.id.value}, prompt.ticket, {sent.begin(), sent.end()}, prompt.deadline);
  // What the cache had is as final as it will ever be, where all of it is sent.
  if (prompt.prunes()) return;
  if (options_.send_when != SendWhen::kPrompt) SendAllLayers(prompt, 0, hit.tokens);
}

void Worker::RunChunks(const std::vector<Chunk>& chunks, const std::vector<Prompt*>& prompts) {
  Batch batch;
  int64_t tokens = 0;
  for (const Chunk& chunk : chunks) {
    const Prompt& prompt = *prompts[chunk.prompt];
    const absl::Span<const TokenId> ids = prompt.generation.prompt_ids;
    batch.sequences.push_back(
        {.tokens = ids.subspan(static_cast<size_t>(chunk.first_token), static_cast<size_t>(chunk.tokens)),
         .start_position = chunk.first_token,
         .pages = prompt.pages.pages(),
         .logits = chunk.last ? LogitsFor::kLast : LogitsFor::kNone,
         .scores = prompt.pruning != nullptr ? prompt.pruning->scores() : nullptr});
    tokens += chunk.tokens;
  }
  if (options_.send_when == SendWhen::kLayer) {
    batch.on_layer_stored = [&](int layer) {
      for (const Chunk& chunk : chunks) {
        const Prompt& prompt = *prompts[chunk.prompt];
        if (prompt.prunes()) continue;
        SendKv(prompt, {.layer = layer, .first_token = chunk.first_token, .tokens = chunk.tokens});
      }
    };
  }
  batch.on_layer_attended = [&](int layer) { OnLayerAttended(layer, chunks, prompts); };
  const absl::Time began = clock_->Now();
  const StatusOr<absl::Span<const float>> logits = forward_(batch);
  if (!logits.ok()) {
    spdlog::error("a step of {} tokens: {}", tokens, logits.status().ToString());
    for (const Chunk& chunk : chunks)
      GiveUp(*prompts[chunk.prompt], absl::InternalError(absl::StrCat("prefill: ", logits.status().message())));
    return;
  }
  CountComputed(tokens, clock_->Now() - began);
  const auto vocab = static_cast<size_t>(options_.vocab_size);
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    Prompt& prompt = *prompts[chunk.prompt];
    prompt.computed_tokens += chunk.tokens;
    if (chunk.last) {
      HandOff(prompt, chunk, logits->subspan(row++ * vocab, vocab));
    } else if (options_.send_when == SendWhen::kChunk && !prompt.prunes()) {
      SendAllLayers(prompt, chunk.first_token, chunk.tokens);
    }
  }
}

// Prompts that end with this step: what decode keeps of the layer is known now.
void Worker::OnLayerAttended(int layer, const std::vector<Chunk>& chunks, const std::vector<Prompt*>& prompts) {
  for (const Chunk& chunk : chunks) {
    Prompt& prompt = *prompts[chunk.prompt];
    if (prompt.pruning == nullptr || !chunk.last) continue;
    prompt.pruning->KeepLayer(layer, prompt.pages.pages());
    if (!prompt.prunes() || options_.send_when != SendWhen::kLayer) continue;
    SendKv(prompt, {.layer = layer, .tokens = prompt.pruning->kept_tokens()});
  }
}

// One prefill serves all choices: each has its first token from here, and decode forks the pages.
void Worker::HandOff(Prompt& prompt, const Chunk& last, absl::Span<const float> logits) {
  proto::HandoffRecord record;
  const StatusOr<bool> all_finished = ChooseFirstTokens(prompt.generation, logits, &record);
  if (!all_finished.ok()) {
    spdlog::error("request {}: {}", prompt.request.request_id(), all_finished.status().ToString());
    return GiveUp(prompt, WithContext(all_finished.status(), "prefill"));
  }
  // Before its transfer has ended: the pin keeps what is being read, and whoever shares the prefix need not wait.
  prompt.pin = prefixes_.Insert(clock_->Now(), kFullPolicy, prompt.generation.prompt_ids, prompt.pages.pages());
  record.set_request_id(prompt.request.request_id());
  *record.mutable_prompt_ids() = prompt.request.prompt_ids();
  *record.mutable_sampling() = prompt.request.sampling();
  // Where every choice ends with its first token decode computes nothing and needs no KV.
  const uint32_t kv_from_token = prompt.ticket.kv_from_token();
  record.set_kv_from_token(kv_from_token);
  const int64_t sent = prompt.policy.Kept(prompt.tokens());
  record.set_kv_tokens(*all_finished ? kv_from_token : static_cast<uint32_t>(sent));
  if (prompt.pruning != nullptr) {
    *record.mutable_kept() = prompt.pruning->Finish();
    SetPruningBytes(prompt, Pruning::BytesToHandOver(prompt.policy, pool_->options().layout, prompt.tokens()));
  }
  record.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(prompt.tokens()));
  record.mutable_usage()->set_cached_tokens(static_cast<uint32_t>(prompt.cached_tokens));
  record.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(prompt.generation.sampling.n));
  const absl::Duration computing = clock_->Now() - prompt.started;
  prompt.times.set_prefill_us(absl::ToInt64Microseconds(computing));
  metrics_->compute_seconds.Observe(absl::ToDoubleSeconds(computing));
  *record.mutable_times() = prompt.times;
  const bool last_chunk = options_.send_when == SendWhen::kChunk && !prompt.prunes();
  if (!*all_finished && last_chunk) SendAllLayers(prompt, last.first_token, last.tokens);
  if (!*all_finished && !last_chunk && options_.send_when != SendWhen::kLayer) SendAllLayers(prompt, 0, sent);
  sender_->Commit({prompt.id.value}, std::move(record));
  SLUICE_CHECK(Apply(prompt, PromptEvent::kComputed));
}

void Worker::SendKv(const Prompt& prompt, KvRange range) {
  const int64_t end = range.first_token + range.tokens;
  range.first_token = std::max<int64_t>(range.first_token, prompt.ticket.kv_from_token());
  range.tokens = end - range.first_token;
  if (range.tokens > 0) sender_->Send({prompt.id.value}, range);
}

void Worker::SendAllLayers(const Prompt& prompt, int64_t first_token, int64_t tokens) {
  SendKv(prompt, {.layers = pool_->options().layout.layers, .first_token = first_token, .tokens = tokens});
}

void Worker::GiveUp(Prompt& prompt, Status why) {
  if (!Apply(prompt, PromptEvent::kGiveUp)) return;  // it is stopping already
  if (prompt.state == PromptState::kEnded) return Answer(prompt, why);
  prompt.why = why;
  sender_->Cancel({prompt.id.value}, std::move(why));
}

void Worker::Answer(Prompt& prompt, const StatusOr<proto::PrefillReply>& reply) {
  SLUICE_CHECK(prompt.state == PromptState::kEnded);
  const auto node = prompts_.extract(prompt.id);
  prompt.pages.Release();
  prompt.pruning.reset();
  SetPruningBytes(prompt, 0);
  prompt.pin.Release();
  metrics_->requests(reply.status()).Increment();
  // The account is settled before the caller knows, so that whoever asks after the answer sees pages and room again.
  {
    absl::MutexLock lock(&mutex_);
    --load_.requests;
    load_.queued_tokens -= prompt.tokens() - prompt.computed_tokens;
  }
  Publish();
  prompt.done(reply);
}

void Worker::CountComputed(int64_t tokens, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  const double kept = std::exp(-seconds / kRateMemorySeconds);
  recent_tokens_ = recent_tokens_ * kept + static_cast<double>(tokens);
  recent_seconds_ = recent_seconds_ * kept + seconds;
  metrics_->prompt_tokens.Increment(static_cast<double>(tokens));
  metrics_->steps.Increment();
  absl::MutexLock lock(&mutex_);
  load_.queued_tokens -= tokens;
  if (recent_seconds_ > 0) load_.tokens_per_s = recent_tokens_ / recent_seconds_;
  sender_->SetTokensPerSecond(load_.tokens_per_s);
}

void Worker::CountHandedOver(int64_t tokens, absl::Duration took) {
  handed_over_tokens_ = handed_over_tokens_ / 2 + static_cast<double>(tokens);
  handed_over_seconds_ = handed_over_seconds_ / 2 + absl::ToDoubleSeconds(took);
  absl::MutexLock lock(&mutex_);
  if (handed_over_seconds_ > 0) load_.transfer_tokens_per_s = handed_over_tokens_ / handed_over_seconds_;
}

void Worker::Publish() {
  const auto queued = std::count_if(prompts_.begin(), prompts_.end(),
                                    [](const auto& entry) { return entry.second->state == PromptState::kQueued; });
  absl::MutexLock lock(&mutex_);
  load_.pages_free = pool_->pages_free();
  load_.pages_cached = pool_->pages_cached();
  metrics_->requests_active.Set(load_.requests);
  metrics_->requests_queued.Set(static_cast<double>(queued));
  metrics_->queued_tokens.Set(static_cast<double>(load_.queued_tokens));
  metrics_->tokens_per_second.Set(load_.tokens_per_s);
  metrics_->kv_pages_free.Set(load_.pages_free);
  metrics_->kv_pages_cached.Set(load_.pages_cached);
  const int64_t evictions = prefixes_.evictions();
  metrics_->prefix_evictions.Increment(static_cast<double>(evictions - std::exchange(evictions_counted_, evictions)));
}

bool Worker::Apply(Prompt& prompt, PromptEvent event) {
  const std::optional<PromptState> next = Next(prompt.state, event);
  if (next) prompt.state = *next;
  return next.has_value();
}

}  // namespace sluice::prefill
