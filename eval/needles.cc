#include "eval/needles.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr QuestionAt kQuestions[] = {QuestionAt::kSeen, QuestionAt::kAfter};

NeedleRow::Answer AnswerOf(const TextOutcome& outcome, size_t answer_tokens) {
  NeedleRow::Answer answer = {.exact = true};
  for (size_t i = outcome.nlls.size() - answer_tokens; i < outcome.nlls.size(); ++i) {
    answer.nll += outcome.nlls[i] / static_cast<double>(answer_tokens);
    answer.exact = answer.exact && outcome.hits[i];
  }
  return answer;
}

}  // namespace

std::string_view Name(QuestionAt at) { return at == QuestionAt::kSeen ? "seen" : "after"; }

int64_t NeedleRow::exact() const {
  return std::count_if(answers.begin(), answers.end(), [](const Answer& a) { return a.exact; });
}

double NeedleRow::mean_nll() const {
  double sum = 0;
  for (const Answer& a : answers) sum += a.nll;
  return sum / static_cast<double>(answers.size());
}

StatusOr<std::vector<NeedleRow>> MeasureNeedles(TextRunner& runner, absl::Span<const NeedlePrompt> prompts,
                                                absl::Span<const CacheCase> caches) {
  std::vector<std::vector<TokenId>> texts;
  for (const NeedlePrompt& prompt : prompts) {
    std::vector<TokenId>& text = texts.emplace_back(prompt.context);
    text.insert(text.end(), prompt.question.begin(), prompt.question.end());
    text.insert(text.end(), prompt.answer.begin(), prompt.answer.end());
  }
  // The question's last token is always fed: its prediction is the first that counts.
  std::vector<TextRun> runs;
  for (size_t p = 0; p < prompts.size(); ++p) {
    for (const QuestionAt at : kQuestions) {
      const size_t pruned = prompts[p].context.size() + (at == QuestionAt::kSeen ? prompts[p].question.size() - 1 : 0);
      const auto prompt_tokens = static_cast<int64_t>(pruned);
      for (const CacheCase& cache : caches) {
        SLUICE_ASSIGN_OR_RETURN(const CachePolicy policy, Resolve(cache.policy, prompt_tokens));
        runs.push_back({.ids = texts[p],
                        .policy = policy,
                        .codec = cache.codec,
                        .prompt_tokens = prompt_tokens,
                        .group = static_cast<int64_t>(2 * p) + (at == QuestionAt::kAfter)});
      }
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TextOutcome> outcomes, runner.Run(runs));
  std::vector<NeedleRow> rows;
  for (size_t at = 0; at < std::size(kQuestions); ++at) {
    for (size_t c = 0; c < caches.size(); ++c) {
      NeedleRow& row = rows.emplace_back(NeedleRow{.cache = caches[c], .question = kQuestions[at]});
      for (size_t p = 0; p < prompts.size(); ++p) {
        const TextOutcome& outcome = outcomes[(p * std::size(kQuestions) + at) * caches.size() + c];
        row.answers.push_back(AnswerOf(outcome, prompts[p].answer.size()));
      }
    }
  }
  return rows;
}

}  // namespace sluice
