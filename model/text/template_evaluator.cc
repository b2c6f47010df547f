#include "model/text/template_evaluator.h"

#include <algorithm>

#include "model/text/template_lexer.h"
#include "model/text/template_operators.h"
#include "model/text/template_print.h"

namespace sluice::jinja {

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(std::string_view name, const Value& value) {
  for (auto& [known, old] : names) {
    if (known == name) {
      old = value;
      return;
    }
  }
  names.emplace_back(name, value);
}

StatusOr<std::string> Evaluator::Render(const Body& body) {
  std::string out;
  out_ = &out;
  SLUICE_RETURN_IF_ERROR(Run(body).status());
  return out;
}

Status Evaluator::Located(const Status& status, int line) {
  if (located_ || arena_.raised()) return status;
  located_ = true;
  return ErrorAt(line, std::string_view(status.message().data(), status.message().size()));
}

StatusOr<Scope*> Evaluator::NewScope(Scope* parent) {
  SLUICE_RETURN_IF_ERROR(arena_.Take(sizeof(Scope) + 4 * sizeof(Value)));
  Scope& scope = scopes_.emplace_back();
  scope.parent = parent;
  return &scope;
}

StatusOr<Scope*> Evaluator::NextScope(Scope* parent, Scope* last) {
  if (last == nullptr || last->kept) return NewScope(parent);
  last->names.clear();
  return last;
}

StatusOr<Evaluator::Flow> Evaluator::Run(const Body& body) {
  for (const auto& statement : body) {
    SLUICE_ASSIGN_OR_RETURN(const Flow flow, Run(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

StatusOr<Evaluator::Flow> Evaluator::Run(const Stmt& statement) {
  Status allowed = arena_.Step();
  if (++depth_ > arena_.limits().depth) allowed = Error("the template calls itself too deeply");
  StatusOr<Flow> flow = allowed.ok() ? RunStatement(statement) : allowed;
  --depth_;
  if (!flow.ok()) return Located(flow.status(), statement.line);
  return flow;
}

StatusOr<Evaluator::Flow> Evaluator::RunStatement(const Stmt& statement) {
  switch (statement.kind) {
    case StmtKind::kText:
      SLUICE_RETURN_IF_ERROR(Print(Value::String(statement.text)));
      return Flow::kNext;
    case StmtKind::kOutput: {
      SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      SLUICE_RETURN_IF_ERROR(Print(value));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return If(statement);
    case StmtKind::kFor:
      return For(statement);
    case StmtKind::kSet: {
      SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      SLUICE_RETURN_IF_ERROR(Assign(*statement.target, value));
      return Flow::kNext;
    }
    case StmtKind::kSetBlock: {
      SLUICE_ASSIGN_OR_RETURN(Value value, Capture(statement.body));
      SLUICE_ASSIGN_OR_RETURN(value, Filtered(statement.filters, value));
      SLUICE_RETURN_IF_ERROR(Assign(*statement.target, value));
      return Flow::kNext;
    }
    case StmtKind::kMacro: {
      SLUICE_ASSIGN_OR_RETURN(const Value macro, NewMacro(statement));
      scope_->Set(statement.text, macro);
      return Flow::kNext;
    }
    case StmtKind::kCallBlock:
      SLUICE_RETURN_IF_ERROR(CallBlock(statement));
      return Flow::kNext;
    case StmtKind::kFilterBlock: {
      SLUICE_ASSIGN_OR_RETURN(Value value, Capture(statement.body));
      SLUICE_ASSIGN_OR_RETURN(value, Filtered(statement.filters, value));
      SLUICE_RETURN_IF_ERROR(Print(value));
      return Flow::kNext;
    }
    case StmtKind::kWith:
    case StmtKind::kScope:
      return InScope(statement);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Error("a statement of no known kind");
}

StatusOr<Evaluator::Flow> Evaluator::If(const Stmt& statement) {
  for (const auto& [condition, body] : statement.branches) {
    SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
    if (Truth(value)) return Run(body);
  }
  return Run(statement.orelse);
}

StatusOr<Evaluator::Flow> Evaluator::For(const Stmt& statement) {
  SLUICE_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.value));
  SLUICE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(arena_, iterable));
  Scope* const outer = scope_;
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    Scope* turn = nullptr;
    for (const Value& item : items) {
      SLUICE_ASSIGN_OR_RETURN(turn, NextScope(outer, turn));
      scope_ = turn;
      SLUICE_RETURN_IF_ERROR(Assign(*statement.target, item));
      SLUICE_ASSIGN_OR_RETURN(const Value holds, Evaluate(*statement.condition));
      if (Truth(holds)) kept.push_back(item);
    }
    scope_ = outer;
    items = std::move(kept);
  }
  if (items.empty()) return Run(statement.orelse);
  // The items belong to the arena from here on: `loop` may be kept in a variable beyond the loop.
  SLUICE_ASSIGN_OR_RETURN(const Value kept_items, arena_.NewList(std::move(items)));
  SLUICE_ASSIGN_OR_RETURN(Loop* const loop, arena_.NewLoop());
  loop->items = &kept_items.items();
  loop->depth0 = loops_++;
  Scope* turn = nullptr;
  for (size_t i = 0; i < loop->items->size(); ++i) {
    loop->index0 = static_cast<int64_t>(i);
    SLUICE_ASSIGN_OR_RETURN(turn, NextScope(outer, turn));
    scope_ = turn;
    scope_->Set("loop", Value::Of(Kind::kLoop, loop));
    SLUICE_RETURN_IF_ERROR(Assign(*statement.target, (*loop->items)[i]));
    SLUICE_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
    if (flow == Flow::kBreak) break;
  }
  --loops_;
  scope_ = outer;
  return Flow::kNext;
}

StatusOr<Evaluator::Flow> Evaluator::InScope(const Stmt& statement) {
  Scope* const outer = scope_;
  SLUICE_ASSIGN_OR_RETURN(Scope* const inner, NewScope(outer));
  for (const auto& [target, expr] : statement.assignments) {
    SLUICE_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr));
    scope_ = inner;
    SLUICE_RETURN_IF_ERROR(Assign(*target, value));
    scope_ = outer;
  }
  scope_ = inner;
  SLUICE_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
  scope_ = outer;
  return flow;
}

Status Evaluator::CallBlock(const Stmt& statement) {
  SLUICE_ASSIGN_OR_RETURN(const Value caller, NewMacro(statement));
  SLUICE_ASSIGN_OR_RETURN(const Value result, Call(*statement.value, &caller));
  return Print(result);
}

Status Evaluator::Print(const Value& value) {
  const size_t before = out_->size();
  SLUICE_RETURN_IF_ERROR(PrintStr(arena_, value, *out_));
  if (out_->size() > arena_.limits().output_bytes) return Error("the template's output is too long");
  return arena_.Take(out_->size() - before);
}

StatusOr<Value> Evaluator::Capture(const Body& body) {
  std::string captured;
  std::string* const outer_out = std::exchange(out_, &captured);
  Scope* const outer = scope_;
  SLUICE_ASSIGN_OR_RETURN(scope_, NewScope(outer));
  SLUICE_RETURN_IF_ERROR(Run(body).status());
  scope_ = outer;
  out_ = outer_out;
  return arena_.NewString(std::move(captured));
}

StatusOr<Value> Evaluator::Filtered(const std::vector<ExprPtr>& filters, Value value) {
  for (const ExprPtr& filter : filters) {
    SLUICE_ASSIGN_OR_RETURN(value, FilterOf(*filter, value));
  }
  return value;
}

Status Evaluator::Assign(const Expr& target, const Value& value) {
  if (target.kind == ExprKind::kName) {
    scope_->Set(target.text, value);
    return absl::OkStatus();
  }
  if (target.kind == ExprKind::kTuple) return Unpack(target, value);
  SLUICE_ASSIGN_OR_RETURN(const Value object, Evaluate(*target.args[0]));
  if (!object.is(Kind::kNamespace)) return Error("an attribute can be set on a namespace only");
  SLUICE_ASSIGN_OR_RETURN(const Value* const old, Find(arena_, object, Value::String(target.text)));
  if (old != nullptr) {
    *const_cast<Value*>(old) = value;
  } else {
    SLUICE_RETURN_IF_ERROR(arena_.Take(2 * sizeof(Value)));
    object.as<Dict>().items.emplace_back(Value::String(target.text), value);
  }
  return absl::OkStatus();
}

Status Evaluator::Unpack(const Expr& target, const Value& value) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(arena_, value));
  if (parts.size() != target.args.size()) {
    return Error(absl::StrCat(parts.size(), " values for ", target.args.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) SLUICE_RETURN_IF_ERROR(Assign(*target.args[i], parts[i]));
  return absl::OkStatus();
}

StatusOr<Value> Evaluator::NewMacro(const Stmt& definition) {
  SLUICE_RETURN_IF_ERROR(arena_.Take(sizeof(Macro)));
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->kept = true;
  return Value::Of(Kind::kMacro, &macros_.emplace_back(Macro{&definition, scope_}));
}

Status Evaluator::BindMacro(const Stmt& definition, CallArguments& arguments) {
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
      if (it->first != name) continue;
      const Value value = it->second;
      arguments.named.erase(it);
      return value;
    }
    return std::nullopt;
  };
  const auto& parameters = definition.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Value value = Value::Undefined(parameters[i].name);
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else if (const auto named = take_named(parameters[i].name)) {
      value = *named;
    } else if (parameters[i].fallback != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(value, Evaluate(*parameters[i].fallback));
    }
    scope_->Set(parameters[i].name, value);
  }
  if (definition.uses_caller) scope_->Set("caller", take_named("caller").value_or(Value::Undefined("caller")));
  std::vector<Value> more;
  for (size_t i = parameters.size(); i < arguments.positional.size(); ++i) more.push_back(arguments.positional[i]);
  if (definition.uses_varargs) {
    SLUICE_ASSIGN_OR_RETURN(const Value varargs, arena_.NewList(std::move(more), Kind::kTuple));
    scope_->Set("varargs", varargs);
  } else if (!more.empty()) {
    return Error("too many arguments for macro '" + definition.text + "'");
  }
  if (definition.uses_kwargs) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [name, value] : arguments.named) items.emplace_back(Value::String(name), value);
    SLUICE_ASSIGN_OR_RETURN(const Value kwargs, arena_.NewDict(std::move(items)));
    scope_->Set("kwargs", kwargs);
  } else if (!arguments.named.empty()) {
    return Error("macro '" + definition.text + "' takes no argument '" + std::string(arguments.named[0].first) + "'");
  }
  return absl::OkStatus();
}

StatusOr<Value> Evaluator::CallMacro(const Macro& macro, CallArguments arguments) {
  Scope* const outer = scope_;
  SLUICE_ASSIGN_OR_RETURN(scope_, NewScope(macro.scope));
  SLUICE_RETURN_IF_ERROR(BindMacro(*macro.definition, arguments));
  SLUICE_ASSIGN_OR_RETURN(const Value text, Capture(macro.definition->body));
  scope_ = outer;
  return text;
}

}  // namespace sluice::jinja
