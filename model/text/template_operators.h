// What Python's operators do to template values: truth, equality, order, arithmetic, members, attributes, items.
#pragma once

#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/text/template_value.h"

namespace sluice::jinja {

bool Truth(const Value& value);
StatusOr<bool> Equal(Arena& arena, const Value& a, const Value& b, int depth = 0);
// Below, at or above zero as a is less than, equal to or greater than b. InvalidArgument where Python has no order.
StatusOr<int> Order(Arena& arena, const Value& a, const Value& b, int depth = 0);
StatusOr<bool> Contains(Arena& arena, const Value& container, const Value& item);
// `op` is one of ==, !=, <, <=, >, >=, in, not in.
StatusOr<bool> CompareBy(Arena& arena, std::string_view op, const Value& a, const Value& b);
// `op` is one of +, -, *, /, //, %, **.
StatusOr<Value> Arithmetic(Arena& arena, std::string_view op, const Value& a, const Value& b);
StatusOr<Value> Negate(const Value& value);

// value.name and value[key] as Jinja looks them up; undefined where there is none.
StatusOr<Value> GetAttribute(Arena& arena, const Value& value, std::string_view name);
StatusOr<Value> GetItem(Arena& arena, const Value& value, const Value& key);
// The entry of a dict or namespace; nullptr where it has none.
StatusOr<const Value*> Find(Arena& arena, const Value& dict, const Value& key);
StatusOr<Value> Slice(Arena& arena, const Value& value, const Value& start, const Value& stop, const Value& step);

// What a loop over the value goes through: elements, characters, keys.
StatusOr<std::vector<Value>> Iterate(Arena& arena, const Value& value);
StatusOr<int64_t> Length(Arena& arena, const Value& value);

}  // namespace sluice::jinja
