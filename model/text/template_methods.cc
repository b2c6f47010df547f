#include <algorithm>
#include <optional>

#include "model/text/template_builtins.h"
#include "model/text/template_operators.h"
#include "model/text/template_print.h"
#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace sluice::jinja {

namespace {

using Result = StatusOr<Value>;

// The results of these are parts of `self`, which lives as long as the rendering.
Result Strip(const Value& self, const Bound& arguments, bool left, bool right) {
  std::string_view text = self.text();
  if (!arguments.has(0) || arguments.at(0).is(Kind::kNone)) {
    if (left) text = StripLeft(text);
    if (right) text = StripRight(text);
    return Value::String(text);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string_view chars, arguments.Text(0));
  const auto listed = [&](std::string_view c) {
    for (std::string_view rest = chars; !rest.empty(); rest.remove_prefix(FirstChar(rest).bytes)) {
      if (rest.substr(0, FirstChar(rest).bytes) == c) return true;
    }
    return false;
  };
  while (left && !text.empty() && listed(text.substr(0, FirstChar(text).bytes)))
    text.remove_prefix(FirstChar(text).bytes);
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!listed(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return Value::String(text);
}
Result StrStrip(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size() / 16));
  return Strip(self, arguments, true, true);
}
Result StrLstrip(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size() / 16));
  return Strip(self, arguments, true, false);
}
Result StrRstrip(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size() / 16));
  return Strip(self, arguments, false, true);
}

Result StrUpper(Arena& arena, const Value& self, const Bound&) { return arena.NewString(ToUpper(self.text())); }
Result StrLower(Arena& arena, const Value& self, const Bound&) { return arena.NewString(ToLower(self.text())); }
Result StrCapitalize(Arena& arena, const Value& self, const Bound& arguments) {
  return Invoke(arena, *FindFilter("capitalize"), self, {{}, arguments.rest_named});
}

// Python's: a letter that follows no letter is upper case, any other lower case.
Result StrTitle(Arena& arena, const Value& self, const Bound&) {
  std::string out;
  bool after_letter = false;
  for (std::string_view text = self.text(); !text.empty();) {
    const Utf8Char c = FirstChar(text);
    const std::string_view bytes = text.substr(0, c.bytes);
    out += after_letter ? ToLower(bytes) : ToUpper(bytes);
    after_letter = IsCased(c.code_point);
    text.remove_prefix(c.bytes);
  }
  return arena.NewString(std::move(out));
}

// Pieces between white space; with a limit the rest stays whole, at the end or, from the right, at the beginning.
std::vector<std::string_view> SplitSpace(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  while (true) {
    text = from_right ? StripRight(text) : StripLeft(text);
    if (text.empty()) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(from_right ? StripLeft(text) : StripRight(text));
      break;
    }
    size_t begin = 0, end = text.size(), at = 0;
    while (at < text.size()) {
      const Utf8Char c = FirstChar(text.substr(at));
      if (IsPythonSpace(c.code_point)) {
        if (!from_right) {
          end = at;
          break;
        }
        begin = at + c.bytes;
      }
      at += c.bytes;
    }
    parts.push_back(text.substr(begin, end - begin));
    text = from_right ? text.substr(0, begin) : text.substr(end);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitBy(std::string_view text, std::string_view separator, int64_t limit,
                                      bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result NewStrings(Arena& arena, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Value::String(part));
  return arena.NewList(std::move(items));
}

Result SplitText(Arena& arena, const Value& self, const Bound& arguments, bool from_right) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t limit, arguments.Int(1, -1));
  if (!arguments.has(0) || arguments.at(0).is(Kind::kNone)) {
    // From the right each piece is looked for from the left, so a limit-less split would be quadratic.
    const bool backwards = from_right && limit >= 0;
    SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size() * (backwards ? std::min<int64_t>(limit + 1, 1 << 20) : 1)));
    return NewStrings(arena, SplitSpace(self.text(), limit, backwards));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string_view separator, arguments.Text(0));
  if (separator.empty()) return Error("an empty separator");
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size()));
  return NewStrings(arena, SplitBy(self.text(), separator, limit, from_right));
}
Result StrSplit(Arena& a, const Value& v, const Bound& b) { return SplitText(a, v, b, false); }
Result StrRsplit(Arena& a, const Value& v, const Bound& b) { return SplitText(a, v, b, true); }

Result StrSplitlines(Arena& arena, const Value& self, const Bound& arguments) {
  const bool keep = arguments.Flag(0, false);
  std::vector<std::string_view> lines;
  const std::string_view text = self.text();
  SLUICE_RETURN_IF_ERROR(arena.Step(text.size()));
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = FirstChar(text.substr(i));
    const bool ends = (c.code_point >= 0x0A && c.code_point <= 0x0D) ||
                      (c.code_point >= 0x1C && c.code_point <= 0x1E) || c.code_point == 0x85 ||
                      c.code_point == 0x2028 || c.code_point == 0x2029;
    size_t next = i + c.bytes;
    if (ends) {
      if (c.code_point == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return NewStrings(arena, lines);
}

// Whether the text begins or ends with the argument, or with one of a tuple's.
Result Affix(const Value& self, const Bound& arguments, bool at_end) {
  const Value given = arguments.at(0);
  const std::vector<Value> candidates = given.is(Kind::kTuple) ? given.items() : std::vector<Value>{given};
  for (const Value& candidate : candidates) {
    if (!candidate.is(Kind::kString))
      return Error("a prefix or suffix must be a string, not " + std::string(TypeName(candidate)));
    const std::string_view text = self.text(), part = candidate.text();
    if (text.size() >= part.size() && text.substr(at_end ? text.size() - part.size() : 0, part.size()) == part) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}
Result StrStartswith(Arena&, const Value& self, const Bound& arguments) { return Affix(self, arguments, false); }
Result StrEndswith(Arena&, const Value& self, const Bound& arguments) { return Affix(self, arguments, true); }

Result StrRemoveprefix(Arena&, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Value has, Affix(self, arguments, false));
  return has.boolean() ? Value::String(self.text().substr(arguments.at(0).text().size())) : self;
}
Result StrRemovesuffix(Arena&, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Value has, Affix(self, arguments, true));
  return has.boolean() ? Value::String(self.text().substr(0, self.text().size() - arguments.at(0).text().size()))
                       : self;
}

Result StrReplace(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view from, arguments.Text(0));
  SLUICE_ASSIGN_OR_RETURN(const std::string_view to, arguments.Text(1));
  SLUICE_ASSIGN_OR_RETURN(const int64_t limit, arguments.Int(2, -1));
  const std::string_view text = self.text();
  SLUICE_RETURN_IF_ERROR(arena.Step(text.size() / 4));
  std::string out;
  size_t done = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    size_t at = text.find(from, done);
    if (at == std::string_view::npos) break;
    SLUICE_RETURN_IF_ERROR(arena.Take(to.size()));
    // An empty needle matches before each character and at the end.
    if (from.empty()) {
      out += to;
      if (done == text.size()) return arena.NewString(std::move(out));
      const int bytes = FirstChar(text.substr(done)).bytes;
      out += text.substr(done, bytes);
      done += bytes;
    } else {
      out += text.substr(done, at - done);
      out += to;
      done = at + from.size();
    }
  }
  out += text.substr(done);
  return arena.NewString(std::move(out));
}

Result FindIn(Arena& arena, const Value& self, const Bound& arguments, bool last) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view part, arguments.Text(0));
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size() / 4));
  const size_t at = last ? self.text().rfind(part) : self.text().find(part);
  return Value::Int(at == std::string_view::npos ? -1 : static_cast<int64_t>(CountChars(self.text().substr(0, at))));
}
Result StrFind(Arena& a, const Value& v, const Bound& b) { return FindIn(a, v, b, false); }
Result StrRfind(Arena& a, const Value& v, const Bound& b) { return FindIn(a, v, b, true); }
Result StrIndex(Arena& a, const Value& v, const Bound& b) {
  SLUICE_ASSIGN_OR_RETURN(const Value at, FindIn(a, v, b, false));
  return at.integer() < 0 ? Result(Error("a text is not part of the other")) : at;
}

Result StrCount(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view part, arguments.Text(0));
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size() / 4));
  if (part.empty()) return Value::Int(static_cast<int64_t>(CountChars(self.text())) + 1);
  int64_t count = 0;
  for (size_t at = self.text().find(part); at != std::string_view::npos; at = self.text().find(part, at + part.size()))
    ++count;
  return Value::Int(count);
}

Result StrJoin(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, arguments.at(0)));
  for (const Value& item : items) {
    if (!item.is(Kind::kString)) return Error("'join' of a list with " + std::string(TypeName(item)) + " in it");
  }
  return Invoke(arena, *FindFilter("join"), arguments.at(0), {{self}, {}});
}

Result StrFormat(Arena& arena, const Value& self, const Bound& arguments) {
  return FormatBraces(arena, self.text(), arguments.rest, arguments.rest_named);
}

template <bool (*kHolds)(char32_t)>
Result All(Arena& arena, const Value& self, const Bound&) {
  SLUICE_RETURN_IF_ERROR(arena.Step(self.text().size()));
  bool all = !self.text().empty();
  for (std::string_view text = self.text(); all && !text.empty();) {
    const Utf8Char c = FirstChar(text);
    all = kHolds(c.code_point);
    text.remove_prefix(c.bytes);
  }
  return Value::Bool(all);
}
bool IsAlphanumeric(char32_t c) { return IsAlphabetic(c) || IsNumeric(c); }

Result StrIsLower(Arena& arena, const Value& self, const Bound&) { return Invoke(arena, *FindTest("lower"), self, {}); }
Result StrIsUpper(Arena& arena, const Value& self, const Bound&) { return Invoke(arena, *FindTest("upper"), self, {}); }

Result ListIndex(Arena& arena, const Value& self, const Bound& arguments) {
  for (size_t i = 0; i < self.items().size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, self.items()[i], arguments.at(0)));
    if (equal) return Value::Int(static_cast<int64_t>(i));
  }
  return Error("a value is not in the list");
}
Result ListCount(Arena& arena, const Value& self, const Bound& arguments) {
  int64_t count = 0;
  for (const Value& item : self.items()) {
    SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, item, arguments.at(0)));
    count += equal;
  }
  return Value::Int(count);
}
Result ListCopy(Arena& arena, const Value& self, const Bound&) { return arena.NewList(self.items(), self.kind()); }

Result DictItems(Arena& arena, const Value& self, const Bound&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.as<Dict>().items) {
    SLUICE_ASSIGN_OR_RETURN(const Value pair, arena.NewList({key, value}, Kind::kTuple));
    items.push_back(pair);
  }
  return arena.NewList(std::move(items));
}
Result DictKeys(Arena& arena, const Value& self, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> keys, Iterate(arena, self));
  return arena.NewList(std::move(keys));
}
Result DictValues(Arena& arena, const Value& self, const Bound&) {
  std::vector<Value> values;
  for (const auto& [key, value] : self.as<Dict>().items) values.push_back(value);
  return arena.NewList(std::move(values));
}
Result DictGet(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Value* found, Find(arena, self, arguments.at(0)));
  if (found != nullptr) return *found;
  return arguments.has(1) ? arguments.at(1) : Value::None();
}
Result DictCopy(Arena& arena, const Value& self, const Bound&) { return arena.NewDict(self.as<Dict>().items); }

Result LoopCycle(Arena&, const Value& self, const Bound& arguments) {
  if (arguments.rest.empty()) return Error("'cycle' of nothing");
  return arguments.rest[self.as<Loop>().index0 % arguments.rest.size()];
}
Result LoopChanged(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Value now, arena.NewList(arguments.rest, Kind::kTuple));
  Loop& loop = self.as<Loop>();
  bool same = false;
  if (loop.last_changed) {
    SLUICE_ASSIGN_OR_RETURN(same, Equal(arena, *loop.last_changed, now));
  }
  loop.last_changed = now;
  return Value::Bool(!same);
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", "", StrCapitalize},
    {"count", "sub", StrCount},
    {"endswith", "suffix", StrEndswith},
    {"find", "sub", StrFind},
    {"format", "*", StrFormat},
    {"index", "sub", StrIndex},
    {"isalnum", "", All<IsAlphanumeric>},
    {"isalpha", "", All<IsAlphabetic>},
    {"isdecimal", "", All<IsDecimalDigit>},
    {"isdigit", "", All<IsDecimalDigit>},
    {"islower", "", StrIsLower},
    {"isnumeric", "", All<IsNumeric>},
    {"isspace", "", All<IsPythonSpace>},
    {"isupper", "", StrIsUpper},
    {"join", "iterable", StrJoin},
    {"lower", "", StrLower},
    {"lstrip", "chars", StrLstrip},
    {"removeprefix", "prefix", StrRemoveprefix},
    {"removesuffix", "suffix", StrRemovesuffix},
    {"replace", "old,new,count", StrReplace},
    {"rfind", "sub", StrRfind},
    {"rsplit", "sep,maxsplit", StrRsplit},
    {"rstrip", "chars", StrRstrip},
    {"split", "sep,maxsplit", StrSplit},
    {"splitlines", "keepends", StrSplitlines},
    {"startswith", "prefix", StrStartswith},
    {"strip", "chars", StrStrip},
    {"title", "", StrTitle},
    {"upper", "", StrUpper},
};
constexpr Builtin kListMethods[] = {
    {"copy", "", ListCopy},
    {"count", "value", ListCount},
    {"index", "value", ListIndex},
};
constexpr Builtin kDictMethods[] = {
    {"copy", "", DictCopy}, {"get", "key,default", DictGet}, {"items", "", DictItems},
    {"keys", "", DictKeys}, {"values", "", DictValues},
};
constexpr Builtin kLoopMethods[] = {
    {"changed", "*", LoopChanged},
    {"cycle", "*", LoopCycle},
};

template <size_t kCount>
const Builtin* In(const Builtin (&table)[kCount], std::string_view name) {
  const auto* it = std::find_if(table, table + kCount, [&](const Builtin& b) { return b.name == name; });
  return it != table + kCount ? it : nullptr;
}

}  // namespace

const Builtin* FindMethod(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString:
      return In(kStringMethods, name);
    case Kind::kList:
    case Kind::kTuple:
      return In(kListMethods, name);
    case Kind::kDict:
      return In(kDictMethods, name);
    case Kind::kLoop:
      return In(kLoopMethods, name);
    default:
      return nullptr;
  }
}

bool IsMethod(std::string_view name) {
  return In(kStringMethods, name) || In(kListMethods, name) || In(kDictMethods, name) || In(kLoopMethods, name);
}

}  // namespace sluice::jinja
