// Chat templates: an interpreter for the Jinja that published templates use (lexer, parser, evaluator). Immutable after
// Parse. The environment is transformers' apply_chat_template: trim_blocks, lstrip_blocks, undefined prints as nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

class ChatTemplate {
 public:
  // InvalidArgument names the line of what it does not know.
  static StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string_view source);
  virtual ~ChatTemplate() = default;

  struct Input {
    nlohmann::ordered_json messages;   // array of objects
    nlohmann::ordered_json tools;      // array or null
    nlohmann::ordered_json documents;  // array or null
    nlohmann::ordered_json variables;  // further names, an object or null
    bool add_generation_prompt = true;
    std::string bos_token;
    std::string eos_token;
    std::optional<int64_t> now_unix_s;  // what strftime_now shows, in UTC; absent: the system's clock
  };
  // InvalidArgument with the template's own words for raise_exception, with the line for other errors. Work and output
  // are bounded.
  virtual StatusOr<std::string> Render(const Input& input) const = 0;
};

}  // namespace sluice
