// Byte-level BPE: text to ids and back. Immutable after Create, so any thread may use it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

class Tokenizer {
 public:
  // InvalidArgument for data that contradicts itself; FailedPrecondition with data.unsupported where there is none.
  static StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerData& data);
  virtual ~Tokenizer() = default;

  // With kParse, texts of special tokens become those tokens (chat templates); with kAsText they are ordinary text
  // (what a user typed). Added tokens that are not special are always parsed. Invalid UTF-8: each maximal invalid part
  // counts as U+FFFD. No BOS is added; see add_bos().
  enum class SpecialTokens { kAsText, kParse };
  virtual std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const = 0;

  // The bytes that `id` stands for; not necessarily whole characters. Empty for special tokens unless `show_special`.
  // REQUIRES: 0 <= id < vocab_size().
  virtual std::string_view Bytes(TokenId id, bool show_special = false) const = 0;

  virtual bool IsSpecial(TokenId id) const = 0;
  virtual int vocab_size() const = 0;
  virtual bool add_bos() const = 0;
  virtual TokenId bos_id() const = 0;  // -1 where there is none
};

// Turns ids into text as they come, never sending a part of a character. A character is sent when its last byte is
// known; bytes that cannot become one are sent as U+FFFD at once.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  std::string Push(TokenId id);
  std::string Flush();  // what remains at the end, as U+FFFD

  // The bytes held back; set again on the other side of a handoff. REQUIRES for set: at most 3 bytes.
  const std::string& pending() const { return pending_; }
  void set_pending(std::string bytes) { pending_ = std::move(bytes); }

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace sluice
