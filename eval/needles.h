// Whether a fact that stands somewhere in a long prompt is still known when it is asked for.
#pragma once

#include <vector>

#include "eval/cache_case.h"
#include "eval/text_runner.h"

namespace sluice {

struct NeedlePrompt {
  std::vector<TokenId> context;   // the prompt up to the question
  std::vector<TokenId> question;  // and the beginning of the answer, which leaves one way to go on
  std::vector<TokenId> answer;
  double depth = 0;    // where in the context the fact stands: 0 at its beginning, 1 at its end
  int64_t length = 0;  // tokens that were asked for, by which prompts are told apart
};

// When the policy chooses what to keep: the question is part of the prompt that is pruned, as in a request; or the
// context is pruned first and the question goes through the bounded cache, as in a conversation's next turn.
enum class QuestionAt : uint8_t { kSeen, kAfter };
std::string_view Name(QuestionAt at);  // "seen", "after"

struct NeedleRow {
  CacheCase cache;
  QuestionAt question = QuestionAt::kSeen;
  struct Answer {
    bool exact = false;  // every token of the answer is the likeliest
    double nll = 0;      // the mean over its tokens
  };
  std::vector<Answer> answers;  // in the order of the prompts

  int64_t exact() const;
  double mean_nll() const;
};

// Rows of each cache with the question seen, then with it after. Budgets that are shares are shares of what is pruned.
StatusOr<std::vector<NeedleRow>> MeasureNeedles(TextRunner& runner, absl::Span<const NeedlePrompt> prompts,
                                                absl::Span<const CacheCase> caches);

}  // namespace sluice
