// From logits to a token: a pure function of logits, parameters, counts and a counter-based draw, so that a seed gives
// the same token whatever else is in the batch and on whichever side of a handoff it is drawn.
//
// The order: logit bias; repetition penalty; presence and frequency penalties (these in the form that OpenAI documents
// and vLLM's sampler uses: repetition over prompt and generated tokens, the others over generated ones); tokens that
// may not come yet are taken out; temperature; top-k; top-p; min-p (the order of transformers' logits warpers). What
// top-k keeps is the distribution that top-p counts in. Equal logits are ordered by id, the lower first, everywhere:
// greedy takes the lowest id of the best, and top-k keeps exactly k tokens. Log-probabilities are those of the model:
// the log-softmax of the logits as given.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/sampling_params.h"
#include "common/status.h"

namespace sluice {

struct SamplerInput {
  absl::Span<const float> logits;                                       // [vocab]
  const SamplingParams* params = nullptr;                               // valid for this vocabulary
  absl::Span<const TokenId> prompt_tokens;                              // each once; for the repetition penalty
  const absl::flat_hash_map<TokenId, int>* generated_counts = nullptr;  // how often each was generated
  absl::Span<const TokenId> excluded;                                   // must not be drawn
  uint64_t key = 0;                                                     // of the choice
  uint64_t counter = 0;                                                 // draws so far
};

struct LogProb {
  TokenId token = 0;
  float logprob = 0;
};

struct Sampled {
  TokenId token = 0;
  float logprob = 0;         // where params->logprobs
  std::vector<LogProb> top;  // params->top_logprobs of them, likeliest first
};

// Whether a token takes a random number: greedy sampling does not.
bool DrawsRandomly(const SamplingParams& params);

// Internal where a logit is NaN or plus infinity, where none is left to draw from: never a token then. Minus infinity
// is a token that cannot come. Time: linear in the vocabulary, times its logarithm for what top-k and top-p keep.
StatusOr<Sampled> SampleToken(const SamplerInput& input);

}  // namespace sluice
