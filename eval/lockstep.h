// The runs of a TextRunner that are in memory together: prompts first, then steps of all of them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "eval/prediction.h"
#include "eval/text_runner.h"
#include "model/kept_slots.h"
#include "model/kv_pool.h"
#include "model/prompt_scores.h"

namespace sluice {

inline constexpr int kLockstepPageTokens = 16;

// Tokens behind the prompt that go through the cache: all that a known or a generated one follows.
int64_t TokensToFeed(const TextRun& run);
int64_t SlotsOf(const TextRun& run);

class Lockstep {
 public:
  // Runs [begin, end) of `runs`, whole groups; fills their outcomes. `on_tokens` hears of tokens as they are run.
  Lockstep(Transformer* transformer, absl::Span<const TextRun> runs, size_t begin, size_t end,
           std::vector<TextOutcome>* outcomes, std::function<void(int64_t tokens)> on_tokens);

  Status Run();

 private:
  // KV of one codec.
  struct Store {
    KvCodec codec;
    std::unique_ptr<KvPool> pool;
  };
  struct Member {
    const TextRun* run = nullptr;
    TextOutcome* outcome = nullptr;
    Store* store = nullptr;
    std::unique_ptr<KeptSlots> kept;
    PageLease pages;
    bool one_by_one = false;       // it is compared, or generates
    int64_t fed = 0;               // tokens behind the prompt
    const Member* base = nullptr;  // whom it is compared with
    bool is_base = false;          // others are compared with it
    BasePrediction prediction;     // of the latest step
    std::vector<TokenId> step_tokens;

    int64_t left() const { return TokensToFeed(*run) - fed; }
    // The token at `position`; generated ones as far as they are known.
    TokenId token(int64_t position) const;
  };
  // A way to score a common prompt, and what it gave.
  struct Scoring;

  Status MakeStores();
  Status ComputePrompts();
  // Of `members`, who have one prompt and store.
  Status ComputePrompt(absl::Span<Member* const> members);
  StatusOr<TokenId> PromptChunks(Store& store, const PageLease& pages, absl::Span<const TokenId> prompt, int64_t first,
                                 PromptScores* scores);
  Status Step(Store& store);
  void Observe(Member& member, absl::Span<const float> logits);

  Transformer* transformer_;
  KvLayout layout_;
  std::function<void(int64_t)> on_tokens_;
  std::vector<std::unique_ptr<Store>> stores_;  // those of runs that others are compared with come first
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace sluice
