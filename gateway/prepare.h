// From a body to what the workers are given: parsed, validated, templated and tokenised, once and only here. Pure; runs
// off the loop's thread, since a long prompt takes its time.
//
// Control tokens in what clients write: the template's own text is encoded with special tokens parsed, and a message
// that spells one ("<|im_end|>") must not become it, or any user could close his turn and speak as the system. So every
// such spelling in messages, tools and template variables is marked before rendering and encoded as ordinary text
// afterwards. Conversations without one are encoded in one piece, exactly as the reference implementations do.
#pragma once

#include <string_view>
#include <vector>

#include "gateway/openai_request.h"
#include "gateway/served_model.h"

namespace sluice {

struct PrepareLimits {
  int64_t context_tokens_max = 0;  // of prompts; of generation too, unless the cache policy says otherwise
  std::vector<CachePolicySpec> decode_policies;  // of requests that name none, wherever they may go
  int64_t prompt_tokens_max = 0;                 // 0: only the context counts
  int default_max_tokens = 1024;                 // of chats that do not say
  uint64_t random_seed = 0;                      // where the client gave none
};

struct PreparedRequest {
  OpenAiRequest openai;             // without messages, tools and prompt, which have become:
  std::vector<TokenId> prompt_ids;  // at least one
  SamplingParams sampling;          // max_tokens clipped to what may be generated, seed set
};

// InvalidArgument with ErrorParam(); NotFound for another model's name; OutOfRange for a prompt beyond the limits.
StatusOr<PreparedRequest> PrepareRequest(const ServedModel& model, const PrepareLimits& limits, OpenAiApi api,
                                         std::string_view body);

}  // namespace sluice
