// What a checkpoint says about its tokenizer, before anything is built from it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace sluice {

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special = false;  // control token: parsed in text only where the caller says so, not shown when decoding
  bool lstrip = false;   // takes the white space before it
  bool rstrip = false;
  bool normalized = false;  // matched after the normaliser has run
  bool single_word = false;
};

enum class TokenizerKind { kNone, kByteLevelBpe };

struct TokenizerData {
  TokenizerKind kind = TokenizerKind::kNone;
  std::string unsupported;          // why there is none, where kind is kNone: a sentence for whoever needs one
  std::vector<std::string> tokens;  // id -> piece in byte-level spelling ("Ġthe"); added tokens as they are
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<std::string> split_patterns;  // PCRE2, applied one after the other, each isolating its matches
  bool nfc = false;                         // normalise to NFC first
  bool ignore_merges = false;               // a piece that is a token as a whole is that token
  std::vector<AddedToken> added;
  std::optional<TokenId> bos_id;
  std::optional<TokenId> eos_id;
  std::optional<TokenId> unk_id;
  bool add_bos = false;
  std::string chat_template;  // empty where the checkpoint has none
  std::string bos_text;       // as templates see them
  std::string eos_text;
};

}  // namespace sluice
