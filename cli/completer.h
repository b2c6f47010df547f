// Whoever can continue a prompt: a model in this process or a service behind a URL. `complete` and `chat` know no more
// than this. Used by one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/sampling_params.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

struct CompletionRequest {
  // Exactly one of the three is not empty.
  std::string text;
  std::vector<TokenId> ids;
  nlohmann::ordered_json messages;  // of a chat: array of {"role", "content"}

  SamplingParams sampling;
};

struct CompletionAnswer {
  struct TokenLogprobs {
    float logprob = 0;
    std::vector<std::pair<std::string, float>> top;  // likeliest first
  };

  std::vector<TokenId> ids;
  std::string text;
  std::string finish_reason;            // "stop" or "length"
  std::vector<TokenLogprobs> logprobs;  // one for each id, where asked for
  int prompt_tokens = 0;
  // Under a cache policy: of how many of all tokens so far there is still KV, in each list of slots.
  struct Cache {
    std::string policy;
    int64_t kept_tokens = 0;
    int64_t dropped_tokens = 0;
  };
  std::optional<Cache> cache;
  // Milliseconds and rates by name; which there are depends on who answered.
  std::vector<std::pair<std::string, double>> timings;
};

class Completer {
 public:
  virtual ~Completer() = default;

  // Blocks until the answer is whole; `on_text` gets each part of it as it comes.
  virtual StatusOr<CompletionAnswer> Complete(const CompletionRequest& request,
                                              const std::function<void(std::string_view)>& on_text) = 0;
};

}  // namespace sluice
