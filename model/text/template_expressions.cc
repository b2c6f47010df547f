// The evaluator's expressions.
#include <algorithm>

#include "model/text/template_evaluator.h"
#include "model/text/template_operators.h"
#include "model/text/template_print.h"

namespace sluice::jinja {

StatusOr<Value> Evaluator::Evaluate(const Expr& expr) {
  Status allowed = arena_.Step();
  if (++depth_ > arena_.limits().depth) allowed = Error("the template calls itself too deeply");
  StatusOr<Value> value = allowed.ok() ? EvaluateNode(expr) : allowed;
  --depth_;
  if (!value.ok()) return Located(value.status(), expr.line);
  return value;
}

StatusOr<Value> Evaluator::EvaluateNode(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return Name(expr);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(expr.args, 0));
      return arena_.NewList(std::move(items), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
    }
    case ExprKind::kDict:
      return DictLiteral(expr);
    case ExprKind::kConcat:
      return Concat(expr);
    case ExprKind::kCompare:
      return Compare(expr);
    case ExprKind::kSlice:
      return SliceOf(expr);
    case ExprKind::kCall:
      return Call(expr, nullptr);
    case ExprKind::kTest:
      return TestOf(expr);
    default:
      break;
  }
  // The rest look at their first operand first.
  SLUICE_ASSIGN_OR_RETURN(const Value first, Evaluate(*expr.args[expr.kind == ExprKind::kCondition ? 1 : 0]));
  switch (expr.kind) {
    case ExprKind::kAttribute:
      return GetAttribute(arena_, first, expr.text);
    case ExprKind::kItem: {
      SLUICE_ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.args[1]));
      return GetItem(arena_, first, key);
    }
    case ExprKind::kFilter:
      return FilterOf(expr, first);
    case ExprKind::kNot:
      return Value::Bool(!Truth(first));
    case ExprKind::kNegative:
      return Negate(first);
    case ExprKind::kPositive:
      return first.is_number() ? StatusOr<Value>(first) : Error("'+' does not go with " + std::string(TypeName(first)));
    case ExprKind::kBinary: {
      SLUICE_ASSIGN_OR_RETURN(const Value second, Evaluate(*expr.args[1]));
      return Arithmetic(arena_, expr.text, first, second);
    }
    case ExprKind::kAnd:
      return Truth(first) ? Evaluate(*expr.args[1]) : first;
    case ExprKind::kOr:
      return Truth(first) ? first : Evaluate(*expr.args[1]);
    case ExprKind::kCondition:
      if (Truth(first)) return Evaluate(*expr.args[0]);
      return expr.args[2] != nullptr ? Evaluate(*expr.args[2]) : Value::Undefined("a condition without 'else'");
    default:
      return Error("an expression of no known kind");
  }
}

StatusOr<std::vector<Value>> Evaluator::EvaluateAll(const std::vector<ExprPtr>& exprs, size_t from) {
  std::vector<Value> values;
  for (size_t i = from; i < exprs.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*exprs[i]));
    values.push_back(value);
  }
  return values;
}

StatusOr<Value> Evaluator::Name(const Expr& expr) {
  if (const Value* found = scope_->Find(expr.text)) return *found;
  if (const Builtin* function = FindFunction(expr.text)) return Value::Of(Kind::kFunction, function);
  return Value::Undefined(expr.text);
}

StatusOr<Value> Evaluator::DictLiteral(const Expr& expr) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> parts, EvaluateAll(expr.args, 0));
  SLUICE_ASSIGN_OR_RETURN(const Value dict, arena_.NewDict({}));
  auto& items = dict.as<Dict>().items;
  SLUICE_RETURN_IF_ERROR(arena_.Take(parts.size() * sizeof(Value)));
  for (size_t i = 0; i < parts.size(); i += 2) {
    if (parts[i].is(Kind::kList) || parts[i].is(Kind::kDict)) {
      return Error(std::string(TypeName(parts[i])) + " cannot be a key");
    }
    SLUICE_ASSIGN_OR_RETURN(const Value* const old, Find(arena_, dict, parts[i]));
    if (old != nullptr) {
      *const_cast<Value*>(old) = parts[i + 1];
    } else {
      items.emplace_back(parts[i], parts[i + 1]);
    }
  }
  return dict;
}

StatusOr<Value> Evaluator::Concat(const Expr& expr) {
  std::string text;
  for (const ExprPtr& arg : expr.args) {
    SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*arg));
    SLUICE_RETURN_IF_ERROR(PrintStr(arena_, value, text));
    if (text.size() > arena_.limits().bytes) return Error("the template needs too much memory");
  }
  return arena_.NewString(std::move(text));
}

StatusOr<Value> Evaluator::Compare(const Expr& expr) {
  SLUICE_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(const Value right, Evaluate(*expr.args[i + 1]));
    SLUICE_ASSIGN_OR_RETURN(const bool holds, CompareBy(arena_, expr.ops[i], left, right));
    if (!holds) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

StatusOr<Value> Evaluator::SliceOf(const Expr& expr) {
  SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
  Value bounds[3] = {Value::None(), Value::None(), Value::None()};
  for (int i = 0; i < 3; ++i) {
    if (expr.args[i + 1] == nullptr) continue;
    SLUICE_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expr.args[i + 1]));
  }
  return Slice(arena_, value, bounds[0], bounds[1], bounds[2]);
}

StatusOr<Value> Evaluator::FilterOf(const Expr& expr, const Value& input) {
  SLUICE_ASSIGN_OR_RETURN(const CallArguments arguments, Arguments(expr));
  return Invoke(arena_, *FindFilter(expr.text), input, arguments);
}

StatusOr<Value> Evaluator::TestOf(const Expr& expr) {
  SLUICE_ASSIGN_OR_RETURN(const Value subject, Evaluate(*expr.args[0]));
  SLUICE_ASSIGN_OR_RETURN(const CallArguments arguments, Arguments(expr));
  return Invoke(arena_, *FindTest(expr.text), subject, arguments);
}

StatusOr<CallArguments> Evaluator::Arguments(const Expr& expr) {
  CallArguments arguments;
  SLUICE_ASSIGN_OR_RETURN(arguments.positional, EvaluateAll(expr.args, 1));
  if (expr.spread != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const Value list, Evaluate(*expr.spread));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> more, Iterate(arena_, list));
    arguments.positional.insert(arguments.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, value_expr] : expr.named) {
    SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*value_expr));
    arguments.named.emplace_back(name, value);
  }
  if (expr.spread_named != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const Value dict, Evaluate(*expr.spread_named));
    if (!dict.is(Kind::kDict)) return Error("'**' needs a dict, not " + std::string(TypeName(dict)));
    for (const auto& [key, value] : dict.as<Dict>().items) {
      if (!key.is(Kind::kString)) return Error("the names of arguments must be strings");
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

StatusOr<Value> Evaluator::Call(const Expr& expr, const Value* caller) {
  SLUICE_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expr.args[0]));
  SLUICE_ASSIGN_OR_RETURN(CallArguments arguments, Arguments(expr));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  switch (callee.kind()) {
    case Kind::kMacro:
      return CallMacro(callee.as<Macro>(), std::move(arguments));
    case Kind::kFunction:
      return Invoke(arena_, callee.as<const Builtin>(), Value(), arguments);
    case Kind::kMethod: {
      const Method& method = callee.as<Method>();
      return Invoke(arena_, *FindMethod(method.self, method.name), method.self, arguments);
    }
    case Kind::kUndefined:
      return Error("'" + std::string(callee.text()) + "' is undefined and cannot be called");
    default:
      return Error(std::string(TypeName(callee)) + " cannot be called");
  }
}

}  // namespace sluice::jinja
