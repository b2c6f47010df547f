// What a request asks of sampling and of its end, as a plain value that every process understands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace sluice {

struct LogitBias {
  TokenId token = 0;
  float bias = 0;  // added to the logit; OpenAI's range is -100..100
};

struct SamplingParams {
  float temperature = 1.0f;         // 0 is greedy; 0..2
  int top_k = 0;                    // 0 keeps all
  float top_p = 1.0f;               // (0, 1]; nucleus, the token that crosses the border is kept
  float min_p = 0.0f;               // [0, 1]; of the likeliest token's probability
  float repetition_penalty = 1.0f;  // > 0; prompt and generated tokens (Keskar et al. 2019): logit > 0 ? / p : * p
  float presence_penalty = 0.0f;    // -2..2; generated tokens only, as OpenAI defines it
  float frequency_penalty = 0.0f;   // -2..2; times how often the token was generated
  std::vector<LogitBias> logit_bias;

  uint64_t seed =
      0;      // choice i of n draws from key RandomBits(seed, i); the gateway draws one where the client gave none
  int n = 1;  // choices; 1..kMaxChoices

  int max_tokens = 16;                    // generated tokens a choice, the first included; 1..kMaxTokens
  int min_tokens = 0;                     // until then no stop token is sampled and no stop string ends it
  bool ignore_eos = false;                // the model's own end tokens do not end it (stop_token_ids still do)
  std::vector<TokenId> stop_token_ids;    // end it; not part of the text
  std::vector<std::string> stop_strings;  // end it at the earliest match; text from the match on is not sent

  int top_logprobs = 0;   // alternatives a token, 0..kMaxTopLogprobs
  bool logprobs = false;  // log-probability of each token, from the unmodified logits (log_softmax before any penalty)

  static constexpr int kMaxChoices = 16;
  static constexpr int kMaxTokens = 1 << 24;  // 64 MiB of ids
  static constexpr int kMaxTopLogprobs = 20;
  static constexpr int kMaxStops = 16;
  static constexpr int kMaxStopBytes = 1024;
  static constexpr int kMaxLogitBias = 1024;

  // Every problem at once (the first 16), each naming the field and its value and limits. InvalidArgument.
  Status Validate(int vocab_size) const;
};

}  // namespace sluice
