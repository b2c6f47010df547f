#include "model/text/template_lexer.h"

#include <algorithm>

#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace sluice::jinja {

namespace {

using Type = Token::Type;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(std::string_view text) {
  const char32_t c = FirstChar(text).code_point;
  return c == '_' || (c < 0x80 ? (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') : IsAlphabetic(c));
}
int NameCharBytes(std::string_view text) {
  const Utf8Char c = FirstChar(text);
  return c.valid && (c.code_point == '_' || IsWordChar(c.code_point)) ? c.bytes : 0;
}
// Bytes of the white space character that text begins with; 0 where it begins with none.
int SpaceBytes(std::string_view text) {
  if (text.empty()) return 0;
  const Utf8Char c = FirstChar(text);
  return IsPythonSpace(c.code_point) ? c.bytes : 0;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) SLUICE_RETURN_IF_ERROR(TextAndTag());
    Add(Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return source_.substr(at_); }
  bool StartsWith(std::string_view prefix) const { return rest().substr(0, prefix.size()) == prefix; }
  Status Fail(std::string_view message) const { return ErrorAt(line_, message); }
  void Add(Type type, std::string_view text) { tokens_.push_back({type, std::string(text), line_}); }
  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
    if (bytes > 0) at_line_start_ = source_[at_ - 1] == '\n';
  }
  void SkipSpace() {
    while (const int bytes = SpaceBytes(rest())) Skip(bytes);
  }
  size_t FindTag(size_t from) const {
    for (size_t i = source_.find('{', from); i != std::string_view::npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return source_.size();
  }

  // The text before a tag at `tag`, as white space control leaves it. `sign` is the character after "{%".
  std::string_view TextBefore(size_t tag, char sign, bool is_output) const {
    const std::string_view text = source_.substr(at_, tag - at_);
    if (sign == '-') return StripRight(text);
    if (sign == '+' || is_output) return text;
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !at_line_start_) return text;
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    return StripLeft(text.substr(line_begin)).empty() ? text.substr(0, line_begin) : text;
  }

  Status TextAndTag() {
    const size_t tag = FindTag(at_);
    if (tag == source_.size()) {
      Add(Type::kText, rest());
      Skip(source_.size() - at_);
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const std::string_view text = TextBefore(tag, sign, kind == '{');
    if (!text.empty()) Add(Type::kText, text);
    Skip(tag - at_);
    if (kind == '#') return Comment();
    Skip(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '%') {
      bool raw = false;
      SLUICE_RETURN_IF_ERROR(Raw(raw));
      if (raw) return absl::OkStatus();
    }
    Add(kind == '{' ? Type::kOutputBegin : Type::kBlockBegin, "");
    return Inside(kind == '{');
  }

  Status Comment() {
    const bool has_sign = at_ + 2 < source_.size() && (source_[at_ + 2] == '-' || source_[at_ + 2] == '+');
    const size_t body = at_ + 2 + has_sign;
    const size_t end = source_.find("#}", body);
    if (end == std::string_view::npos) return Fail("a comment without its end '#}'");
    const char sign = end > body ? source_[end - 1] : '\0';
    Skip(end + 2 - at_);
    EndOfBlock(sign);
    return absl::OkStatus();
  }

  // After the end of a block or comment.
  void EndOfBlock(char sign) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && StartsWith("\n")) {
      Skip(1);
    }
  }

  // Where the cursor, past "{%" and its sign, stands before the word `word` and the end of the tag: the tag's bytes
  // and the sign at its end.
  struct WordTag {
    size_t bytes = 0;
    char sign = '\0';
  };
  static WordTag MatchWordTag(std::string_view text, std::string_view word, bool plus_allowed) {
    size_t i = 0;
    while (const int bytes = SpaceBytes(text.substr(i))) i += bytes;
    if (text.substr(i, word.size()) != word) return {};
    i += word.size();
    while (const int bytes = SpaceBytes(text.substr(i))) i += bytes;
    const char sign = i < text.size() ? text[i] : '\0';
    if (sign == '-' || (sign == '+' && plus_allowed)) ++i;
    if (text.substr(i, 2) != "%}") return {};
    return {i + 2, sign};
  }

  // {% raw %} is text up to {% endraw %}. A newline after {% raw %} stays.
  Status Raw(bool& raw) {
    const WordTag begin = MatchWordTag(rest(), "raw", false);
    if (begin.bytes == 0) return absl::OkStatus();
    raw = true;
    Skip(begin.bytes);
    if (begin.sign == '-') SkipSpace();
    for (size_t tag = source_.find("{%", at_); tag != std::string_view::npos; tag = source_.find("{%", tag + 2)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const size_t inner = tag + 2 + (sign == '-' || sign == '+');
      const WordTag end = MatchWordTag(source_.substr(std::min(inner, source_.size())), "endraw", true);
      if (end.bytes == 0) continue;
      Add(Type::kText, TextBefore(tag, sign, false));
      Skip(inner + end.bytes - at_);
      EndOfBlock(end.sign);
      return absl::OkStatus();
    }
    return Fail("'raw' without its 'endraw'");
  }

  // The tokens of an expression or a statement, up to its end.
  Status Inside(bool is_output) {
    const std::string_view end = is_output ? "}}" : "%}";
    std::string open;  // brackets that wait for their other half: inside them, "}}" ends nothing
    while (true) {
      SkipSpace();
      if (at_ >= source_.size()) return Fail(is_output ? "'{{' without its '}}'" : "'{%' without its '%}'");
      if (open.empty()) {
        const char first = rest()[0];
        const bool sign = first == '-' || (first == '+' && !is_output);
        if (source_.substr(at_ + sign, 2) == end) {
          Add(is_output ? Type::kOutputEnd : Type::kBlockEnd, "");
          Skip(2 + sign);
          if (!is_output) {
            EndOfBlock(sign ? first : '\0');
          } else if (sign) {
            SkipSpace();
          }
          return absl::OkStatus();
        }
      }
      SLUICE_RETURN_IF_ERROR(One(open));
    }
  }

  Status One(std::string& open) {
    const char first = rest()[0];
    if (first == '\'' || first == '"') return StringLiteral(first);
    if (IsDigit(first)) return Number();
    if (IsNameStart(rest())) {
      size_t bytes = FirstChar(rest()).bytes;
      while (at_ + bytes < source_.size()) {
        const int more = NameCharBytes(rest().substr(bytes));
        if (more == 0) break;
        bytes += more;
      }
      Add(Type::kName, rest().substr(0, bytes));
      Skip(bytes);
      return absl::OkStatus();
    }
    return Operator(open);
  }

  Status Operator(std::string& open) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (const std::string_view op : kOperators) {
      if (!StartsWith(op)) continue;
      if (op == "(") open += ')';
      if (op == "[") open += ']';
      if (op == "{") open += '}';
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty() || open.back() != op[0])
          return Fail(absl::StrCat("unexpected '", op[0] == ')' ? ")" : op[0] == ']' ? "]" : "}", "'"));
        open.pop_back();
      }
      Add(Type::kOperator, op);
      Skip(op.size());
      return absl::OkStatus();
    }
    const Utf8Char c = FirstChar(rest());
    return Fail("unexpected character '" + std::string(c.valid ? rest().substr(0, c.bytes) : kReplacementUtf8) + "'");
  }

  Status Number() {
    size_t i = 0;
    const std::string_view text = rest();
    const auto digits = [&] {
      while (i < text.size() &&
             (IsDigit(text[i]) || (text[i] == '_' && i > 0 && i + 1 < text.size() && IsDigit(text[i + 1]))))
        ++i;
    };
    const auto digit_at = [&](size_t k) { return k < text.size() && IsDigit(text[k]); };
    digits();
    bool is_float = false;
    // "1.x" is no float: the point begins an attribute. Nor is what follows a point, as in x.0.1.
    const bool after_point = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_point && i < text.size() && text[i] == '.' && digit_at(i + 1)) {
      is_float = true;
      ++i;
      digits();
    }
    if (!after_point && i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
      const size_t sign = i + 1 < text.size() && (text[i + 1] == '+' || text[i + 1] == '-');
      if (digit_at(i + 1 + sign)) {
        is_float = true;
        i += 1 + sign;
        digits();
      }
    }
    std::string number(text.substr(0, i));
    std::erase(number, '_');
    Add(is_float ? Type::kFloat : Type::kInteger, number);
    Skip(i);
    return absl::OkStatus();
  }

  Status StringLiteral(char quote) {
    std::string decoded;
    size_t i = 1;
    while (true) {
      if (at_ + i >= source_.size()) return Fail("a string without its end");
      const char c = rest()[i];
      if (c == quote) break;
      if (c != '\\') {
        decoded += c;
        ++i;
        continue;
      }
      SLUICE_RETURN_IF_ERROR(Escape(i, decoded));
    }
    Add(Type::kString, decoded);
    Skip(i + 1);
    return absl::OkStatus();
  }

  // Python's escapes; an unknown one stays as it is, backslash included.
  Status Escape(size_t& i, std::string& decoded) {
    const std::string_view text = rest().substr(i + 1);
    if (text.empty()) return Fail("a string without its end");
    static constexpr std::string_view kFrom = "\\'\"abfnrtv\n";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[0];
    if (const size_t k = kFrom.find(c); k != std::string_view::npos) {
      if (k < kTo.size()) decoded += kTo[k];  // an escaped end of line is nothing
      i += 2;
      return absl::OkStatus();
    }
    if (c == 'x' || c == 'u' || c == 'U') return CodePoint(c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, 1, i, decoded);
    if (c >= '0' && c <= '7') {
      int digits = 1;
      while (digits < 3 && digits < static_cast<int>(text.size()) && text[digits] >= '0' && text[digits] <= '7')
        ++digits;
      return CodePoint(digits, 8, 0, i, decoded);
    }
    if (c == 'N') return Fail("a character by its name (\\N) in a string");
    decoded += '\\';
    i += 1;
    return absl::OkStatus();
  }

  Status CodePoint(int digits, int base, int letters, size_t& i, std::string& decoded) {
    const std::string_view text = rest().substr(i + 1 + letters, digits);
    uint64_t value = 0;
    for (const char c : text) {
      const int digit = IsDigit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
      if (digit >= base) return Fail("a broken escape in a string");
      value = value * base + digit;
    }
    if (static_cast<int>(text.size()) < digits || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      return Fail("an escape in a string that is no character");
    }
    AppendUtf8(static_cast<char32_t>(value), decoded);
    i += 1 + letters + digits;
    return absl::OkStatus();
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

StatusOr<std::vector<Token>> Lex(std::string_view source) {
  if (!IsValidUtf8(source)) return absl::InvalidArgumentError("chat template: it is not UTF-8");
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') continue;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  // One newline at the end is the file's, not the template's.
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return Lexer(text).Run();
}

}  // namespace sluice::jinja
