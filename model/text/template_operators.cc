#include "model/text/template_operators.h"

#include <algorithm>
#include <cmath>

#include "model/text/template_builtins.h"
#include "model/text/template_print.h"
#include "model/text/utf8.h"

namespace sluice::jinja {

namespace {
Status TooDeep() { return Error("lists or dicts are nested too deeply"); }

Status Unsupported(std::string_view op, const Value& a, const Value& b) {
  return Error("'" + std::string(op) + "' does not go with " + std::string(TypeName(a)) + " and " +
               std::string(TypeName(b)));
}

Status UndefinedError(const Value& value) {
  return Error(value.text().empty() ? "a value is undefined" : "'" + std::string(value.text()) + "' is undefined");
}

StatusOr<bool> DictsEqual(Arena& arena, const Dict& a, const Value& b, int depth) {
  if (a.items.size() != b.as<Dict>().items.size()) return false;
  for (const auto& [key, value] : a.items) {
    SLUICE_ASSIGN_OR_RETURN(const Value* other, Find(arena, b, key));
    if (other == nullptr) return false;
    SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, value, *other, depth + 1));
    if (!equal) return false;
  }
  return true;
}
}  // namespace

bool Truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.as<Dict>().items.empty();
    default:
      return true;
  }
}

StatusOr<bool> Equal(Arena& arena, const Value& a, const Value& b, int depth) {
  SLUICE_RETURN_IF_ERROR(arena.Step());
  if (depth > arena.limits().value_depth) return TooDeep();
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.real() == b.real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      SLUICE_RETURN_IF_ERROR(arena.Step(a.text().size() / 16));
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple: {
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, a.items()[i], b.items()[i], depth + 1));
        if (!equal) return false;
      }
      return true;
    }
    case Kind::kDict:
      return DictsEqual(arena, a.as<Dict>(), b, depth);
    default:
      return &a.as<char>() == &b.as<char>();
  }
}

StatusOr<int> Order(Arena& arena, const Value& a, const Value& b, int depth) {
  SLUICE_RETURN_IF_ERROR(arena.Step());
  if (depth > arena.limits().value_depth) return TooDeep();
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  if (a.is_number() && b.is_number()) return a.real() < b.real() ? -1 : a.real() > b.real();
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    SLUICE_RETURN_IF_ERROR(arena.Step(std::min(a.text().size(), b.text().size()) / 16));
    return a.text().compare(b.text());  // bytes of UTF-8 sort as code points do
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, a.items()[i], b.items()[i], depth + 1));
      if (!equal) return Order(arena, a.items()[i], b.items()[i], depth + 1);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  if (a.is(Kind::kUndefined)) return UndefinedError(a);
  if (b.is(Kind::kUndefined)) return UndefinedError(b);
  return Unsupported("<", a, b);
}

StatusOr<bool> Contains(Arena& arena, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is(Kind::kString)) return Unsupported("in", item, container);
      SLUICE_RETURN_IF_ERROR(arena.Step(container.text().size() / 16));
      return container.text().find(item.text()) != std::string_view::npos;
    case Kind::kDict: {
      SLUICE_ASSIGN_OR_RETURN(const Value* found, Find(arena, container, item));
      return found != nullptr;
    }
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& element : container.items()) {
        SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, element, item));
        if (equal) return true;
      }
      return false;
    case Kind::kUndefined:
      return false;
    default:
      return Unsupported("in", item, container);
  }
}

StatusOr<bool> CompareBy(Arena& arena, std::string_view op, const Value& a, const Value& b) {
  if (op == "==" || op == "!=") {
    SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, a, b));
    return equal == (op == "==");
  }
  if (op == "in" || op == "not in") {
    SLUICE_ASSIGN_OR_RETURN(const bool contains, Contains(arena, b, a));
    return contains == (op == "in");
  }
  // Nothing compares with what is no number, though it may still be compared with.
  if ((a.is(Kind::kFloat) && std::isnan(a.real())) || (b.is(Kind::kFloat) && std::isnan(b.real()))) return false;
  SLUICE_ASSIGN_OR_RETURN(const int order, Order(arena, a, b));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

namespace {

Status Overflow() { return Error("an integer is too large"); }

StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return Error("division by zero");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value::Int(result);
}

StatusOr<Value> Integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &result) ? StatusOr<Value>(Overflow()) : Value::Int(result);
  if (op == "-") return __builtin_sub_overflow(a, b, &result) ? StatusOr<Value>(Overflow()) : Value::Int(result);
  if (op == "*") return __builtin_mul_overflow(a, b, &result) ? StatusOr<Value>(Overflow()) : Value::Int(result);
  if (op == "**") return IntegerPower(a, b);
  if (b == 0) return Error("division by zero");
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // the one quotient that overflows, and the one remainder that the processor refuses
    if (op == "%") return Value::Int(0);
    return __builtin_sub_overflow(int64_t{0}, a, &result) ? StatusOr<Value>(Overflow()) : Value::Int(result);
  }
  const int64_t remainder = a % b;
  const bool below = remainder != 0 && (remainder < 0) != (b < 0);  // Python rounds towards minus infinity
  return Value::Int(op == "//" ? a / b - below : remainder + (below ? b : 0));
}

StatusOr<Value> Floats(std::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return Error("division by zero");
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value::Float(remainder);
}

StatusOr<Value> Repeat(Arena& arena, const Value& value, int64_t times) {
  const size_t count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (value.is(Kind::kString)) {
    const std::string_view text = value.text();
    if (text.empty() || count == 0) return Value::String("");
    if (count > arena.limits().bytes / text.size()) return Error("a repeated text is too long");
    SLUICE_RETURN_IF_ERROR(arena.Step(text.size() * count / 16));
    std::string out;
    out.reserve(text.size() * count);
    for (size_t i = 0; i < count; ++i) out += text;
    return arena.NewString(std::move(out));
  }
  const std::vector<Value>& items = value.items();
  std::vector<Value> out;
  if (!items.empty() && count > arena.limits().bytes / sizeof(Value) / items.size()) {
    return Error("a repeated list is too long");
  }
  SLUICE_RETURN_IF_ERROR(arena.Step(items.size() * count));
  for (size_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  return arena.NewList(std::move(out), value.kind());
}

}  // namespace

StatusOr<Value> Arithmetic(Arena& arena, std::string_view op, const Value& a, const Value& b) {
  if (a.is(Kind::kUndefined)) return UndefinedError(a);
  if (op == "%" && a.is(Kind::kString)) {
    return FormatPercent(arena, a.text(), b.is(Kind::kTuple) ? b.items() : std::vector<Value>{b});
  }
  if (b.is(Kind::kUndefined)) return UndefinedError(b);
  if (a.is_integral() && b.is_integral()) return Integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return Floats(op, a.real(), b.real());
  if (op == "+" && a.is(Kind::kString) && b.is(Kind::kString)) {
    SLUICE_RETURN_IF_ERROR(arena.Step((a.text().size() + b.text().size()) / 16));
    std::string out;
    out.reserve(a.text().size() + b.text().size());
    out += a.text();
    out += b.text();
    return arena.NewString(std::move(out));
  }
  if (op == "+" && a.is_sequence() && a.kind() == b.kind()) {
    std::vector<Value> out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return arena.NewList(std::move(out), a.kind());
  }
  if (op == "*") {
    if ((a.is(Kind::kString) || a.is_sequence()) && b.is_integral()) return Repeat(arena, a, b.integer());
    if ((b.is(Kind::kString) || b.is_sequence()) && a.is_integral()) return Repeat(arena, b, a.integer());
  }
  return Unsupported(op, a, b);
}

StatusOr<Value> Negate(const Value& value) {
  if (value.is_integral()) return Integers("-", 0, value.integer());
  if (value.is(Kind::kFloat)) return Value::Float(-value.real());
  if (value.is(Kind::kUndefined)) return UndefinedError(value);
  return Error("'-' does not go with " + std::string(TypeName(value)));
}

StatusOr<const Value*> Find(Arena& arena, const Value& dict, const Value& key) {
  const auto& items = dict.as<Dict>().items;
  SLUICE_RETURN_IF_ERROR(arena.Step(1 + items.size() / 8));
  for (const auto& [k, v] : items) {
    if (k.is(Kind::kString) && key.is(Kind::kString)) {
      if (k.text() == key.text()) return &v;
    } else if (k.kind() != Kind::kString || key.kind() != Kind::kString) {
      SLUICE_ASSIGN_OR_RETURN(const bool equal, Equal(arena, k, key));
      if (equal) return &v;
    }
  }
  return nullptr;
}

namespace {
StatusOr<Value> LoopAttribute(Arena& arena, const Value& value, std::string_view name) {
  const Loop& loop = value.as<Loop>();
  const int64_t length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "revindex") return Value::Int(length - loop.index0);
  if (name == "revindex0") return Value::Int(length - loop.index0 - 1);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "last") return Value::Bool(loop.index0 + 1 == length);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "previtem" && loop.index0 > 0) return (*loop.items)[loop.index0 - 1];
  if (name == "nextitem" && loop.index0 + 1 < length) return (*loop.items)[loop.index0 + 1];
  if (FindMethod(value, name) != nullptr) return arena.NewMethod(value, name);
  return Value::Undefined(name);
}
}  // namespace

StatusOr<Value> GetAttribute(Arena& arena, const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return UndefinedError(value);
  if (value.is(Kind::kLoop)) return LoopAttribute(arena, value, name);
  if (FindMethod(value, name) != nullptr) return arena.NewMethod(value, name);
  if (value.is(Kind::kDict) || value.is(Kind::kNamespace)) {
    SLUICE_ASSIGN_OR_RETURN(const Value* found, Find(arena, value, Value::String(name)));
    if (found != nullptr) return *found;
  }
  return Value::Undefined(name);
}

StatusOr<Value> GetItem(Arena& arena, const Value& value, const Value& key) {
  if (value.is(Kind::kUndefined)) return UndefinedError(value);
  if (value.is(Kind::kDict) || value.is(Kind::kNamespace)) {
    SLUICE_ASSIGN_OR_RETURN(const Value* found, Find(arena, value, key));
    if (found != nullptr) return *found;
  }
  if (key.is_integral() && (value.is_sequence() || value.is(Kind::kString))) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t length, Length(arena, value));
    const int64_t index = key.integer() < 0 ? key.integer() + length : key.integer();
    if (index < 0 || index >= length) return Value::Undefined("an element beyond the end");
    if (value.is_sequence()) return value.items()[index];
    std::string_view text = value.text();
    for (int64_t i = 0; i < index; ++i) text.remove_prefix(FirstChar(text).bytes);
    return Value::String(text.substr(0, FirstChar(text).bytes));
  }
  if (key.is(Kind::kString)) return GetAttribute(arena, value, key.text());
  return Value::Undefined("an item");
}

StatusOr<Value> Slice(Arena& arena, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is(Kind::kUndefined)) return UndefinedError(value);
  if (!value.is_sequence() && !value.is(Kind::kString)) {
    return Error("a slice of " + std::string(TypeName(value)));
  }
  for (const Value& bound : {start, stop, step}) {
    if (!bound.is(Kind::kNone) && !bound.is_integral()) return Error("a slice's bounds must be integers");
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(arena, value));
  const int64_t length = static_cast<int64_t>(items.size());
  const int64_t by = step.is(Kind::kNone) ? 1 : step.integer();
  if (by == 0) return Error("a slice's step is zero");
  const int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? length : length - 1;
  const auto bound = [&](const Value& v, int64_t fallback) {
    if (v.is(Kind::kNone)) return fallback;
    const int64_t at = v.integer() < 0 ? v.integer() + length : v.integer();
    return std::clamp(at, lowest, highest);
  };
  const int64_t from = bound(start, by > 0 ? lowest : highest), to = bound(stop, by > 0 ? highest : lowest);
  std::vector<Value> picked;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    picked.push_back(items[i]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (value.is_sequence()) return arena.NewList(std::move(picked), value.kind());
  std::string text;
  for (const Value& c : picked) text += c.text();
  return arena.NewString(std::move(text));
}

StatusOr<std::vector<Value>> Iterate(Arena& arena, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
    case Kind::kTuple:
      SLUICE_RETURN_IF_ERROR(arena.Step(value.items().size()));
      return value.items();
    case Kind::kDict:
      SLUICE_RETURN_IF_ERROR(arena.Step(value.as<Dict>().items.size()));
      for (const auto& [key, unused] : value.as<Dict>().items) items.push_back(key);
      return items;
    case Kind::kString: {
      std::string_view text = value.text();
      SLUICE_RETURN_IF_ERROR(arena.Step(text.size()));
      while (!text.empty()) {
        const int bytes = FirstChar(text).bytes;
        items.push_back(Value::String(text.substr(0, bytes)));
        text.remove_prefix(bytes);
      }
      return items;
    }
    default:
      return Error(std::string(TypeName(value)) + " has no elements to go through");
  }
}

StatusOr<int64_t> Length(Arena& arena, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      SLUICE_RETURN_IF_ERROR(arena.Step(value.text().size() / 16));
      return static_cast<int64_t>(CountChars(value.text()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as<Dict>().items.size());
    default:
      return Error(std::string(TypeName(value)) + " has no length");
  }
}

}  // namespace sluice::jinja
