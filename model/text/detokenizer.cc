#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace sluice {

std::string Detokenizer::Push(TokenId id) {
  pending_ += tokenizer_->Bytes(id);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char c = FirstChar(rest);
    if (c.incomplete) break;
    out += c.valid ? rest.substr(0, c.bytes) : kReplacementUtf8;
    rest.remove_prefix(c.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string Detokenizer::Flush() {
  // What is pending is the beginning of one character, so one maximal invalid part.
  std::string out(pending_.empty() ? std::string_view() : kReplacementUtf8);
  pending_.clear();
  return out;
}

}  // namespace sluice
