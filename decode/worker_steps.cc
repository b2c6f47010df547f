// From the end of a transfer to tokens: starting and stepping, on the engine thread.
#include <algorithm>
#include <utility>

#include "decode/worker.h"
#include "model/first_tokens.h"
#include "spdlog/spdlog.h"

namespace sluice::decode {

// It may have ended or been rearmed while these were on their way from the transport's thread.
void Worker::Handle(TransferProgress) {
  for (const TransferKey key : receiver_.TakeProgress()) {
    if (!reservations_.OnFrame(clock_->Now(), key.reservation, key.tenure)) continue;
    requests_.at(key.reservation)->OnProgress(clock_->Now());
  }
}

void Worker::Handle(TransferComplete complete) {
  const auto [id, tenure] = complete.key;
  const Reservation* reservation = reservations_.Find(id);
  if (reservation == nullptr || reservation->tenure != tenure) return;
  Request& request = *requests_.at(id);
  const StatusOr<KvCodec> wire = ParseKvCodec(complete.record.wire_codec());  // none where nothing was sent
  if (const Status begun = request.Begin(clock_->Now(), std::move(complete.record)); begun.ok()) {
    metrics_->commits.Increment();
    if (wire.ok()) {
      link_coarseness_ = CoarsenessOf(*wire);
      reservations_.Arrived(id, link_coarseness_);
    }
    receiver_.Conclude(id, absl::OkStatus());
    incoming_.erase(id);  // all that was on its way has arrived
    StartDecoding(id, request);
  } else if (FailTransfer(complete.key, begun)) {
    receiver_.Conclude(id, begun);
  }
}

KvCoarseness Worker::CoarsenessOf(KvCodec wire) const {
  return std::max(0, AccuracyRank(wire) - AccuracyRank(options_.store));
}

void Worker::Handle(TransferLost lost) { FailTransfer(lost.key, lost.why); }

void Worker::Handle(PagesQuiet quiet) { quarantine_.Remove(quiet.key); }

// The pages stay: the gateway gives the reservation to another prefill, or releases it.
bool Worker::FailTransfer(TransferKey key, const Status& why) {
  if (!reservations_.OnTransferFailed(clock_->Now(), key.reservation, key.tenure)) return false;
  metrics_->transfers_failed.Increment();
  spdlog::warn("request {}: transfer failed: {}", requests_.at(key.reservation)->id().value, why.ToString());
  return true;
}

void Worker::StartDecoding(ReservationId id, Request& request) {
  const Tenure tenure = reservations_.Find(id)->tenure;
  SLUICE_CHECK(reservations_.OnCommit(clock_->Now(), id, tenure),
               "a complete transfer of a reservation that takes none");
  if (request.AllFinished()) return Complete(id);
  if (request.choices() > 1) {
    if (Status forked = reservations_.ForkChoices(id); !forked.ok()) return FailRequest(id, forked);
  }
  LookForPagesAgain();  // this one may have to make room
  for (int choice = 0; choice < request.choices(); ++choice) {
    if (request.Finished(choice)) {
      reservations_.ReleaseChoice(clock_->Now(), id, choice, request.TokensWithKv(choice));
    } else {
      sequences_.push_back({.reservation = id, .choice = choice});
    }
  }
}

void Worker::Complete(ReservationId id) {
  SLUICE_CHECK(reservations_.OnFinish(clock_->Now(), id));
  metrics_->requests_finished.Increment();
  // A short answer may be done before the call that reads it has arrived: then the answer waits for it.
  if (reservations_.Find(id) == nullptr) return Forget(id, absl::OkStatus());
  requests_.at(id)->stream()->Close(absl::OkStatus());
  DropSequences(id);
}

void Worker::FailRequest(ReservationId id, const Status& why) {
  metrics_->requests_failed.Increment();
  spdlog::error("request {}: {}", requests_.at(id)->id().value, why.ToString());
  Fail(id, why);
}

std::vector<SequenceTurn> Worker::Turns() const {
  std::vector<SequenceTurn> turns;
  turns.reserve(sequences_.size());
  for (const Sequence& sequence : sequences_) {
    const TokenStream& stream = *requests_.at(sequence.reservation)->stream();
    const bool parked = reservations_.Find(sequence.reservation)->state == ReservationState::kParked;
    turns.push_back({.admitted = sequence.admitted,
                     .paused = sequence.wants_page || stream.Full(static_cast<uint32_t>(sequence.choice)),
                     .last_turn = sequence.last_turn,
                     .parked = parked});
  }
  return turns;
}

bool Worker::HasWork() const {
  return !prefills_.empty() || PagesHaveComeBack() || !Next(options_.scheduler, Turns()).step.empty();
}

// Since somebody who waits for them was last looked at.
bool Worker::PagesHaveComeBack() const {
  if (reservations_.NextToReturn()) return true;
  return reservations_.pages_available() > 0 &&
         std::any_of(sequences_.begin(), sequences_.end(), [this](const auto& s) {
           return s.wants_page && reservations_.Find(s.reservation)->state == ReservationState::kRunning;
         });
}

void Worker::Step() {
  const Decision decision = Next(options_.scheduler, Turns());
  for (const int i : decision.admit) sequences_[static_cast<size_t>(i)].admitted = true;
  const std::vector<std::pair<ReservationId, int>> chosen = MakeRoom(decision.step);
  if (chosen.empty()) return;
  const absl::Time begin = clock_->Now();
  RunBatch(chosen);
  const double seconds = absl::ToDoubleSeconds(clock_->Now() - begin);
  step_seconds_ = step_seconds_ > 0 ? 0.8 * step_seconds_ + 0.2 * seconds : seconds;
  metrics_->step_seconds.Observe(seconds);
  metrics_->step_sequences.Observe(static_cast<double>(chosen.size()));
}

void Worker::NoteReaders() {
  if (park_ == nullptr) return;
  for (const Sequence& sequence : sequences_) reservations_.OnReader(sequence.reservation, /*behind=*/true);
  for (const Sequence& sequence : sequences_) {
    const TokenStream& stream = *requests_.at(sequence.reservation)->stream();
    if (!stream.Full(static_cast<uint32_t>(sequence.choice))) reservations_.OnReader(sequence.reservation, false);
  }
}

void Worker::ReturnParked() {
  while (const auto id = reservations_.NextToReturn()) {
    if (const Status returned = reservations_.Return(clock_->Now(), *id); !returned.ok()) {
      FailRequest(*id, returned);
      continue;
    }
    metrics_->returns.Increment();
    LookForPagesAgain();
  }
  if (reservations_.pages_available() > 0) LookForPagesAgain();
}

void Worker::LookForPagesAgain() {
  for (Sequence& sequence : sequences_) sequence.wants_page = false;
}

std::vector<std::pair<ReservationId, int>> Worker::MakeRoom(const std::vector<int>& step) {
  const auto sequence = [this](int i) -> Sequence& { return sequences_[static_cast<size_t>(i)]; };
  const auto reservation = [&](int i) { return reservations_.Find(sequence(i).reservation); };
  std::vector<int> by_age = step;
  std::stable_sort(by_age.begin(), by_age.end(),
                   [&](int a, int b) { return reservation(a)->age < reservation(b)->age; });
  std::optional<std::pair<ReservationId, Status>> not_parked;
  for (const int i : by_age) sequence(i).wants_page = !MakeRoomFor(sequence(i), &not_parked);
  std::vector<std::pair<ReservationId, int>> chosen;
  for (const int i : step) {
    if (sequence(i).wants_page || reservation(i)->state == ReservationState::kParked) continue;
    sequence(i).last_turn = ++turns_taken_;
    chosen.emplace_back(sequence(i).reservation, sequence(i).choice);
  }
  if (not_parked) {
    FailRequest(not_parked->first, not_parked->second);
    std::erase_if(chosen, [&](const auto& each) { return each.first == not_parked->first; });
  }
  return chosen;
}

// False where it has to wait, whether it was parked itself or not: for a request that ends, a handoff that arrives, or
// a deadline. `not_parked` is the request whose pages the park's file refused, and why.
bool Worker::MakeRoomFor(const Sequence& sequence, std::optional<std::pair<ReservationId, Status>>* not_parked) {
  const ReservationId id = sequence.reservation;
  Request& request = *requests_.at(id);
  const KeptSlots* kept = request.kept(sequence.choice);
  const int64_t slots = (kept != nullptr ? kept->held() : request.LastPosition(sequence.choice)) + 1;
  while (reservations_.Find(id)->state == ReservationState::kRunning) {
    if (reservations_.Grow(id, sequence.choice, slots)) return true;
    const auto youngest = reservations_.NextToPark();
    if (!youngest) return false;
    if (const Status parked = Park(*youngest); !parked.ok()) {
      if (!absl::IsResourceExhausted(parked)) *not_parked = {*youngest, parked};
      return false;
    }
  }
  return false;
}

Status Worker::Park(ReservationId id) {
  SLUICE_RETURN_IF_ERROR(reservations_.Park(clock_->Now(), id));
  metrics_->parkings.Increment();
  // Others take their turns: else an older request might wait for one, and they for its pages.
  for (Sequence& sequence : sequences_) sequence.admitted &= sequence.reservation != id;
  return absl::OkStatus();
}

void Worker::RunChunk() {
  LocalPrefill& prefill = prefills_.front();
  const absl::Time began = clock_->Now();
  if (!prefill.started) prefill.started = began;
  const absl::Span<const TokenId> prompt = prefill.context.prompt_ids;
  const absl::Span<const TokenId> tokens = prompt.subspan(static_cast<size_t>(prefill.computed_tokens),
                                                          static_cast<size_t>(options_.local_prefill_chunk_tokens));
  const int64_t end = prefill.computed_tokens + static_cast<int64_t>(tokens.size());
  const bool last = end == static_cast<int64_t>(prompt.size());
  const auto logits = forward_(Batch{{{.tokens = tokens,
                                       .start_position = prefill.computed_tokens,
                                       .pages = reservations_.Find(prefill.reservation)->choices[0].pages(),
                                       .logits = last ? LogitsFor::kLast : LogitsFor::kNone}}},
                               *pool_);
  if (!logits.ok()) return FailRequest(prefill.reservation, logits.status());
  prefill.computed_tokens = end;
  metrics_->local_prefill_tokens.Increment(static_cast<double>(tokens.size()));
  const double seconds = absl::ToDoubleSeconds(clock_->Now() - began);
  // A short rest has the costs of a step and few tokens, and says nothing about a long one.
  if (seconds > 0 && tokens.size() == static_cast<size_t>(options_.local_prefill_chunk_tokens))
    prefill_tokens_per_s_ = 0.8 * prefill_tokens_per_s_ + 0.2 * static_cast<double>(tokens.size()) / seconds;
  if (last) FinishPrefill(*logits);
}

// What a prefill process would have handed over.
void Worker::FinishPrefill(absl::Span<const float> logits) {
  const LocalPrefill prefill = std::move(prefills_.front());
  prefills_.pop_front();
  const ReservationId id = prefill.reservation;
  Request& request = *requests_.at(id);
  const absl::Time now = clock_->Now();
  proto::HandoffRecord record;
  if (const auto chosen = ChooseFirstTokens(prefill.context, logits, &record); !chosen.ok())
    return FailRequest(id, chosen.status());
  record.set_request_id(request.id().value);
  *record.mutable_prompt_ids() = {prefill.context.prompt_ids.begin(), prefill.context.prompt_ids.end()};
  *record.mutable_sampling() = prefill.sampling;
  record.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(prefill.context.prompt_ids.size()));
  record.mutable_usage()->set_cached_tokens(static_cast<uint32_t>(reservations_.Find(id)->cached_tokens));
  record.mutable_times()->set_queued_us(absl::ToInt64Microseconds(*prefill.started - prefill.accepted));
  record.mutable_times()->set_prefill_us(absl::ToInt64Microseconds(now - *prefill.started));
  if (const Status begun = request.Begin(now, std::move(record)); !begun.ok()) return FailRequest(id, begun);
  StartDecoding(id, request);
}

void Worker::RunBatch(const std::vector<std::pair<ReservationId, int>>& chosen) {
  Batch batch;
  for (const auto& [id, choice] : chosen) batch.sequences.push_back(ChunkOf(id, choice));
  const auto logits = forward_(batch, *pool_);
  if (!logits.ok()) {
    // Whose fault it is shows when each runs alone; the KV of the step is then written again, to the same bits.
    for (const auto& [id, choice] : chosen) RunAlone(id, choice);
    return;
  }
  const size_t vocab = static_cast<size_t>(model_.vocab_size);
  for (size_t i = 0; i < chosen.size(); ++i) {
    OnLogits(chosen[i].first, chosen[i].second, logits->subspan(i * vocab, vocab));
  }
}

void Worker::RunAlone(ReservationId id, int choice) {
  if (!requests_.contains(id)) return;  // another choice of the request failed before this one
  const auto logits = forward_(Batch{{ChunkOf(id, choice)}}, *pool_);
  if (!logits.ok()) return FailRequest(id, logits.status());
  OnLogits(id, choice, *logits);
}

SequenceChunk Worker::ChunkOf(ReservationId id, int choice) {
  Request& request = *requests_.at(id);
  return {.tokens = absl::MakeConstSpan(&request.LastToken(choice), 1),
          .start_position = request.LastPosition(choice),
          .pages = reservations_.Find(id)->choices[static_cast<size_t>(choice)].pages(),
          .logits = LogitsFor::kLast,
          .generated = true,
          .kept = request.kept(choice)};
}

void Worker::OnLogits(ReservationId id, int choice, absl::Span<const float> logits) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;  // another choice of the request failed before this one
  Request& request = *it->second;
  if (Status stepped = request.Step(choice, logits); !stepped.ok()) return FailRequest(id, stepped);
  metrics_->tokens.Increment();
  if (!request.Finished(choice)) return;
  reservations_.ReleaseChoice(clock_->Now(), id, choice, request.TokensWithKv(choice));
  if (request.AllFinished()) return Complete(id);
  std::erase_if(sequences_, [id, choice](const Sequence& s) { return s.reservation == id && s.choice == choice; });
}

}  // namespace sluice::decode
