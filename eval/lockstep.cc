#include "eval/lockstep.h"

#include <algorithm>
#include <utility>

#include "model/kept_rows.h"

namespace sluice {

int64_t TokensToFeed(const TextRun& run) {
  const int64_t behind = static_cast<int64_t>(run.ids.size()) - run.prompt_tokens;
  return behind - 1 + run.generated_tokens;
}

int64_t SlotsOf(const TextRun& run) { return run.policy.Slots(run.prompt_tokens, TokensToFeed(run)); }

TokenId Lockstep::Member::token(int64_t position) const {
  const auto i = static_cast<size_t>(position);
  return i < run->ids.size() ? run->ids[i] : outcome->generated_tokens[i - run->ids.size()];
}

Lockstep::Lockstep(Transformer* transformer, absl::Span<const TextRun> runs, size_t begin, size_t end,
                   std::vector<TextOutcome>* outcomes, std::function<void(int64_t)> on_tokens)
    : transformer_(transformer), layout_(KvLayout::Of(transformer->config())), on_tokens_(std::move(on_tokens)) {
  for (size_t i = begin; i < end; ++i) {
    Member& member = *members_.emplace_back(std::make_unique<Member>());
    member.run = &runs[i];
    member.outcome = &(*outcomes)[i];
    member.outcome->policy = runs[i].policy;
    member.one_by_one = runs[i].generated_tokens > 0;
    if (runs[i].compared_with < 0) continue;
    const auto base = static_cast<size_t>(runs[i].compared_with);
    SLUICE_CHECK(base >= begin && base < i, "a run is compared with one that comes before it in its group");
    members_[base - begin]->is_base = members_[base - begin]->one_by_one = member.one_by_one = true;
    member.base = members_[base - begin].get();
  }
}

Status Lockstep::MakeStores() {
  std::vector<Member*> order;
  for (const auto& member : members_) order.push_back(member.get());
  std::stable_partition(order.begin(), order.end(), [](const Member* m) { return m->is_base; });
  for (Member* member : order) {
    const auto same = [&](const auto& store) { return store->codec == member->run->codec; };
    auto found = std::find_if(stores_.begin(), stores_.end(), same);
    if (found == stores_.end()) {
      found = stores_.insert(found, std::make_unique<Store>(Store{.codec = member->run->codec}));
    }
    member->store = found->get();
    SLUICE_CHECK(!member->is_base || found == stores_.begin(), "what is compared with has one codec");
  }
  const auto pages_for = [](int64_t tokens) {
    return static_cast<int>((tokens + kLockstepPageTokens - 1) / kLockstepPageTokens);
  };
  for (const auto& store : stores_) {
    KvPoolOptions options = {.layout = layout_, .codec = store->codec, .page_tokens = kLockstepPageTokens};
    int prompt_pages = 0;
    for (const auto& member : members_) {
      if (member->store != store.get()) continue;
      options.pages += pages_for(SlotsOf(*member->run));
      prompt_pages = std::max(prompt_pages, pages_for(member->run->prompt_tokens));
    }
    options.pages += prompt_pages;
    SLUICE_ASSIGN_OR_RETURN(store->pool, KvPool::Create(options));
  }
  for (const auto& member : members_) {
    const int64_t slots = SlotsOf(*member->run);
    SLUICE_ASSIGN_OR_RETURN(member->pages, member->store->pool->Lease(pages_for(slots)));
    member->kept = std::make_unique<KeptSlots>(member->run->policy, layout_, slots);
  }
  return absl::OkStatus();
}

Status Lockstep::ComputePrompts() {
  std::vector<Member*> left;
  for (const auto& member : members_) {
    if (member->run->prompt_tokens > 0) left.push_back(member.get());
  }
  while (!left.empty()) {
    const Member* first = left.front();
    const auto other_prompt = std::stable_partition(left.begin(), left.end(), [&](const Member* m) {
      return m->store == first->store && m->run->ids.data() == first->run->ids.data() &&
             m->run->prompt_tokens == first->run->prompt_tokens;
    });
    SLUICE_RETURN_IF_ERROR(
        ComputePrompt(absl::MakeConstSpan(left).subspan(0, static_cast<size_t>(other_prompt - left.begin()))));
    left.erase(left.begin(), other_prompt);
  }
  return absl::OkStatus();
}

struct Lockstep::Scoring {
  CachePolicyKind kind;
  int64_t queries;
  std::unique_ptr<PromptScores> scores;
};

// The whole prompt is computed once; for each further way to score it, only the queries that are scored are once more.
Status Lockstep::ComputePrompt(absl::Span<Member* const> members) {
  const TextRun& run = *members[0]->run;
  Store& store = *members[0]->store;
  const int64_t tokens = run.prompt_tokens;
  const absl::Span<const TokenId> prompt = run.ids.subspan(0, static_cast<size_t>(tokens));
  SLUICE_ASSIGN_OR_RETURN(const PageLease pages, store.pool->Lease(store.pool->PagesFor(tokens)));

  std::vector<Scoring> scorings;
  const auto find = [&](const CachePolicy& policy) {
    return std::find_if(scorings.begin(), scorings.end(), [&](const Scoring& s) {
      return s.kind == policy.kind && s.queries == policy.QueriesScored(tokens);
    });
  };
  for (const Member* member : members) {
    const CachePolicy& policy = member->run->policy;
    if (!policy.ranks() || find(policy) != scorings.end()) continue;
    scorings.push_back(
        {policy.kind, policy.QueriesScored(tokens), std::make_unique<PromptScores>(policy, layout_, tokens)});
  }
  std::stable_sort(scorings.begin(), scorings.end(),
                   [](const Scoring& a, const Scoring& b) { return a.queries > b.queries; });
  PromptScores* first_scores = scorings.empty() ? nullptr : scorings[0].scores.get();
  SLUICE_ASSIGN_OR_RETURN(const TokenId next, PromptChunks(store, pages, prompt, 0, first_scores));
  for (size_t i = 1; i < scorings.size(); ++i) {
    PromptScores* scores = scorings[i].scores.get();
    SLUICE_RETURN_IF_ERROR(PromptChunks(store, pages, prompt, scores->first_query(), scores).status());
  }

  for (Member* member : members) {
    const auto scoring = find(member->run->policy);
    PromptScores* scores = scoring != scorings.end() ? scoring->scores.get() : nullptr;
    PrunePrompt(*store.pool, pages.pages(), member->pages.pages(), tokens, scores, *member->kept);
    if (member->run->generated_tokens > 0 && prompt.size() == member->run->ids.size()) {
      member->outcome->generated_tokens.push_back(next);
    }
    on_tokens_(tokens);
  }
  return absl::OkStatus();
}

// Tokens from position `first` on; returns the likeliest behind the last.
StatusOr<TokenId> Lockstep::PromptChunks(Store& store, const PageLease& pages, absl::Span<const TokenId> prompt,
                                         int64_t first, PromptScores* scores) {
  TokenId next = 0;
  const auto step = static_cast<size_t>(transformer_->options().batch_tokens_max);
  for (auto at = static_cast<size_t>(first); at < prompt.size(); at += step) {
    const bool last = at + step >= prompt.size();
    const SequenceChunk chunk = {.tokens = prompt.subspan(at, step),
                                 .start_position = static_cast<int64_t>(at),
                                 .pages = pages.pages(),
                                 .logits = last ? LogitsFor::kLast : LogitsFor::kNone,
                                 .scores = scores};
    SLUICE_ASSIGN_OR_RETURN(const absl::Span<const float> logits, transformer_->Forward({{chunk}}, *store.pool));
    if (last) next = Likeliest(logits);
  }
  return next;
}

// The next tokens of all members of a store: one each, or more where nothing leaves yet and nobody waits.
Status Lockstep::Step(Store& store) {
  std::vector<Member*> running;
  for (const auto& member : members_) {
    if (member->store == &store && member->left() > 0) running.push_back(member.get());
  }
  if (running.empty()) return absl::OkStatus();
  const int64_t share =
      std::max<int64_t>(1, transformer_->options().logit_rows_max / static_cast<int64_t>(running.size()));
  Batch batch;
  for (Member* member : running) {
    const int64_t position = member->kept->position();
    const int64_t tokens = member->one_by_one ? 1 : std::min({share, member->left(), member->kept->StepMax()});
    member->step_tokens.clear();
    for (int64_t i = 0; i < tokens; ++i) member->step_tokens.push_back(member->token(position + i));
    batch.sequences.push_back({.tokens = member->step_tokens,
                               .start_position = position,
                               .pages = member->pages.pages(),
                               .logits = LogitsFor::kAll,
                               .generated = true,
                               .kept = member->kept.get()});
  }
  SLUICE_ASSIGN_OR_RETURN(absl::Span<const float> logits, transformer_->Forward(batch, *store.pool));
  const auto vocab = static_cast<size_t>(transformer_->config().vocab_size);
  int64_t rows = 0;
  for (Member* member : running) {
    for (size_t i = 0; i < member->step_tokens.size(); ++i, ++rows) {
      Observe(*member, logits.subspan(0, vocab));
      logits.remove_prefix(vocab);
    }
  }
  on_tokens_(rows);
  return absl::OkStatus();
}

// The prediction behind the next token that was fed.
void Lockstep::Observe(Member& member, absl::Span<const float> logits) {
  TextOutcome& outcome = *member.outcome;
  const auto position = static_cast<size_t>(member.run->prompt_tokens + member.fed++);
  if (position + 1 >= member.run->ids.size()) {
    outcome.generated_tokens.push_back(Likeliest(logits));
    return;
  }
  const TokenId token = member.run->ids[position + 1];
  const double log_sum = LogSumExp(logits);
  const TokenId likeliest = Likeliest(logits);
  outcome.nlls.push_back(static_cast<float>(log_sum - logits[static_cast<size_t>(token)]));
  outcome.hits.push_back(likeliest == token);
  if (member.is_base) member.prediction.Set(logits, log_sum);
  // The other run is where this one is, or ended there.
  if (member.base == nullptr || member.base->fed != member.fed) return;
  ++outcome.compared;
  outcome.kld += member.base->prediction.Divergence(logits, log_sum);
  outcome.same_top += likeliest == member.base->prediction.likeliest();
}

Status Lockstep::Run() {
  SLUICE_RETURN_IF_ERROR(MakeStores());
  SLUICE_RETURN_IF_ERROR(ComputePrompts());
  const auto runs = [](const auto& member) { return member->left() > 0; };
  while (std::any_of(members_.begin(), members_.end(), runs)) {
    for (const auto& store : stores_) SLUICE_RETURN_IF_ERROR(Step(*store));
  }
  return absl::OkStatus();
}

}  // namespace sluice
