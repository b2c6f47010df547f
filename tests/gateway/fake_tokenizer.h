// A tokenizer whose ids are bytes, with two control tokens above them.
#pragma once

#include <string>
#include <vector>

#include "model/text/tokenizer.h"

namespace sluice {

class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr TokenId kStart = 256;  // "<|start|>"
  static constexpr TokenId kEnd = 257;    // "<|end|>"

  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const override {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < text.size(); ++i) {
      bool found = false;
      for (const TokenId id : {kStart, kEnd}) {
        if (special == SpecialTokens::kParse && text.substr(i).starts_with(pieces_[id])) {
          ids.push_back(id);
          i += pieces_[id].size() - 1;
          found = true;
          break;
        }
      }
      if (!found) ids.push_back(static_cast<unsigned char>(text[i]));
    }
    return ids;
  }
  std::string_view Bytes(TokenId id, bool show_special) const override {
    return id >= kStart && !show_special ? std::string_view() : std::string_view(pieces_[id]);
  }
  bool IsSpecial(TokenId id) const override { return id >= kStart; }
  int vocab_size() const override { return 258; }
  bool add_bos() const override { return false; }
  TokenId bos_id() const override { return -1; }

 private:
  static std::vector<std::string> Pieces() {
    std::vector<std::string> pieces;
    for (int i = 0; i < 256; ++i) pieces.emplace_back(1, static_cast<char>(i));
    pieces.push_back("<|start|>");
    pieces.push_back("<|end|>");
    return pieces;
  }
  const std::vector<std::string> pieces_ = Pieces();
};

}  // namespace sluice
