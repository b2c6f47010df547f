#include "eval/needle_text.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_join.h"
#include "eval/sample_text.h"

namespace sluice {
namespace {

constexpr int kFacts = 4;
constexpr int kSentencesMin = 2 * kFacts;
// Stands where the question begins while a template is filled in.
constexpr std::string_view kMark = "\x01question\x01";

constexpr std::string_view kSubjects[] = {"captain of the ferry", "night porter",   "town archivist", "lock keeper",
                                          "harbour pilot",        "station master", "bell founder",   "chief surveyor"};
constexpr std::string_view kObjects[] = {"secret word", "favourite dish", "hiding place", "private number"};
constexpr std::string_view kWords[] = {"copper swan", "winter plum",  "lazy comet",    "seventh lantern",
                                       "marble fox",  "paper anchor", "sleepy dragon", "orange thistle"};
constexpr std::string_view kDishes[] = {"pickled herring", "walnut cake", "barley soup",
                                        "roast quince",    "onion pie",   "smoked trout"};
constexpr std::string_view kHidings[] = {"under the organ", "behind the bakery", "inside the sundial",
                                         "in the hayloft",  "below the pulpit",  "among the beehives"};

std::string Answer(Rng& rng, size_t object) {
  switch (object) {
    case 0:
      return std::string(kWords[rng.Bits() % std::size(kWords)]);
    case 1:
      return std::string(kDishes[rng.Bits() % std::size(kDishes)]);
    case 2:
      return std::string(kHidings[rng.Bits() % std::size(kHidings)]);
    default:
      return std::to_string(1000 + rng.Bits() % 9000);
  }
}

struct Fact {
  std::string what;  // "secret word of the night porter"
  std::string value;
  size_t behind;  // so many sentences
};

// Each of another object and subject.
std::array<Fact, kFacts> MakeFacts(Rng& rng, size_t sentences, double depth) {
  std::array<Fact, kFacts> facts;
  const size_t first_object = rng.Bits();
  const size_t first_subject = rng.Bits();
  for (size_t i = 0; i < kFacts; ++i) {
    const size_t object = (first_object + i) % std::size(kObjects);
    // Steps of three visit all eight subjects.
    const size_t subject = (first_subject + 3 * i) % std::size(kSubjects);
    facts[i].what.append(kObjects[object]).append(" of the ").append(kSubjects[subject]);
    facts[i].value = Answer(rng, object);
    facts[i].behind = i == 0 ? static_cast<size_t>(depth * static_cast<double>(sentences)) : rng.Bits() % sentences;
  }
  return facts;
}

struct PromptIds {
  std::vector<TokenId> context;
  std::vector<TokenId> question;
};

StatusOr<PromptIds> Encode(const PromptForm& form, const NeedleText& text) {
  std::string whole = text.context + "\n" + std::string(kMark) + text.question;
  if (form.chat_template != nullptr) {
    ChatTemplate::Input input;
    input.messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", whole}}});
    input.bos_token = form.bos_text;
    input.eos_token = form.eos_text;
    SLUICE_ASSIGN_OR_RETURN(whole, form.chat_template->Render(input));
  } else {
    whole += "\n";
  }
  whole += text.answer_start;
  const size_t mark = whole.find(kMark);
  if (mark == std::string::npos) {
    return absl::FailedPreconditionError("the model's chat template does not show a user's message as it is");
  }
  const Tokenizer& tokenizer = *form.tokenizer;
  PromptIds ids;
  ids.context = tokenizer.Encode(whole.substr(0, mark), Tokenizer::SpecialTokens::kParse);
  ids.question = tokenizer.Encode(whole.substr(mark + kMark.size()), Tokenizer::SpecialTokens::kParse);
  if (form.chat_template == nullptr && tokenizer.add_bos()) ids.context.insert(ids.context.begin(), tokenizer.bos_id());
  return ids;
}

StatusOr<NeedlePrompt> MakePrompt(const PromptForm& form, uint64_t seed, int64_t length, double depth) {
  // The longest that fits: sentences are of about one length, so the search begins near its end.
  int sentences = kSentencesMin;
  NeedlePrompt prompt = {.depth = depth, .length = length};
  for (;;) {
    const NeedleText text = MakeNeedleText(seed, sentences, depth);
    SLUICE_ASSIGN_OR_RETURN(PromptIds ids, Encode(form, text));
    const auto tokens = static_cast<int64_t>(ids.context.size());
    if (tokens > length && prompt.context.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a needle's prompt has at least ", tokens, " tokens, and is to have ", length));
    }
    if (tokens > length) return prompt;
    prompt.context = std::move(ids.context);
    prompt.question = std::move(ids.question);
    prompt.answer = form.tokenizer->Encode(text.answer, Tokenizer::SpecialTokens::kAsText);
    // Never more than what is surely missing, at some thirty tokens a sentence, and at least one.
    sentences += static_cast<int>(std::max<int64_t>(1, (length - tokens) / 30));
  }
}

}  // namespace

NeedleText MakeNeedleText(uint64_t seed, int sentences, double depth) {
  Rng rng(seed);
  const auto count = static_cast<size_t>(std::max(sentences, kSentencesMin));
  const std::array<Fact, kFacts> facts = MakeFacts(rng, count, depth);
  std::vector<std::string> body;
  for (size_t i = 0; i <= count; ++i) {
    for (const Fact& fact : facts) {
      if (fact.behind == i) body.push_back("The " + fact.what + " is \"" + fact.value + "\".");
    }
    if (i < count) body.push_back(SampleSentence(rng));
  }
  return {.context = absl::StrJoin(body, " "),
          .question = "What is the " + facts[0].what + "?",
          .answer_start = "The " + facts[0].what + " is \"",
          .answer = facts[0].value};
}

StatusOr<std::vector<NeedlePrompt>> MakeNeedlePrompts(const PromptForm& form, uint64_t seed,
                                                      const std::vector<int64_t>& lengths, int count) {
  std::vector<NeedlePrompt> prompts;
  for (const int64_t length : lengths) {
    for (int i = 0; i < count; ++i) {
      const double depth = (i + 0.5) / count;
      SLUICE_ASSIGN_OR_RETURN(NeedlePrompt prompt, MakePrompt(form, RandomBits(seed, prompts.size()), length, depth));
      prompts.push_back(std::move(prompt));
    }
  }
  return prompts;
}

}  // namespace sluice
