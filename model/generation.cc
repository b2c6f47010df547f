#include "model/generation.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/rng.h"
#include "model/sampler.h"
#include "model/stop_strings.h"
#include "model/text/utf8.h"

namespace sluice {

namespace {
// Without a tokenizer there is no text, and so no stop string to find in it.
std::vector<std::string> StopTexts(const GenerationContext& context) {
  return context.tokenizer != nullptr ? context.sampling.stop_strings : std::vector<std::string>();
}
}  // namespace

struct Generation::Impl {
  Impl(const GenerationContext* the_context, int choice_index)
      : context(the_context),
        index(choice_index),
        key(RandomBits(the_context->sampling.seed, static_cast<uint64_t>(choice_index))),
        detokenizer(the_context->tokenizer),
        stops(StopTexts(*the_context)) {
    if (context->sampling.repetition_penalty != 1.0f) {
      prompt_tokens = context->prompt_ids;
      std::sort(prompt_tokens.begin(), prompt_tokens.end());
      prompt_tokens.erase(std::unique(prompt_tokens.begin(), prompt_tokens.end()), prompt_tokens.end());
    }
    // Tokens that end a choice, and may not come before min_tokens others did.
    end_tokens = context->sampling.stop_token_ids;
    if (!context->sampling.ignore_eos) {
      end_tokens.insert(end_tokens.end(), context->eos_ids.begin(), context->eos_ids.end());
    }
  }

  const SamplingParams& params() const { return context->sampling; }
  bool BelowMinTokens() const { return static_cast<int64_t>(generated.size()) < params().min_tokens; }
  bool IsEnd(TokenId token) const { return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end(); }
  uint64_t draws() const { return DrawsRandomly(params()) ? generated.size() : 0; }

  bool AtLimit() const {
    const auto count = static_cast<int64_t>(generated.size());
    return count >= params().max_tokens ||
           static_cast<int64_t>(context->prompt_ids.size()) + count >= context->positions_max;
  }

  // Takes a token that was drawn, here or in another process, and returns the text that it makes sendable.
  std::string Accept(TokenId token) {
    const bool may_stop = !BelowMinTokens();
    generated.push_back(token);
    ++counts[token];
    if (IsEnd(token)) {
      finish = proto::FINISH_STOP;
      return Rest();
    }
    std::string text;
    if (context->tokenizer != nullptr && token < context->tokenizer->vocab_size()) text = detokenizer.Push(token);
    const bool at_limit = AtLimit();
    if (at_limit) text += detokenizer.Flush();
    StopStrings::Fed fed = stops.Feed(text, may_stop);
    if (fed.match >= 0) {
      finish = proto::FINISH_STOP;
      stop_match = params().stop_strings[static_cast<size_t>(fed.match)];
      detokenizer.set_pending("");
    } else if (at_limit) {
      finish = proto::FINISH_LENGTH;
      fed.sendable += stops.TakeHeld();
    }
    return std::move(fed.sendable);
  }

  // What was held back, when nothing more comes.
  std::string Rest() {
    const std::string flushed = detokenizer.Flush();
    std::string rest = stops.TakeHeld();
    rest += flushed;
    return rest;
  }

  const GenerationContext* context;
  int index;
  uint64_t key;
  std::vector<TokenId> prompt_tokens;  // each once, where a penalty needs them
  std::vector<TokenId> end_tokens;
  std::vector<TokenId> generated;
  absl::flat_hash_map<TokenId, int> counts;
  Detokenizer detokenizer;
  StopStrings stops;
  proto::FinishReason finish = proto::FINISH_NONE;
  std::string stop_match;
};

Generation::Generation(const GenerationContext* context, int choice_index)
    : impl_(std::make_unique<Impl>(context, choice_index)) {}
Generation::Generation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&&) noexcept = default;
Generation::~Generation() = default;

bool Generation::finished() const { return impl_->finish != proto::FINISH_NONE; }
proto::FinishReason Generation::finish() const { return impl_->finish; }
absl::Span<const TokenId> Generation::generated() const { return impl_->generated; }
std::string_view Generation::stop_match() const { return impl_->stop_match; }

StatusOr<proto::GeneratedToken> Generation::Step(absl::Span<const float> logits) {
  Impl& impl = *impl_;
  SLUICE_CHECK(!finished());
  if (static_cast<int64_t>(logits.size()) != impl.context->vocab_size) {
    return absl::InternalError(absl::StrCat(logits.size(), " logits for a vocabulary of ", impl.context->vocab_size));
  }
  SamplerInput input{.logits = logits,
                     .params = &impl.params(),
                     .prompt_tokens = impl.prompt_tokens,
                     .generated_counts = &impl.counts,
                     .key = impl.key,
                     .counter = impl.draws()};
  if (impl.BelowMinTokens()) input.excluded = impl.end_tokens;
  SLUICE_ASSIGN_OR_RETURN(const Sampled sampled, SampleToken(input));
  proto::GeneratedToken out;
  out.set_token(sampled.token);
  out.set_text(impl.Accept(sampled.token));
  if (impl.params().logprobs) out.set_logprob(sampled.logprob);
  for (const LogProb& top : sampled.top) {
    proto::TokenLogprob* entry = out.add_top();
    entry->set_token(top.token);
    entry->set_logprob(top.logprob);
  }
  return out;
}

proto::ChoiceState Generation::State() const {
  proto::ChoiceState state;
  state.set_index(static_cast<uint32_t>(impl_->index));
  state.mutable_generated()->Assign(impl_->generated.begin(), impl_->generated.end());
  state.set_finish(impl_->finish);
  state.set_draws(impl_->draws());
  state.set_held_text(impl_->stops.held());
  state.set_pending_bytes(impl_->detokenizer.pending());
  state.set_stop_match(impl_->stop_match);
  return state;
}

StatusOr<Generation> Generation::Resume(const GenerationContext* context, const proto::ChoiceState& state) {
  const auto broken = [](auto&&... parts) { return absl::DataLossError(absl::StrCat("choice state: ", parts...)); };
  if (state.index() >= static_cast<uint32_t>(context->sampling.n)) {
    return broken("index ", state.index(), " of ", context->sampling.n, " choices");
  }
  auto impl = std::make_unique<Impl>(context, static_cast<int>(state.index()));
  // The tokens lead to one state only, so that going through them again checks every other field.
  for (const TokenId token : state.generated()) {
    if (token < 0 || token >= context->vocab_size) {
      return broken("token ", token, " of a vocabulary of ", context->vocab_size);
    }
    if (impl->finish != proto::FINISH_NONE) {
      return broken(state.generated_size(), " tokens, but the end is after ", impl->generated.size());
    }
    if (impl->BelowMinTokens() && impl->IsEnd(token)) {
      return broken("end token ", token, " as number ", impl->generated.size(), ", before min_tokens");
    }
    impl->Accept(token);
  }
  if (state.finish() != impl->finish) {
    return broken("finish is ", static_cast<int>(state.finish()), ", the tokens say ", static_cast<int>(impl->finish));
  }
  if (state.draws() != impl->draws()) return broken(state.draws(), " draws, the tokens say ", impl->draws());
  if (state.stop_match() != impl->stop_match) return broken("stop_match is not what the tokens say");
  if (state.held_text() != impl->stops.held()) return broken("held_text is not what the tokens say");
  if (state.pending_bytes() != impl->detokenizer.pending()) return broken("pending_bytes is not what the tokens say");
  return Generation(std::move(impl));
}

}  // namespace sluice
