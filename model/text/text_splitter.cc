#include "model/text/text_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/text/utf8.h"

namespace sluice {

namespace {
constexpr uint32_t kMatchLimit = 10'000'000;   // backtracking steps a match; PCRE2's own default
constexpr uint32_t kHeapLimitKib = 64 * 1024;  // of the interpreter, where there is no JIT

// \s and \S of Oniguruma in PCRE2's words: PCRE2's own \s also takes U+180E.
std::string Translate(std::string_view pattern) {
  // A run of white space at the end of the text can only begin where the run begins. Saying so keeps a long run in the
  // middle of a text from being tried from each of its characters.
  if (pattern == "\\s+$") pattern = "(?<!\\s)\\s+$";
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char next = pattern[++i];
    if (next == 's') {
      out += "\\p{White_Space}";
    } else if (next == 'S') {
      out += "\\P{White_Space}";
    } else {
      out += '\\';
      out += next;
    }
  }
  return out;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
}  // namespace

class TextSplitter::Pattern {
 public:
  static StatusOr<std::unique_ptr<Pattern>> Create(const std::string& source) {
    const std::string translated = Translate(source);
    int error = 0;
    size_t offset = 0;
    auto pattern = std::make_unique<Pattern>();
    pattern->code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
    if (pattern->code_ == nullptr) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(error, message, sizeof(message));
      return absl::InvalidArgumentError(absl::StrCat("tokenizer: pattern '", translated, "' at byte ", offset, ": ",
                                                     reinterpret_cast<const char*>(message)));
    }
    // Without the JIT (a system that forbids writable code) the interpreter does the same, slower.
    pcre2_jit_compile(pattern->code_.get(), PCRE2_JIT_COMPLETE);
    pattern->context_.reset(pcre2_match_context_create(nullptr));
    SLUICE_CHECK(pattern->context_ != nullptr);
    pcre2_set_match_limit(pattern->context_.get(), kMatchLimit);
    pcre2_set_heap_limit(pattern->context_.get(), kHeapLimitKib);
    return pattern;
  }

  void Isolate(std::string_view text, std::vector<std::string_view>& out) const {
    // The match data is this call's own: the rest may be shared by threads.
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
    SLUICE_CHECK(match != nullptr);
    size_t done = 0;
    size_t from = 0;
    while (from < text.size()) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                    PCRE2_NO_UTF_CHECK, match.get(), context_.get());
      if (found < 0) break;
      const size_t* span = pcre2_get_ovector_pointer(match.get());
      const size_t begin = span[0], end = span[1];
      // \K inside a look-around can put the begin behind the end or before what is done.
      if (end <= begin || begin < done) {
        from = std::max(from, end);
        if (from < text.size()) from += FirstChar(text.substr(from)).bytes;
        continue;
      }
      if (begin > done) out.push_back(text.substr(done, begin - done));
      out.push_back(text.substr(begin, end - begin));
      done = from = end;
    }
    if (done < text.size()) out.push_back(text.substr(done));
  }

 private:
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_context, FreeContext> context_;
};

TextSplitter::TextSplitter() = default;
TextSplitter::TextSplitter(TextSplitter&&) noexcept = default;
TextSplitter& TextSplitter::operator=(TextSplitter&&) noexcept = default;
TextSplitter::~TextSplitter() = default;

StatusOr<TextSplitter> TextSplitter::Create(const TokenizerData& data) {
  TextSplitter splitter;
  for (const std::string& source : data.split_patterns) {
    SLUICE_ASSIGN_OR_RETURN(auto pattern, Pattern::Create(source));
    splitter.patterns_.push_back(std::move(pattern));
  }
  return splitter;
}

std::vector<std::string_view> TextSplitter::Split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  for (const auto& pattern : patterns_) {
    std::vector<std::string_view> next;
    next.reserve(pieces.size());
    for (const std::string_view piece : pieces) pattern->Isolate(piece, next);
    pieces.swap(next);
  }
  return pieces;
}

}  // namespace sluice
