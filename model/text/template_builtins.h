// The filters, tests, methods and functions that templates may use: four tables of plain functions, each with the names
// of its parameters. A new one is a function and a line in a table.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "model/text/template_value.h"

namespace sluice::jinja {

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

// Arguments sorted to a builtin's parameters.
struct Bound {
  std::vector<std::optional<Value>> values;  // by parameter
  std::vector<Value> rest;                   // positional ones beyond, where the builtin takes them
  std::vector<std::pair<std::string_view, Value>> rest_named;

  bool has(size_t i) const { return values[i].has_value(); }
  Value at(size_t i) const { return values[i].value_or(Value()); }
  bool Flag(size_t i, bool fallback) const;
  StatusOr<int64_t> Int(size_t i, int64_t fallback) const;
  // REQUIRES for `fallback`: lives as long as the rendering.
  StatusOr<std::string_view> Text(size_t i, std::string_view fallback) const;
  // As Text, for a parameter that must be given.
  StatusOr<std::string_view> Text(size_t i) const;
};

struct Builtin {
  std::string_view name;
  std::string_view parameters;  // "width,first"; an end of "*" takes any more, named ones too
  StatusOr<Value> (*function)(Arena& arena, const Value& self, const Bound& arguments);
};

// nullptr where there is none.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);  // their functions return a bool
const Builtin* FindMethod(const Value& self, std::string_view name);
const Builtin* FindFunction(std::string_view name);
bool IsMethod(std::string_view name);  // of any kind of value

StatusOr<Value> Invoke(Arena& arena, const Builtin& builtin, const Value& self, const CallArguments& arguments);

}  // namespace sluice::jinja
