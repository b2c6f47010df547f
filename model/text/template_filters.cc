#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "model/text/template_builtins.h"
#include "model/text/template_operators.h"
#include "model/text/template_print.h"
#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace sluice::jinja {

namespace {

using Result = StatusOr<Value>;

// Filters that treat their input as text take its printed form.
template <typename Change>
Result OnText(Arena& arena, const Value& self, Change change) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Str(arena, self));
  return arena.NewString(std::string(change(text)));
}

Result Upper(Arena& arena, const Value& self, const Bound&) { return OnText(arena, self, ToUpper); }
Result Lower(Arena& arena, const Value& self, const Bound&) { return OnText(arena, self, ToLower); }

// What the text begins with, and the rest.
std::pair<std::string_view, std::string_view> SplitFirst(std::string_view text) {
  const size_t bytes = text.empty() ? 0 : FirstChar(text).bytes;
  return {text.substr(0, bytes), text.substr(bytes)};
}

Result Capitalize(Arena& arena, const Value& self, const Bound&) {
  return OnText(arena, self, [](std::string_view text) {
    const auto [first, rest] = SplitFirst(text);
    return ToUpper(first) + ToLower(rest);
  });
}

Result Title(Arena& arena, const Value& self, const Bound&) {
  return OnText(arena, self, [](std::string_view text) {
    std::string out;
    size_t word = 0;
    // Words begin after white space and after any of -({[<.
    for (size_t i = 0; i <= text.size();) {
      const bool end = i == text.size();
      const char32_t c = end ? ' ' : FirstChar(text.substr(i)).code_point;
      const bool border = IsPythonSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
      if (border) {
        const auto [first, rest] = SplitFirst(text.substr(word, i - word));
        out += ToUpper(first) + ToLower(rest);
      }
      if (end) break;
      const int bytes = FirstChar(text.substr(i)).bytes;
      if (border) {
        out += text.substr(i, bytes);
        word = i + bytes;
      }
      i += bytes;
    }
    return out;
  });
}

Result Trim(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Str(arena, self));
  if (!arguments.has(0)) return arena.NewString(std::string(StripLeft(StripRight(text))));
  SLUICE_ASSIGN_OR_RETURN(const Value kept, arena.NewString(text));
  return Invoke(arena, *FindMethod(kept, "strip"), kept, {{arguments.at(0)}, {}});
}

Result Replace(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Str(arena, self));
  SLUICE_ASSIGN_OR_RETURN(const Value kept, arena.NewString(text));
  CallArguments call{{arguments.at(0), arguments.at(1)}, {}};
  for (Value& v : call.positional) {
    SLUICE_ASSIGN_OR_RETURN(const std::string part, Str(arena, v));
    SLUICE_ASSIGN_OR_RETURN(v, arena.NewString(part));
  }
  if (arguments.has(2)) call.positional.push_back(arguments.at(2));
  return Invoke(arena, *FindMethod(kept, "replace"), kept, call);
}

Result Default(Arena&, const Value& self, const Bound& arguments) {
  const bool absent = self.is(Kind::kUndefined) || (arguments.Flag(1, false) && !Truth(self));
  if (!absent) return self;
  return arguments.has(0) ? arguments.at(0) : Value::String("");
}

Result LengthFilter(Arena& arena, const Value& self, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t length, Length(arena, self));
  return Value::Int(length);
}

Result ListFilter(Arena& arena, const Value& self, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(arena, self));
  return arena.NewList(std::move(items));
}

Result First(Arena& arena, const Value& self, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  return items.empty() ? Value::Undefined("the first of nothing") : items.front();
}

Result Last(Arena& arena, const Value& self, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  return items.empty() ? Value::Undefined("the last of nothing") : items.back();
}

Result Reverse(Arena& arena, const Value& self, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(arena, self));
  std::reverse(items.begin(), items.end());
  if (!self.is(Kind::kString)) return arena.NewList(std::move(items));
  std::string text;
  for (const Value& c : items) text += c.text();
  return arena.NewString(std::move(text));
}

// value.a.b or value.0 for "a.b" and "0"; a number is an index. Undefined members stay undefined.
Result Member(Arena& arena, const Value& value, const Value& path) {
  if (path.is_integral()) return GetItem(arena, value, path);
  if (!path.is(Kind::kString)) return Error("'attribute' must be a name or an index");
  Value current = value;
  std::string_view left = path.text();
  while (true) {
    const size_t dot = std::min(left.find('.'), left.size());
    const std::string_view name = left.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = !name.empty() && error == std::errc() && end == name.data() + name.size();
    SLUICE_ASSIGN_OR_RETURN(current, GetItem(arena, current, is_index ? Value::Int(index) : Value::String(name)));
    if (dot == left.size()) return current;
    left.remove_prefix(dot + 1);
  }
}

Result Map(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(arena, self));
  const Builtin* filter = nullptr;
  CallArguments call{{}, arguments.rest_named};
  std::optional<Value> attribute, fallback;
  for (const auto& [name, value] : arguments.rest_named) {
    if (name == "attribute") attribute = value;
    if (name == "default") fallback = value;
  }
  if (!arguments.rest.empty()) {
    if (!arguments.rest[0].is(Kind::kString)) return Error("'map' needs the name of a filter");
    filter = FindFilter(arguments.rest[0].text());
    if (filter == nullptr) return Error("unknown filter '" + std::string(arguments.rest[0].text()) + "'");
    call.positional.assign(arguments.rest.begin() + 1, arguments.rest.end());
  } else if (!attribute) {
    return Error("'map' needs the name of a filter or an attribute");
  }
  for (Value& item : items) {
    if (filter != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(item, Invoke(arena, *filter, item, call));
    } else {
      SLUICE_ASSIGN_OR_RETURN(item, Member(arena, item, *attribute));
      if (item.is(Kind::kUndefined) && fallback) item = *fallback;
    }
  }
  return arena.NewList(std::move(items));
}

// select, reject and their forms by attribute: keeps the items whose test comes out as `wanted`.
Result Choose(Arena& arena, const Value& self, const Bound& arguments, bool by_attribute, bool wanted) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  std::vector<Value> left = arguments.rest;
  Value attribute;
  if (by_attribute) {
    if (left.empty()) return Error("an attribute's name is missing");
    attribute = left[0];
    left.erase(left.begin());
  }
  const Builtin* test = nullptr;
  if (!left.empty()) {
    if (left[0].is(Kind::kString)) test = FindTest(left[0].text());
    if (test == nullptr) return Error("unknown test in a selection");
    left.erase(left.begin());
  }
  std::vector<Value> kept;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      SLUICE_ASSIGN_OR_RETURN(subject, Member(arena, item, attribute));
    }
    bool holds = Truth(subject);
    if (test != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(const Value result, Invoke(arena, *test, subject, {left, arguments.rest_named}));
      holds = Truth(result);
    }
    if (holds == wanted) kept.push_back(item);
  }
  return arena.NewList(std::move(kept));
}
Result Select(Arena& a, const Value& v, const Bound& b) { return Choose(a, v, b, false, true); }
Result Reject(Arena& a, const Value& v, const Bound& b) { return Choose(a, v, b, false, false); }
Result SelectAttr(Arena& a, const Value& v, const Bound& b) { return Choose(a, v, b, true, true); }
Result RejectAttr(Arena& a, const Value& v, const Bound& b) { return Choose(a, v, b, true, false); }

Result Join(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  std::string separator;
  if (arguments.has(0)) SLUICE_RETURN_IF_ERROR(PrintStr(arena, arguments.at(0), separator));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += separator;
    SLUICE_RETURN_IF_ERROR(arena.Step(separator.size() / 16));
    if (out.size() > arena.limits().bytes) return Error("a joined text is too long");
    Value item = items[i];
    if (arguments.has(1) && !arguments.at(1).is(Kind::kNone)) {
      SLUICE_ASSIGN_OR_RETURN(item, Member(arena, item, arguments.at(1)));
    }
    SLUICE_RETURN_IF_ERROR(PrintStr(arena, item, out));
  }
  return arena.NewString(std::move(out));
}

Result IntFilter(Arena&, const Value& self, const Bound& arguments) {
  const Value fallback = arguments.has(0) ? arguments.at(0) : Value::Int(0);
  if (self.is_integral()) return Value::Int(self.integer());
  double real = 0;
  if (self.is(Kind::kFloat)) {
    real = self.real();
  } else if (self.is(Kind::kString)) {
    std::string text(StripLeft(StripRight(self.text())));
    std::erase(text, '_');
    if (!text.empty() && text[0] == '+') text.erase(0, 1);
    SLUICE_ASSIGN_OR_RETURN(const int64_t base, arguments.Int(1, 10));
    if (base < 2 || base > 36) return Error("a base must be from 2 to 36");
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
    if (error == std::errc() && end == text.data() + text.size()) return Value::Int(value);
    const auto [real_end, real_error] = std::from_chars(text.data(), text.data() + text.size(), real);
    if (real_error != std::errc() || real_end != text.data() + text.size()) return fallback;
  } else {
    return fallback;
  }
  return std::fabs(real) < 9e18 ? Value::Int(static_cast<int64_t>(real)) : fallback;
}

Result FloatFilter(Arena&, const Value& self, const Bound& arguments) {
  const Value fallback = arguments.has(0) ? arguments.at(0) : Value::Float(0);
  if (self.is_number()) return Value::Float(self.real());
  if (!self.is(Kind::kString)) return fallback;
  const std::string_view text = StripLeft(StripRight(self.text()));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? Value::Float(value) : fallback;
}

Result StringFilter(Arena& arena, const Value& self, const Bound&) {
  if (self.is(Kind::kString)) return self;
  SLUICE_ASSIGN_OR_RETURN(std::string text, Str(arena, self));
  return arena.NewString(std::move(text));
}

Result Abs(Arena&, const Value& self, const Bound&) {
  if (self.is(Kind::kFloat)) return Value::Float(std::fabs(self.real()));
  if (!self.is_integral()) return Error("'abs' of " + std::string(TypeName(self)));
  if (self.integer() >= 0) return Value::Int(self.integer());
  return Negate(self);
}

Result Round(Arena&, const Value& self, const Bound& arguments) {
  if (!self.is_number()) return Error("'round' of " + std::string(TypeName(self)));
  SLUICE_ASSIGN_OR_RETURN(const int64_t precision, arguments.Int(0, 0));
  SLUICE_ASSIGN_OR_RETURN(const std::string_view method, arguments.Text(1, "common"));
  if (precision < 0 || precision > 100) return Error("'round' to fewer than 0 or more than 100 places");
  if (method == "common") {
    if (self.is_integral()) return Value::Int(self.integer());
    // The printed decimal is the exact value rounded half to even, which is what Python does.
    char buffer[512];
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), self.real());
    return Value::Float(std::strtod(buffer, nullptr));
  }
  if (method != "ceil" && method != "floor") return Error("unknown way of rounding '" + std::string(method) + "'");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.real() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// Text compares without regard to case unless asked to.
Result SortKey(Arena& arena, const Value& item, const Bound& arguments, size_t case_at, size_t attribute_at) {
  Value key = item;
  if (arguments.has(attribute_at) && !arguments.at(attribute_at).is(Kind::kNone)) {
    SLUICE_ASSIGN_OR_RETURN(key, Member(arena, item, arguments.at(attribute_at)));
  }
  if (!key.is(Kind::kString) || arguments.Flag(case_at, false)) return key;
  return arena.NewString(ToLower(key.text()));
}

Status SortByKey(Arena& arena, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  Status status;
  // After an error everything counts as equal, which is a valid order, and the sort ends.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (!status.ok()) return false;
    const auto order = reverse ? Order(arena, b.first, a.first) : Order(arena, a.first, b.first);
    if (!order.ok()) status = order.status();
    return order.ok() && *order < 0;
  });
  return status;
}

Result Sort(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(arena, self));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    SLUICE_ASSIGN_OR_RETURN(const Value key, SortKey(arena, item, arguments, 1, 2));
    keyed.emplace_back(key, item);
  }
  SLUICE_RETURN_IF_ERROR(SortByKey(arena, keyed, arguments.Flag(0, false)));
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
  return arena.NewList(std::move(items));
}

Result Unique(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  std::vector<Value> keys, kept;
  for (const Value& item : items) {
    SLUICE_ASSIGN_OR_RETURN(const Value key, SortKey(arena, item, arguments, 0, 1));
    bool seen = false;
    for (const Value& other : keys) {
      SLUICE_ASSIGN_OR_RETURN(seen, Equal(arena, key, other));
      if (seen) break;
    }
    if (seen) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return arena.NewList(std::move(kept));
}

Result Extreme(Arena& arena, const Value& self, const Bound& arguments, int sign) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  Value best = Value::Undefined("the extreme of nothing"), best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(const Value key, SortKey(arena, items[i], arguments, 0, 1));
    if (i > 0) {
      SLUICE_ASSIGN_OR_RETURN(const int order, Order(arena, key, best_key));
      if (order * sign <= 0) continue;
    }
    best = items[i];
    best_key = key;
  }
  return best;
}
Result Max(Arena& arena, const Value& self, const Bound& arguments) { return Extreme(arena, self, arguments, 1); }
Result Min(Arena& arena, const Value& self, const Bound& arguments) { return Extreme(arena, self, arguments, -1); }

Result Sum(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, self));
  Value total = arguments.has(1) ? arguments.at(1) : Value::Int(0);
  for (Value item : items) {
    if (arguments.has(0) && !arguments.at(0).is(Kind::kNone)) {
      SLUICE_ASSIGN_OR_RETURN(item, Member(arena, item, arguments.at(0)));
    }
    SLUICE_ASSIGN_OR_RETURN(total, Arithmetic(arena, "+", total, item));
  }
  return total;
}

Result ToJson(Arena& arena, const Value& self, const Bound& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.Flag(0, false);
  style.sort_keys = arguments.Flag(3, false);
  if (arguments.has(1) && !arguments.at(1).is(Kind::kNone)) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t indent, arguments.Int(1, 0));
    if (indent < 0 || indent > 64) return Error("JSON's indent must be from 0 to 64");
    style.indent = static_cast<int>(indent);
    style.item_separator = ",";
  }
  if (arguments.has(2) && !arguments.at(2).is(Kind::kNone)) {
    const Value pair = arguments.at(2);
    if (!pair.is_sequence() || pair.items().size() != 2 || !pair.items()[0].is(Kind::kString) ||
        !pair.items()[1].is(Kind::kString)) {
      return Error("JSON's separators must be two strings");
    }
    style.item_separator = pair.items()[0].text();
    style.key_separator = pair.items()[1].text();
  }
  std::string out;
  SLUICE_RETURN_IF_ERROR(PrintJson(arena, self, style, out));
  return arena.NewString(std::move(out));
}

Result Items(Arena& arena, const Value& self, const Bound&) {
  if (self.is(Kind::kUndefined)) return arena.NewList({});
  if (!self.is(Kind::kDict)) return Error("'items' of " + std::string(TypeName(self)));
  return Invoke(arena, *FindMethod(self, "items"), self, {});
}

Result DictSort(Arena& arena, const Value& self, const Bound& arguments) {
  if (!self.is(Kind::kDict)) return Error("'dictsort' of " + std::string(TypeName(self)));
  SLUICE_ASSIGN_OR_RETURN(const std::string_view by, arguments.Text(1, "key"));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.as<Dict>().items) {
    Value sort_key = by == "value" ? value : key;
    if (sort_key.is(Kind::kString) && !arguments.Flag(0, false)) {
      SLUICE_ASSIGN_OR_RETURN(sort_key, arena.NewString(ToLower(sort_key.text())));
    }
    SLUICE_ASSIGN_OR_RETURN(const Value pair, arena.NewList({key, value}, Kind::kTuple));
    keyed.emplace_back(sort_key, pair);
  }
  SLUICE_RETURN_IF_ERROR(SortByKey(arena, keyed, arguments.Flag(2, false)));
  std::vector<Value> pairs;
  for (const auto& [key, pair] : keyed) pairs.push_back(pair);
  return arena.NewList(std::move(pairs));
}

Result Escape(Arena& arena, const Value& self, const Bound&) {
  return OnText(arena, self, [](std::string_view text) {
    std::string out;
    for (const char c : text) {
      switch (c) {
        case '&':
          out += "&amp;";
          break;
        case '<':
          out += "&lt;";
          break;
        case '>':
          out += "&gt;";
          break;
        case '"':
          out += "&#34;";
          break;
        case '\'':
          out += "&#39;";
          break;
        default:
          out += c;
      }
    }
    return out;
  });
}

// Lines after the first are moved to the right; with `first` that one too, with `blank` empty ones too.
Result Indent(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Str(arena, self));
  std::string by;
  if (arguments.has(0) && arguments.at(0).is(Kind::kString)) {
    by = arguments.at(0).text();
  } else {
    SLUICE_ASSIGN_OR_RETURN(const int64_t width, arguments.Int(0, 4));
    if (width < 0 || width > 1000) return Error("'indent' by fewer than 0 or more than 1000 columns");
    by.assign(static_cast<size_t>(width), ' ');
  }
  std::string out;
  for (size_t begin = 0, line = 0; begin <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool blank = end == begin;
    SLUICE_RETURN_IF_ERROR(arena.Take(by.size()));
    if ((line > 0 || arguments.Flag(1, false)) && (!blank || arguments.Flag(2, false))) out += by;
    out.append(text, begin, end - begin);
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return arena.NewString(std::move(out));
}

Result Attr(Arena& arena, const Value& self, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view name, arguments.Text(0));
  // Only attributes proper, not the entries of a dict.
  if (FindMethod(self, name) != nullptr || self.is(Kind::kLoop) || self.is(Kind::kNamespace)) {
    return GetAttribute(arena, self, name);
  }
  return Value::Undefined(name);
}

Result Format(Arena& arena, const Value& self, const Bound& arguments) {
  if (!arguments.rest_named.empty()) return Error("'format' takes no named arguments");
  SLUICE_ASSIGN_OR_RETURN(const std::string format, Str(arena, self));
  return FormatPercent(arena, format, arguments.rest);
}

Result Same(Arena&, const Value& self, const Bound&) { return self; }

constexpr Builtin kFilters[] = {
    {"abs", "", Abs},
    {"attr", "name", Attr},
    {"capitalize", "", Capitalize},
    {"count", "", LengthFilter},
    {"d", "default_value,boolean", Default},
    {"default", "default_value,boolean", Default},
    {"dictsort", "case_sensitive,by,reverse", DictSort},
    {"e", "", Escape},
    {"escape", "", Escape},
    {"first", "", First},
    {"float", "default", FloatFilter},
    {"format", "*", Format},
    {"indent", "width,first,blank", Indent},
    {"int", "default,base", IntFilter},
    {"items", "", Items},
    {"join", "d,attribute", Join},
    {"last", "", Last},
    {"length", "", LengthFilter},
    {"list", "", ListFilter},
    {"lower", "", Lower},
    {"map", "*", Map},
    {"max", "case_sensitive,attribute", Max},
    {"min", "case_sensitive,attribute", Min},
    {"reject", "*", Reject},
    {"rejectattr", "*", RejectAttr},
    {"replace", "old,new,count", Replace},
    {"reverse", "", Reverse},
    {"round", "precision,method", Round},
    {"safe", "", Same},
    {"select", "*", Select},
    {"selectattr", "*", SelectAttr},
    {"sort", "reverse,case_sensitive,attribute", Sort},
    {"string", "", StringFilter},
    {"sum", "attribute,start", Sum},
    {"title", "", Title},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", ToJson},
    {"trim", "chars", Trim},
    {"unique", "case_sensitive,attribute", Unique},
    {"upper", "", Upper},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Builtin& b) { return b.name == name; });
  return it != std::end(kFilters) ? it : nullptr;
}

}  // namespace sluice::jinja
