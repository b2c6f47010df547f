// Finds added tokens in text: at each position the longest that begins there, from left to right. Immutable.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

class AddedTokens {
 public:
  // Takes the tokens for which `take` holds. Those with an empty text are never found.
  template <typename Take>
  AddedTokens(const std::vector<AddedToken>& tokens, Take take) {
    for (const AddedToken& token : tokens) {
      if (!token.text.empty() && take(token)) Insert(token);
    }
  }

  struct Part {
    std::string_view text;  // empty where it is a token
    TokenId id = -1;        // -1 where it is text
  };
  // Text and tokens in order; a token may have taken the white space around it. REQUIRES: valid UTF-8.
  std::vector<Part> Split(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;
    int token = -1;
  };
  struct Found {
    size_t bytes = 0;
    int token = -1;
  };
  void Insert(const AddedToken& token);
  Found LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  bool starts_[256] = {};
};

}  // namespace sluice
