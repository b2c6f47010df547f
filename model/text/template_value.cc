#include "model/text/template_value.h"

namespace sluice::jinja {

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "method";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

Status Arena::Raise(std::string_view message) {
  raised_ = true;
  return Error(message);
}

Status Arena::Step(size_t count) {
  // Saturates, so that a huge count cannot wrap.
  if (count > static_cast<size_t>(limits_.steps - steps_)) {
    steps_ = limits_.steps;
    return Error("the template takes too many steps");
  }
  steps_ += static_cast<int64_t>(count);
  return absl::OkStatus();
}

Status Arena::Take(size_t bytes) {
  if (bytes > limits_.bytes - bytes_) {
    bytes_ = limits_.bytes;
    return Error("the template needs too much memory");
  }
  bytes_ += bytes;
  return Step(bytes / 16);
}

StatusOr<std::string_view> Arena::Keep(std::string text) {
  SLUICE_RETURN_IF_ERROR(Take(text.size() + sizeof(std::string)));
  return std::string_view(strings_.emplace_back(std::move(text)));
}

StatusOr<Value> Arena::NewString(std::string text) {
  SLUICE_ASSIGN_OR_RETURN(const std::string_view kept, Keep(std::move(text)));
  return Value::String(kept);
}

StatusOr<Value> Arena::NewList(std::vector<Value> items, Kind kind) {
  SLUICE_RETURN_IF_ERROR(Take(items.size() * sizeof(Value) + sizeof(List)));
  return Value::Of(kind, &lists_.emplace_back(List{std::move(items)}));
}

StatusOr<Value> Arena::NewDict(std::vector<std::pair<Value, Value>> items, Kind kind) {
  SLUICE_RETURN_IF_ERROR(Take(items.size() * 2 * sizeof(Value) + sizeof(Dict)));
  return Value::Of(kind, &dicts_.emplace_back(Dict{std::move(items)}));
}

StatusOr<Value> Arena::NewMethod(const Value& self, std::string_view name) {
  SLUICE_RETURN_IF_ERROR(Take(sizeof(Method)));
  return Value::Of(Kind::kMethod, &methods_.emplace_back(Method{self, name}));
}

StatusOr<Loop*> Arena::NewLoop() {
  SLUICE_RETURN_IF_ERROR(Take(sizeof(Loop)));
  return &loops_.emplace_back();
}

}  // namespace sluice::jinja
