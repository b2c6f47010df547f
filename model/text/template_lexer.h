// A template's source as tokens, white space control already applied (trim_blocks, lstrip_blocks, "-" and "+").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace sluice::jinja {

struct Token {
  enum class Type : uint8_t {
    kText,
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // text is decoded
    kInteger,
    kFloat,
    kOperator,  // text is the operator
    kEnd,
  };
  Type type = Type::kEnd;
  std::string text;
  int line = 1;
};

// InvalidArgument with the line. The last token is kEnd.
StatusOr<std::vector<Token>> Lex(std::string_view source);

inline Status ErrorAt(int line, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("chat template, line ", line, ": ", absl::string_view(message.data(), message.size())));
}

}  // namespace sluice::jinja
