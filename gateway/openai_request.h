// Bodies of POST /v1/completions and /v1/chat/completions, from bytes that anybody may send to a plain value. Pure.
// Fields that OpenAI clients send and that change nothing here are ignored; fields that would change the answer and
// cannot be honoured are refused, and so is anything that speaks about KV transfer: that is between the workers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/cache_policy.h"
#include "common/ids.h"
#include "common/sampling_params.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

enum class OpenAiApi { kCompletions, kChat };

struct OpenAiRequest {
  OpenAiApi api = OpenAiApi::kCompletions;
  std::string model;  // empty where the client did not say

  // Completions: text, or ids where `prompt_is_ids`.
  std::string prompt_text;
  std::vector<TokenId> prompt_ids;
  bool prompt_is_ids = false;
  bool parse_special =
      false;  // control tokens spelled in prompt_text are control tokens: the client writes its own turns

  // Chat. Contents are strings or null: arrays of text parts have been joined with newlines.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;               // array or null
  nlohmann::ordered_json template_variables;  // chat_template_kwargs: object or null

  SamplingParams sampling;
  std::optional<int> max_tokens;  // as asked; sampling.max_tokens is set once the prompt's length is known
  std::optional<uint64_t> seed;   // as asked; sampling.seed is drawn otherwise
  std::optional<CachePolicySpec> cache_policy;  // the deployment's otherwise

  bool stream = false;
  bool include_usage = false;     // stream_options.include_usage
  bool return_token_ids = false;  // ids of prompt and choices in the answer
  bool return_timings = false;    // stage times in the answer
};

// What nesting and how many values a body may have, before memory is spent on it.
inline constexpr int kJsonDepthMax = 64;
inline constexpr int kJsonValuesMax = 1'000'000;
inline constexpr int kJsonMembersMax = 1'500;

// InvalidArgument otherwise, with a sentence that names the field and both values, and the field for ErrorParam().
StatusOr<OpenAiRequest> ParseOpenAiRequest(OpenAiApi api, std::string_view body, int vocab_size);

// An InvalidArgument about a field of the body, and that field's name again (empty where a status has none).
Status FieldError(std::string_view field, std::string_view message);
Status WithErrorParam(Status status, std::string_view field);
std::string ErrorParam(const Status& status);

}  // namespace sluice
