#include <algorithm>

#include "model/text/template_builtins.h"
#include "model/text/template_operators.h"
#include "model/text/unicode.h"

namespace sluice::jinja {

namespace {

using Result = StatusOr<Value>;
Value Yes(bool holds) { return Value::Bool(holds); }

Result Defined(Arena&, const Value& v, const Bound&) { return Yes(!v.is(Kind::kUndefined)); }
Result Undefined(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kUndefined)); }
Result IsNone(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kNone)); }
Result IsString(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kString)); }
Result IsNumber(Arena&, const Value& v, const Bound&) { return Yes(v.is_number()); }
Result IsInteger(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kInt)); }
Result IsFloat(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kFloat)); }
Result IsBoolean(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kBool)); }
Result IsTrue(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kBool) && v.boolean()); }
Result IsFalse(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kBool) && !v.boolean()); }
Result IsMapping(Arena&, const Value& v, const Bound&) { return Yes(v.is(Kind::kDict)); }
Result IsSequence(Arena&, const Value& v, const Bound&) {
  return Yes(v.is_sequence() || v.is(Kind::kString) || v.is(Kind::kDict) || v.is(Kind::kUndefined));
}
Result IsCallable(Arena&, const Value& v, const Bound&) {
  return Yes(v.is(Kind::kMacro) || v.is(Kind::kMethod) || v.is(Kind::kFunction));
}

StatusOr<int64_t> Integer(const Value& v) {
  if (!v.is_integral()) return Error("a test needs an integer, not " + std::string(TypeName(v)));
  return v.integer();
}
Result IsOdd(Arena&, const Value& v, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t i, Integer(v));
  return Yes(i % 2 != 0);
}
Result IsEven(Arena&, const Value& v, const Bound&) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t i, Integer(v));
  return Yes(i % 2 == 0);
}
Result DivisibleBy(Arena& arena, const Value& v, const Bound& b) {
  SLUICE_ASSIGN_OR_RETURN(const Value remainder, Arithmetic(arena, "%", v, b.at(0)));
  return Yes(!Truth(remainder));
}

// Python's islower and isupper: some cased character, and none of the other case.
Result IsLower(Arena& arena, const Value& v, const Bound&) {
  if (!v.is(Kind::kString)) return Yes(false);
  SLUICE_RETURN_IF_ERROR(arena.Step(v.text().size()));
  return Yes(ToLower(v.text()) == v.text() && ToUpper(v.text()) != v.text());
}
Result IsUpper(Arena& arena, const Value& v, const Bound&) {
  if (!v.is(Kind::kString)) return Yes(false);
  SLUICE_RETURN_IF_ERROR(arena.Step(v.text().size()));
  return Yes(ToUpper(v.text()) == v.text() && ToLower(v.text()) != v.text());
}

template <char kFirst, char kSecond>
Result Compare(Arena& arena, const Value& v, const Bound& b) {
  static constexpr char kOp[] = {kFirst, kSecond};
  SLUICE_ASSIGN_OR_RETURN(const bool holds,
                          CompareBy(arena, std::string_view(kOp, kSecond == '\0' ? 1 : 2), v, b.at(0)));
  return Yes(holds);
}
Result IsIn(Arena& arena, const Value& v, const Bound& b) {
  SLUICE_ASSIGN_OR_RETURN(const bool holds, Contains(arena, b.at(0), v));
  return Yes(holds);
}
Result IsFilter(Arena&, const Value& v, const Bound&) {
  return Yes(v.is(Kind::kString) && FindFilter(v.text()) != nullptr);
}
Result IsTest(Arena&, const Value& v, const Bound&) {
  return Yes(v.is(Kind::kString) && FindTest(v.text()) != nullptr);
}
Result IsSame(Arena& arena, const Value& v, const Bound& b) {
  if (v.kind() != b.at(0).kind()) return Yes(false);
  if (v.is_sequence() || v.is(Kind::kDict)) return Yes(&v.as<char>() == &b.at(0).as<char>());
  return Compare<'=', '='>(arena, v, b);
}

constexpr Builtin kTests[] = {
    {"boolean", "", IsBoolean},
    {"callable", "", IsCallable},
    {"defined", "", Defined},
    {"divisibleby", "num", DivisibleBy},
    {"eq", "other", Compare<'=', '='>},
    {"==", "other", Compare<'=', '='>},
    {"equalto", "other", Compare<'=', '='>},
    {"even", "", IsEven},
    {"false", "", IsFalse},
    {"filter", "", IsFilter},
    {"float", "", IsFloat},
    {"ge", "other", Compare<'>', '='>},
    {">=", "other", Compare<'>', '='>},
    {"greaterthan", "other", Compare<'>', '\0'>},
    {"gt", "other", Compare<'>', '\0'>},
    {">", "other", Compare<'>', '\0'>},
    {"in", "seq", IsIn},
    {"integer", "", IsInteger},
    {"iterable", "", IsSequence},
    {"le", "other", Compare<'<', '='>},
    {"<=", "other", Compare<'<', '='>},
    {"lessthan", "other", Compare<'<', '\0'>},
    {"lower", "", IsLower},
    {"lt", "other", Compare<'<', '\0'>},
    {"<", "other", Compare<'<', '\0'>},
    {"mapping", "", IsMapping},
    {"ne", "other", Compare<'!', '='>},
    {"!=", "other", Compare<'!', '='>},
    {"none", "", IsNone},
    {"number", "", IsNumber},
    {"odd", "", IsOdd},
    {"sameas", "other", IsSame},
    {"sequence", "", IsSequence},
    {"string", "", IsString},
    {"test", "", IsTest},
    {"true", "", IsTrue},
    {"undefined", "", Undefined},
    {"upper", "", IsUpper},
};

}  // namespace

const Builtin* FindTest(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests), [&](const Builtin& b) { return b.name == name; });
  return it != std::end(kTests) ? it : nullptr;
}

}  // namespace sluice::jinja
