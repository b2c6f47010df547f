// A chat template as a tree. Immutable once parsed; one node type for expressions and one for statements, whose fields
// mean what their kind says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/text/template_value.h"

namespace sluice::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,   // constant; strings are in text
  kName,       // text
  kList,       // args
  kTuple,      // args
  kDict,       // args: key, value, key, value
  kAttribute,  // args[0].text
  kItem,       // args[0][args[1]]
  kSlice,      // args[0][args[1]:args[2]:args[3]], null where left out
  kCall,       // args[0](args[1..], named, spread)
  kFilter,     // args[0] | text(args[1..], named); in a filter block args[0] is null
  kTest,       // args[0] is text(args[1..], named)
  kNot,        // args[0], as are the next two
  kNegative,
  kPositive,
  kBinary,  // args[0] text args[1]
  kConcat,  // args, by ~
  kAnd,     // args[0], args[1]
  kOr,
  kCompare,    // args[0] ops[0] args[1] ops[1] args[2] ...
  kCondition,  // args[0] if args[1] else args[2], which may be null
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below; bounded by the parser
  std::string text;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;  // keyword arguments
  std::vector<std::string> ops;
  ExprPtr spread;        // *list of a call
  ExprPtr spread_named;  // **dict of a call
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : uint8_t {
  kText,         // text
  kOutput,       // value
  kIf,           // branches, orelse
  kFor,          // for target in value if condition: body else: orelse
  kSet,          // target = value
  kSetBlock,     // target = body, through filters
  kMacro,        // text(parameters): body
  kCallBlock,    // value is a kCall, which gets body as its caller(parameters)
  kFilterBlock,  // filters over body
  kWith,         // assignments in a scope of their own, then body
  kScope,        // body in a scope of its own (generation)
  kBreak,
  kContinue,
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null where it must be given
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  ExprPtr target;
  ExprPtr value;
  ExprPtr condition;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  std::vector<ExprPtr> filters;  // applied one after the other
  std::vector<Parameter> parameters;
  bool uses_varargs = false;  // of a macro: whether its body names varargs, kwargs, caller
  bool uses_kwargs = false;
  bool uses_caller = false;
  Body body;
  Body orelse;
};

}  // namespace sluice::jinja
