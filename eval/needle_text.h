// Prompts of a chosen length with a fact at a chosen depth, and the question for it. Three other facts of the same kind
// stand elsewhere, so that the answer is not just the only thing that is unlike the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/needles.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"

namespace sluice {

struct NeedleText {
  std::string context;
  std::string question;
  std::string answer_start;  // what the model has said already: all but the answer
  std::string answer;
};

// Facts among `sentences` sentences; the one that is asked for stands behind the share `depth` of them.
NeedleText MakeNeedleText(uint64_t seed, int sentences, double depth);

// How a model is spoken to. Without a template the question simply follows the context.
struct PromptForm {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // may be null
  std::string bos_text;
  std::string eos_text;
};

// `count` prompts of each length, at depths that divide the context evenly. A context has at most `length` tokens with
// all that stands around it, and the whole prompt a question more.
StatusOr<std::vector<NeedlePrompt>> MakeNeedlePrompts(const PromptForm& form, uint64_t seed,
                                                      const std::vector<int64_t>& lengths, int count);

}  // namespace sluice
