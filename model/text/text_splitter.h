// Splits text into the pieces within which tokens are merged: the checkpoint's patterns, one after the other, each
// isolating its matches. Immutable after Create.
//
// The patterns were written for Oniguruma. PCRE2 reads them alike but for \s, which here is the White_Space property.
// A match that exceeds PCRE2's limits ends the splitting of its stretch, whose rest stays one piece: a hostile text
// gets other tokens than in the reference, never unbounded work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

class TextSplitter {
 public:
  // InvalidArgument names a pattern that does not compile.
  static StatusOr<TextSplitter> Create(const TokenizerData& data);
  TextSplitter(TextSplitter&&) noexcept;
  TextSplitter& operator=(TextSplitter&&) noexcept;
  ~TextSplitter();

  // The pieces of `text` in order; together they are `text`. REQUIRES: valid UTF-8.
  std::vector<std::string_view> Split(std::string_view text) const;

 private:
  class Pattern;
  TextSplitter();
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace sluice
