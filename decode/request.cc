#include "decode/request.h"

#include <algorithm>
#include <utility>

#include "common/proto/convert.h"
#include "model/kept_prompt.h"

namespace sluice::decode {

Request::Request(const ModelFacts* model, RequestId id, int64_t prompt_tokens, const SamplingParams& sampling,
                 std::shared_ptr<TokenStream> stream, std::vector<TokenId> prompt, int64_t cached_tokens,
                 const CachePolicy& policy)
    : model_(model),
      id_(id),
      expected_{.request = id,
                .prompt_tokens = static_cast<int>(prompt_tokens),
                .kv_from_token = static_cast<int>(cached_tokens),
                .kv_tokens = static_cast<int>(policy.Kept(prompt_tokens)),
                .n = sampling.n,
                .max_tokens = sampling.max_tokens,
                .vocab_size = model->vocab_size,
                .kept_bytes_max = KeptPromptBytesMax(policy, model->layout, prompt_tokens)},
      stream_(std::move(stream)),
      prompt_(std::move(prompt)),
      policy_(policy) {}

// One for each choice that goes on, all from the same prompt.
StatusOr<std::vector<KeptSlots>> Request::TakeKept(const proto::HandoffRecord& record) const {
  const bool any_goes_on = std::any_of(record.choices().begin(), record.choices().end(),
                                       [](const auto& choice) { return choice.finish() == proto::FINISH_NONE; });
  if (policy_.kind == CachePolicyKind::kFull || !any_goes_on) return std::vector<KeptSlots>();
  const int64_t generated =
      policy_.Generated(expected_.prompt_tokens, expected_.max_tokens, model_->context_tokens_max);
  const int64_t slots = policy_.Slots(expected_.prompt_tokens, generated - 1);
  StatusOr<KeptSlots> kept = FromProto(record.kept(), policy_, model_->layout, expected_.prompt_tokens, slots);
  if (!kept.ok()) return absl::DataLossError(kept.status().message());
  return std::vector<KeptSlots>(static_cast<size_t>(record.choices_size()), *kept);
}

Status Request::Begin(absl::Time now, proto::HandoffRecord record) {
  SLUICE_CHECK(choices_.empty());
  OnProgress(now);
  // What was shared was looked up by the reservation's prompt.
  if (!prompt_.empty() &&
      !std::equal(prompt_.begin(), prompt_.end(), record.prompt_ids().begin(), record.prompt_ids().end()))
    return absl::DataLossError("the handoff is of another prompt than the reservation");
  context_ = {.tokenizer = model_->tokenizer,
              .sampling = FromProto(record.sampling()),
              .prompt_ids = {record.prompt_ids().begin(), record.prompt_ids().end()},
              .eos_ids = model_->eos_ids,
              .vocab_size = model_->vocab_size,
              .positions_max = policy_.PositionsMax(model_->context_tokens_max)};
  std::vector<Generation> choices;
  for (const proto::ChoiceState& state : record.choices()) {
    SLUICE_ASSIGN_OR_RETURN(Generation choice, Generation::Resume(&context_, state));
    choices.push_back(std::move(choice));
  }
  SLUICE_ASSIGN_OR_RETURN(kept_, TakeKept(record));
  choices_ = std::move(choices);
  usage_ = record.usage();
  kv_.set_tokens_sent(record.kv_tokens() - record.kv_from_token());
  kv_.set_tokens_skipped(static_cast<uint32_t>(expected_.prompt_tokens - expected_.kv_tokens));
  kv_.set_bytes_wire(record.kv_wire_bytes());
  times_ = record.times();
  times_.set_transfer_us(absl::ToInt64Microseconds(now - first_arrival_));
  for (int i = 0; i < this->choices(); ++i) {
    proto::GenerateEvent event;
    *event.mutable_tokens() = std::move(*record.mutable_choices(i)->mutable_unsent());
    Send(i, std::move(event), /*last=*/i + 1 == this->choices() && AllFinished());
  }
  return absl::OkStatus();
}

bool Request::AllFinished() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const Generation& choice) { return choice.finished(); });
}

const TokenId& Request::LastToken(int choice) const { return choices_[static_cast<size_t>(choice)].generated().back(); }

int64_t Request::LastPosition(int choice) const {
  return expected_.prompt_tokens + static_cast<int64_t>(choices_[static_cast<size_t>(choice)].generated().size()) - 1;
}

std::vector<TokenId> Request::TokensWithKv(int choice) const {
  std::vector<TokenId> tokens = context_.prompt_ids;
  const absl::Span<const TokenId> generated = choices_[static_cast<size_t>(choice)].generated();
  tokens.insert(tokens.end(), generated.begin(), generated.end() - 1);
  return tokens;
}

Status Request::Step(int choice, absl::Span<const float> logits) {
  StatusOr<proto::GeneratedToken> token = choices_[static_cast<size_t>(choice)].Step(logits);
  if (!token.ok()) {
    return WithContext(token.status(), absl::StrCat("choice ", choice, ", position ", LastPosition(choice)));
  }
  proto::GenerateEvent event;
  *event.add_tokens() = *std::move(token);
  Send(choice, std::move(event), /*last=*/AllFinished());
  return absl::OkStatus();
}

// Fills in what goes with the tokens. The request's last event carries its usage and times.
void Request::Send(int choice, proto::GenerateEvent event, bool last) {
  const Generation& generation = choices_[static_cast<size_t>(choice)];
  event.set_choice(static_cast<uint32_t>(choice));
  event.set_finish(generation.finish());
  event.set_stop_match(std::string(generation.stop_match()));
  if (last) {
    uint32_t completion_tokens = 0;
    for (const Generation& each : choices_) completion_tokens += static_cast<uint32_t>(each.generated().size());
    usage_.set_completion_tokens(completion_tokens);
    *event.mutable_usage() = usage_;
    *event.mutable_times() = times_;
    *event.mutable_kv() = kv_;
    event.set_last(true);
  }
  stream_->Push(std::move(event));
}

}  // namespace sluice::decode
