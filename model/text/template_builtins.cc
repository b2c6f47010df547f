#include "model/text/template_builtins.h"

#include "model/text/template_operators.h"

namespace sluice::jinja {

bool Bound::Flag(size_t i, bool fallback) const { return has(i) ? Truth(*values[i]) : fallback; }

StatusOr<int64_t> Bound::Int(size_t i, int64_t fallback) const {
  if (!has(i) || values[i]->is(Kind::kNone)) return fallback;
  if (!values[i]->is_integral())
    return Error("an argument must be an integer, not " + std::string(TypeName(*values[i])));
  return values[i]->integer();
}

StatusOr<std::string_view> Bound::Text(size_t i, std::string_view fallback) const {
  return has(i) ? Text(i) : fallback;
}

StatusOr<std::string_view> Bound::Text(size_t i) const {
  if (!has(i)) return Error("an argument is missing");
  if (!values[i]->is(Kind::kString))
    return Error("an argument must be a string, not " + std::string(TypeName(*values[i])));
  return values[i]->text();
}

StatusOr<Value> Invoke(Arena& arena, const Builtin& builtin, const Value& self, const CallArguments& arguments) {
  SLUICE_RETURN_IF_ERROR(arena.Step());
  std::vector<std::string_view> names;
  bool variadic = false;
  for (std::string_view left = builtin.parameters; !left.empty();) {
    const size_t comma = std::min(left.find(','), left.size());
    if (left.substr(0, comma) == "*") {
      variadic = true;
    } else {
      names.push_back(left.substr(0, comma));
    }
    left.remove_prefix(std::min(comma + 1, left.size()));
  }
  Bound bound;
  bound.values.resize(names.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < names.size()) {
      bound.values[i] = arguments.positional[i];
    } else if (variadic) {
      bound.rest.push_back(arguments.positional[i]);
    } else {
      return Error("too many arguments for '" + std::string(builtin.name) + "'");
    }
  }
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it != names.end()) {
      bound.values[it - names.begin()] = value;
    } else if (variadic) {
      bound.rest_named.emplace_back(name, value);
    } else {
      return Error("'" + std::string(builtin.name) + "' takes no argument '" + std::string(name) + "'");
    }
  }
  return builtin.function(arena, self, bound);
}

}  // namespace sluice::jinja
