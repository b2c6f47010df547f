// Runs a parsed template. One evaluator is one rendering, on one thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "model/text/template_ast.h"
#include "model/text/template_builtins.h"
#include "model/text/template_value.h"

namespace sluice::jinja {

// Names and their values. A loop's body, a macro and the like have their own, whose assignments end with it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;
  bool kept = false;  // a macro was defined in it and may be called after it

  const Value* Find(std::string_view name) const;
  void Set(std::string_view name, const Value& value);
};

struct Macro {
  const Stmt* definition = nullptr;
  Scope* scope = nullptr;  // where it was defined
};

class Evaluator {
 public:
  explicit Evaluator(Arena& arena) : arena_(arena) {}

  // A name that the template sees; the name must outlive the rendering.
  void Define(std::string_view name, const Value& value) { globals_.Set(name, value); }
  // InvalidArgument: the words of raise_exception, or an error with its line.
  StatusOr<std::string> Render(const Body& body);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  Status Located(const Status& status, int line);
  StatusOr<Scope*> NewScope(Scope* parent);
  // An empty scope for a loop's next turn: `last` itself where nothing refers to it any more.
  StatusOr<Scope*> NextScope(Scope* parent, Scope* last);

  StatusOr<Flow> Run(const Body& body);
  StatusOr<Flow> Run(const Stmt& statement);
  StatusOr<Flow> RunStatement(const Stmt& statement);
  StatusOr<Flow> If(const Stmt& statement);
  StatusOr<Flow> For(const Stmt& statement);
  StatusOr<Flow> InScope(const Stmt& statement);
  Status With(const Stmt& statement);
  Status CallBlock(const Stmt& statement);
  Status Print(const Value& value);
  StatusOr<Value> Capture(const Body& body);
  StatusOr<Value> Filtered(const std::vector<ExprPtr>& filters, Value value);
  Status Assign(const Expr& target, const Value& value);
  Status Unpack(const Expr& target, const Value& value);
  StatusOr<Value> NewMacro(const Stmt& definition);

  StatusOr<Value> Evaluate(const Expr& expr);
  StatusOr<Value> EvaluateNode(const Expr& expr);
  StatusOr<std::vector<Value>> EvaluateAll(const std::vector<ExprPtr>& exprs, size_t from);
  StatusOr<Value> Name(const Expr& expr);
  StatusOr<Value> DictLiteral(const Expr& expr);
  StatusOr<Value> Concat(const Expr& expr);
  StatusOr<Value> Compare(const Expr& expr);
  StatusOr<Value> SliceOf(const Expr& expr);
  StatusOr<Value> FilterOf(const Expr& expr, const Value& input);
  StatusOr<Value> TestOf(const Expr& expr);
  StatusOr<Value> Call(const Expr& expr, const Value* caller);
  StatusOr<CallArguments> Arguments(const Expr& expr);
  StatusOr<Value> CallMacro(const Macro& macro, CallArguments arguments);
  Status BindMacro(const Stmt& definition, CallArguments& arguments);

  Arena& arena_;
  Scope globals_;
  Scope* scope_ = &globals_;
  std::string* out_ = nullptr;
  std::deque<Scope> scopes_;
  std::deque<Macro> macros_;
  int depth_ = 0;
  int loops_ = 0;
  bool located_ = false;  // whether the error on its way up has its line
};

}  // namespace sluice::jinja
