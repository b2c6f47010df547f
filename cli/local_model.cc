#include "cli/local_model.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "model/generation.h"
#include "model/kept_rows.h"

namespace sluice {
namespace {

constexpr int kPageTokens = 16;

double MsSince(absl::Time start) { return absl::ToDoubleMilliseconds(absl::Now() - start); }

CompletionAnswer::TokenLogprobs Logprobs(const proto::GeneratedToken& token, const Tokenizer* tokenizer) {
  CompletionAnswer::TokenLogprobs logprobs;
  logprobs.logprob = token.logprob();
  for (const proto::TokenLogprob& top : token.top()) {
    const std::string text = tokenizer == nullptr ? absl::StrCat(top.token())
                                                  : std::string(tokenizer->Bytes(top.token(), /*show_special=*/true));
    logprobs.top.emplace_back(text, top.logprob());
  }
  return logprobs;
}

double PerSecond(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) * 1000 / ms : 0; }

}  // namespace

StatusOr<std::unique_ptr<LocalModel>> LocalModel::Open(const LocalModelOptions& options) {
  const absl::Time start = absl::Now();
  std::unique_ptr<LocalModel> model(new LocalModel());
  model->options_ = options;
  SLUICE_ASSIGN_OR_RETURN(model->checkpoint_, OpenCheckpoint(options.path));
  if (model->checkpoint_->tokenizer().kind != TokenizerKind::kNone) {
    SLUICE_ASSIGN_OR_RETURN(model->tokenizer_, Tokenizer::Create(model->checkpoint_->tokenizer()));
  }
  TransformerOptions transformer;
  transformer.threads = options.threads;
  transformer.exact = options.exact;
  transformer.batch_tokens_max = options.batch_tokens_max;
  transformer.logit_rows_max = 1;
  const int64_t context = model->checkpoint_->config().context_tokens_max;
  SLUICE_ASSIGN_OR_RETURN(const CachePolicy policy, Resolve(options.policy, context));
  if (policy.bounded() && policy.budget >= context) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cache budget is ", policy.budget, " tokens, the model's context ", context));
  }
  model->positions_max_ = policy.PositionsMax(context);
  if (policy.ranks_steps()) transformer.ranked_slots_max = policy.Slots(context, 0);
  SLUICE_ASSIGN_OR_RETURN(model->transformer_, Transformer::Create(model->checkpoint_.get(), transformer));
  model->load_ms_ = MsSince(start);
  return model;
}

StatusOr<std::vector<TokenId>> LocalModel::PromptIds(const CompletionRequest& request) {
  if (!request.ids.empty()) return request.ids;
  if (tokenizer_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.path, " can only be given token ids: ", checkpoint_->tokenizer().unsupported));
  }
  if (!request.messages.empty()) return ChatIds(request.messages);
  std::vector<TokenId> ids = tokenizer_->Encode(request.text, Tokenizer::SpecialTokens::kAsText);
  if (tokenizer_->add_bos()) ids.insert(ids.begin(), tokenizer_->bos_id());
  return ids;
}

StatusOr<std::vector<TokenId>> LocalModel::ChatIds(const nlohmann::ordered_json& messages) {
  const TokenizerData& data = checkpoint_->tokenizer();
  if (data.chat_template.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(options_.path, " has no chat template"));
  }
  if (chat_template_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(chat_template_, ChatTemplate::Parse(data.chat_template));
  }
  ChatTemplate::Input input;
  input.messages = messages;
  input.bos_token = data.bos_text;
  input.eos_token = data.eos_text;
  SLUICE_ASSIGN_OR_RETURN(const std::string text, chat_template_->Render(input));
  return tokenizer_->Encode(text, Tokenizer::SpecialTokens::kParse);
}

Status LocalModel::MakeRoom(int64_t tokens) {
  if (kv_ == nullptr || kv_->PagesFor(tokens) > kv_->pages_total()) {
    // Twice what is asked for, so that a growing chat seldom starts over.
    const int64_t context = transformer_->config().context_tokens_max;
    const int64_t slots = std::min(context + 1, std::max<int64_t>(2 * tokens, 1024));
    pages_.Release();
    cached_ids_.clear();
    kept_.reset();
    KvPoolOptions pool;
    pool.layout = KvLayout::Of(transformer_->config());
    SLUICE_ASSIGN_OR_RETURN(pool.codec, ChooseStoreCodec(options_.kv_store, pool.layout));
    pool.page_tokens = kPageTokens;
    pool.pages = static_cast<int>((std::max(slots, tokens) + kPageTokens - 1) / kPageTokens);
    kv_.reset();
    SLUICE_ASSIGN_OR_RETURN(kv_, KvPool::Create(pool));
    SLUICE_ASSIGN_OR_RETURN(pages_, kv_->Lease(pool.pages));
  }
  return absl::OkStatus();
}

StatusOr<absl::Span<const float>> LocalModel::Forward(absl::Span<const TokenId> tokens, LogitsFor logits,
                                                      bool generated, PromptScores* scores) {
  Batch batch;
  batch.sequences.push_back({.tokens = tokens,
                             .start_position = static_cast<int64_t>(cached_ids_.size()),
                             .pages = pages_.pages(),
                             .logits = logits,
                             .generated = generated,
                             .kept = kept_.get(),
                             .scores = scores});
  SLUICE_ASSIGN_OR_RETURN(const absl::Span<const float> result, transformer_->Forward(batch, *kv_));
  cached_ids_.insert(cached_ids_.end(), tokens.begin(), tokens.end());
  return result;
}

StatusOr<absl::Span<const float>> LocalModel::Prefill(const std::vector<TokenId>& ids, int64_t more_tokens) {
  SLUICE_ASSIGN_OR_RETURN(const CachePolicy policy, Resolve(options_.policy, static_cast<int64_t>(ids.size())));
  if (policy.kind != CachePolicyKind::kFull) return PrefillUnder(policy, ids, more_tokens);
  // KV of a common beginning is there already; the last token is computed in any case, for its logits.
  const auto differs = std::mismatch(cached_ids_.begin(), cached_ids_.end(), ids.begin(), ids.end() - 1);
  cached_ids_.erase(differs.first, cached_ids_.end());
  SLUICE_RETURN_IF_ERROR(MakeRoom(static_cast<int64_t>(ids.size()) + more_tokens));
  return PrefillDensely(ids, nullptr);
}

// What is not cached yet.
StatusOr<absl::Span<const float>> LocalModel::PrefillDensely(const std::vector<TokenId>& ids, PromptScores* scores) {
  absl::Span<const float> logits;
  while (cached_ids_.size() < ids.size()) {
    const size_t begin = cached_ids_.size();
    const size_t tokens = std::min(ids.size() - begin, static_cast<size_t>(options_.batch_tokens_max));
    const bool last = begin + tokens == ids.size();
    SLUICE_ASSIGN_OR_RETURN(
        logits, Forward(absl::MakeConstSpan(ids).subspan(begin, tokens), last ? LogitsFor::kLast : LogitsFor::kNone,
                        /*generated=*/false, scores));
  }
  return logits;
}

// Of the last request's KV, which was pruned, a longer text can go on; any other begins anew: densely, unless it is
// longer than the model's context or is to be streamed.
StatusOr<absl::Span<const float>> LocalModel::PrefillUnder(const CachePolicy& policy, const std::vector<TokenId>& ids,
                                                           int64_t more_tokens) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const bool goes_on = kept_ != nullptr && policy.bounded() && cached_ids_.size() < ids.size() &&
                       std::equal(cached_ids_.begin(), cached_ids_.end(), ids.begin());
  const bool streamed = goes_on || options_.streamed || tokens > transformer_->config().context_tokens_max;
  // One that goes on may fill its budget only now.
  const int64_t slots = policy.bounded() ? policy.budget + 1 : policy.Slots(tokens, more_tokens);
  if (!goes_on) {
    kept_.reset();
    cached_ids_.clear();
    SLUICE_RETURN_IF_ERROR(MakeRoom(streamed ? slots : std::max(slots, tokens)));
  }
  absl::Span<const float> logits;
  if (!streamed) {
    auto kept = std::make_unique<KeptSlots>(policy, kv_->options().layout, slots);
    PromptScores scores(policy, kv_->options().layout, tokens);
    SLUICE_ASSIGN_OR_RETURN(logits, PrefillDensely(ids, policy.ranks() ? &scores : nullptr));
    PrunePrompt(*kv_, pages_.pages(), pages_.pages(), tokens, &scores, *kept);
    kept_ = std::move(kept);
    return logits;
  }
  if (kept_ == nullptr) kept_ = std::make_unique<KeptSlots>(policy, kv_->options().layout, slots);
  while (cached_ids_.size() < ids.size()) {
    const size_t begin = cached_ids_.size();
    const size_t n = std::min(
        {ids.size() - begin, static_cast<size_t>(options_.batch_tokens_max), static_cast<size_t>(kept_->StepMax())});
    const bool last = begin + n == ids.size();
    SLUICE_ASSIGN_OR_RETURN(logits, Forward(absl::MakeConstSpan(ids).subspan(begin, n),
                                            last ? LogitsFor::kLast : LogitsFor::kNone, /*generated=*/true));
  }
  return logits;
}

StatusOr<CompletionAnswer> LocalModel::Complete(const CompletionRequest& request,
                                                const std::function<void(std::string_view)>& on_text) {
  const ModelConfig& config = transformer_->config();
  SLUICE_RETURN_IF_ERROR(request.sampling.Validate(config.vocab_size));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, PromptIds(request));
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (prompt_tokens + 1 > positions_max_) {
    return absl::OutOfRangeError(absl::StrCat("the prompt has ", prompt_tokens, " tokens, the model's context is ",
                                              config.context_tokens_max, " with at least one token of answer"));
  }
  for (const TokenId id : prompt) {
    if (id >= 0 && id < config.vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " of the prompt is outside the vocabulary of ", config.vocab_size));
  }

  CompletionAnswer answer;
  answer.prompt_tokens = static_cast<int>(prompt_tokens);
  const absl::Time prefill_start = absl::Now();
  const int64_t more_tokens = std::min<int64_t>(request.sampling.max_tokens, positions_max_ - prompt_tokens);
  SLUICE_ASSIGN_OR_RETURN(absl::Span<const float> logits, Prefill(prompt, more_tokens));
  const double prefill_ms = MsSince(prefill_start);
  const absl::Time decode_start = absl::Now();
  const GenerationContext context{.tokenizer = tokenizer_.get(),
                                  .sampling = request.sampling,
                                  .prompt_ids = prompt,
                                  .eos_ids = config.eos_ids,
                                  .vocab_size = config.vocab_size,
                                  .positions_max = positions_max_};
  Generation generation(&context, 0);
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const proto::GeneratedToken token, generation.Step(logits));
    answer.ids.push_back(token.token());
    answer.text += token.text();
    if (request.sampling.logprobs) answer.logprobs.push_back(Logprobs(token, tokenizer_.get()));
    if (!token.text().empty()) on_text(token.text());
    if (generation.finished()) break;
    const TokenId next[] = {token.token()};
    SLUICE_ASSIGN_OR_RETURN(logits, Forward(next, LogitsFor::kLast, /*generated=*/true));
  }
  const double decode_ms = MsSince(decode_start);
  answer.finish_reason = generation.finish() == proto::FINISH_LENGTH ? "length" : "stop";
  if (kept_ != nullptr) answer.cache = {ToString(kept_->policy()), kept_->held(), kept_->dropped()};
  answer.timings = {{"load_ms", load_ms_},
                    {"prefill_ms", prefill_ms},
                    {"decode_ms", decode_ms},
                    {"prefill_tokens_per_s", PerSecond(prompt_tokens, prefill_ms)},
                    {"decode_tokens_per_s", PerSecond(static_cast<int64_t>(answer.ids.size()) - 1, decode_ms)}};
  return answer;
}

}  // namespace sluice
