#include <algorithm>
#include <ctime>

#include "model/text/template_builtins.h"
#include "model/text/template_operators.h"
#include "model/text/template_print.h"

namespace sluice::jinja {

namespace {

using Result = StatusOr<Value>;
constexpr int64_t kRangeMax = 100'000;  // as in Jinja's sandbox

Result RaiseException(Arena& arena, const Value&, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string message, Str(arena, arguments.at(0)));
  return arena.Raise(message);
}

// In UTC: a server's own time zone says nothing about the client's.
Result StrftimeNow(Arena& arena, const Value&, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view format, arguments.Text(0));
  if (format.size() > 256) return Error("a format of a date is too long");
  if (format.empty()) return Value::String("");
  const std::time_t now = static_cast<std::time_t>(arena.now_unix_s());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char buffer[4096];
  const size_t length = std::strftime(buffer, sizeof(buffer), std::string(format).c_str(), &parts);
  return arena.NewString(std::string(buffer, length));
}

Result Range(Arena& arena, const Value&, const Bound& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t first, arguments.Int(0, 0));
  SLUICE_ASSIGN_OR_RETURN(const int64_t second, arguments.Int(1, 0));
  SLUICE_ASSIGN_OR_RETURN(const int64_t step, arguments.Int(2, 1));
  if (!arguments.has(0)) return Error("'range' needs an argument");
  if (step == 0) return Error("'range' with a step of zero");
  const int64_t from = arguments.has(1) ? first : 0, to = arguments.has(1) ? second : first;
  std::vector<Value> items;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    if (static_cast<int64_t>(items.size()) == kRangeMax) return Error("'range' of more than 100000 numbers");
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return arena.NewList(std::move(items));
}

Result MakeDict(Arena& arena, const Bound& arguments, Kind kind) {
  if (arguments.rest.size() > 1) return Error("a dict of more than one positional argument");
  std::vector<std::pair<Value, Value>> items;
  if (!arguments.rest.empty()) {
    if (!arguments.rest[0].is(Kind::kDict)) return Error("a dict of " + std::string(TypeName(arguments.rest[0])));
    items = arguments.rest[0].as<Dict>().items;
  }
  for (const auto& [name, value] : arguments.rest_named) {
    const auto it = std::find_if(items.begin(), items.end(), [&n = name](const auto& item) {
      return item.first.is(Kind::kString) && item.first.text() == n;
    });
    if (it != items.end()) {
      it->second = value;
    } else {
      items.emplace_back(Value::String(name), value);
    }
  }
  return arena.NewDict(std::move(items), kind);
}
Result MakeDict(Arena& arena, const Value&, const Bound& arguments) { return MakeDict(arena, arguments, Kind::kDict); }
Result MakeNamespace(Arena& arena, const Value&, const Bound& arguments) {
  return MakeDict(arena, arguments, Kind::kNamespace);
}

constexpr Builtin kFunctions[] = {
    {"dict", "*", MakeDict},
    {"namespace", "*", MakeNamespace},
    {"raise_exception", "message", RaiseException},
    {"range", "start,stop,step", Range},
    {"strftime_now", "format", StrftimeNow},
};

}  // namespace

const Builtin* FindFunction(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Builtin& b) { return b.name == name; });
  return it != std::end(kFunctions) ? it : nullptr;
}

}  // namespace sluice::jinja
