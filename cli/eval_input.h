// The texts that `sluice eval` measures on: the user's, or generated ones.
#pragma once

#include <vector>

#include "cli/eval_flags.h"
#include "eval/needles.h"
#include "model/checkpoint/checkpoint.h"

namespace sluice {

struct EvalInput {
  std::vector<std::vector<TokenId>> windows;  // of --context tokens each, for perplexity and agreement
  std::vector<TokenId> stream;
  std::vector<NeedlePrompt> needles;
};

// Whatever the parts need. --input names a JSON object with any of
//   "text", "stream": a string or an array of token ids;
//   "needles": an array of {"context", "question", "answer": likewise; "depth": 0 to 1, "length": tokens}.
// Strings may hold special tokens in their spelling; nothing is put before them. What is not there is generated.
StatusOr<EvalInput> ReadEvalInput(const EvalFlags& flags, const Checkpoint& checkpoint);

}  // namespace sluice
