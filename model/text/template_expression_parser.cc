#include "model/text/template_expression_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "model/text/template_builtins.h"

namespace sluice::jinja {

namespace {
constexpr int kNestingMax = 60;     // of brackets and the like: bounds this parser's own recursion
constexpr int kTreeDepthMax = 200;  // bounds the evaluator's and the destructors'
using Type = Token::Type;

// Counts a level of nesting while it lives.
class Nested {
 public:
  explicit Nested(int& level) : level_(level) { ++level_; }
  ~Nested() { --level_; }

 private:
  int& level_;
};
}  // namespace

Status ExpressionParser::Unexpected() const {
  switch (cursor_.now().type) {
    case Type::kEnd:
      return Fail("the template ends inside an expression");
    case Type::kOutputEnd:
    case Type::kBlockEnd:
      return Fail("an expression is missing before the end of the tag");
    default:
      return Fail("unexpected '" + cursor_.text() + "'");
  }
}

StatusOr<ExprPtr> ExpressionParser::WithDepth(ExprPtr node) const {
  const auto deepen = [&](const ExprPtr& child) {
    if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  };
  for (const ExprPtr& child : node->args) deepen(child);
  for (const auto& [name, child] : node->named) deepen(child);
  deepen(node->spread);
  deepen(node->spread_named);
  if (node->depth > kTreeDepthMax) return ErrorAt(node->line, "an expression is nested too deeply");
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string text) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  node->text = std::move(text);
  node->args = std::move(args);
  return WithDepth(std::move(node));
}

namespace {
std::vector<ExprPtr> Operands(ExprPtr a, ExprPtr b = nullptr) {
  std::vector<ExprPtr> args;
  args.push_back(std::move(a));
  if (b != nullptr) args.push_back(std::move(b));
  return args;
}
}  // namespace

StatusOr<ExprPtr> ExpressionParser::Tuple(bool conditional) {
  const int line = cursor_.line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    // A comma may stand before the end.
    if (is_tuple && (cursor_.Is(Type::kOutputEnd) || cursor_.Is(Type::kBlockEnd) || cursor_.IsOperator(")"))) break;
    SLUICE_ASSIGN_OR_RETURN(auto item, conditional ? Expression() : Or());
    items.push_back(std::move(item));
    if (!cursor_.TakeOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) return std::move(items[0]);
  return Make(ExprKind::kTuple, line, std::move(items));
}

StatusOr<ExprPtr> ExpressionParser::Target(bool attributes) {
  const Nested nested(nesting_);
  if (nesting_ > kNestingMax) return Fail("nested too deeply");
  const int line = cursor_.line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  do {
    if (cursor_.IsName("in") || cursor_.IsOperator("=") || cursor_.IsOperator(")")) break;
    if (cursor_.TakeOperator("(")) {
      SLUICE_ASSIGN_OR_RETURN(auto inner, Target(false));
      if (!cursor_.TakeOperator(")")) return Fail("expected ')', found '" + cursor_.text() + "'");
      items.push_back(std::move(inner));
    } else {
      if (!cursor_.Is(Type::kName)) return Fail("expected a name to assign to, found '" + cursor_.text() + "'");
      SLUICE_ASSIGN_OR_RETURN(auto name, Make(ExprKind::kName, line, {}, cursor_.Take().text));
      static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
      if (std::find(std::begin(kReserved), std::end(kReserved), name->text) != std::end(kReserved)) {
        return Fail("cannot assign to '" + name->text + "'");
      }
      if (attributes && cursor_.TakeOperator(".")) {
        if (!cursor_.Is(Type::kName)) return Fail("expected the name of an attribute");
        SLUICE_ASSIGN_OR_RETURN(name, Make(ExprKind::kAttribute, line, Operands(std::move(name)), cursor_.Take().text));
      }
      items.push_back(std::move(name));
    }
  } while (cursor_.TakeOperator(",") && (is_tuple = true));
  if (items.empty()) return Fail("a name to assign to is missing");
  if (!is_tuple) return std::move(items[0]);
  return Make(ExprKind::kTuple, line, std::move(items));
}

StatusOr<ExprPtr> ExpressionParser::Expression() {
  const Nested nested(nesting_);
  if (nesting_ > kNestingMax) return Fail("an expression is nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(auto node, Or());
  while (cursor_.IsName("if")) {
    const int line = cursor_.Take().line;
    SLUICE_ASSIGN_OR_RETURN(auto condition, Or());
    auto args = Operands(std::move(node), std::move(condition));
    args.push_back(nullptr);
    if (cursor_.TakeName("else")) {
      SLUICE_ASSIGN_OR_RETURN(args[2], Expression());
    }
    SLUICE_ASSIGN_OR_RETURN(node, Make(ExprKind::kCondition, line, std::move(args)));
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Or() {
  SLUICE_ASSIGN_OR_RETURN(auto node, And());
  while (cursor_.IsName("or")) {
    const int line = cursor_.Take().line;
    SLUICE_ASSIGN_OR_RETURN(auto right, And());
    SLUICE_ASSIGN_OR_RETURN(node, Make(ExprKind::kOr, line, Operands(std::move(node), std::move(right))));
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::And() {
  SLUICE_ASSIGN_OR_RETURN(auto node, Not());
  while (cursor_.IsName("and")) {
    const int line = cursor_.Take().line;
    SLUICE_ASSIGN_OR_RETURN(auto right, Not());
    SLUICE_ASSIGN_OR_RETURN(node, Make(ExprKind::kAnd, line, Operands(std::move(node), std::move(right))));
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Not() {
  if (!cursor_.IsName("not")) return Compare();
  const Nested nested(nesting_);
  if (nesting_ > kNestingMax) return Fail("an expression is nested too deeply");
  const int line = cursor_.Take().line;
  SLUICE_ASSIGN_OR_RETURN(auto inner, Not());
  return Make(ExprKind::kNot, line, Operands(std::move(inner)));
}

StatusOr<ExprPtr> ExpressionParser::Compare() {
  const int line = cursor_.line();
  SLUICE_ASSIGN_OR_RETURN(auto first, Sum());
  std::vector<ExprPtr> args = Operands(std::move(first));
  std::vector<std::string> ops;
  static constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
  while (true) {
    if (cursor_.Is(Type::kOperator) && std::find(std::begin(kOps), std::end(kOps), cursor_.text()) != std::end(kOps)) {
      ops.push_back(cursor_.Take().text);
    } else if (cursor_.TakeName("in")) {
      ops.push_back("in");
    } else if (cursor_.IsName("not") && cursor_.after().type == Type::kName && cursor_.after().text == "in") {
      cursor_.Take();
      cursor_.Take();
      ops.push_back("not in");
    } else {
      break;
    }
    SLUICE_ASSIGN_OR_RETURN(auto right, Sum());
    args.push_back(std::move(right));
  }
  if (ops.empty()) return std::move(args[0]);
  SLUICE_ASSIGN_OR_RETURN(auto node, Make(ExprKind::kCompare, line, std::move(args)));
  node->ops = std::move(ops);
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Sum() {
  SLUICE_ASSIGN_OR_RETURN(auto node, Concat());
  while (cursor_.IsOperator("+") || cursor_.IsOperator("-")) {
    const Token& op = cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(auto right, Concat());
    SLUICE_ASSIGN_OR_RETURN(node, Make(ExprKind::kBinary, op.line, Operands(std::move(node), std::move(right)), op.text));
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Concat() {
  const int line = cursor_.line();
  SLUICE_ASSIGN_OR_RETURN(auto first, Product());
  if (!cursor_.IsOperator("~")) return first;
  std::vector<ExprPtr> args = Operands(std::move(first));
  while (cursor_.TakeOperator("~")) {
    SLUICE_ASSIGN_OR_RETURN(auto next, Product());
    args.push_back(std::move(next));
  }
  return Make(ExprKind::kConcat, line, std::move(args));
}

StatusOr<ExprPtr> ExpressionParser::Product() {
  SLUICE_ASSIGN_OR_RETURN(auto node, Power());
  while (cursor_.IsOperator("*") || cursor_.IsOperator("/") || cursor_.IsOperator("//") || cursor_.IsOperator("%")) {
    const Token& op = cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(auto right, Power());
    SLUICE_ASSIGN_OR_RETURN(node, Make(ExprKind::kBinary, op.line, Operands(std::move(node), std::move(right)), op.text));
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Power() {
  SLUICE_ASSIGN_OR_RETURN(auto node, Unary(true));
  while (cursor_.IsOperator("**")) {
    const int line = cursor_.Take().line;
    SLUICE_ASSIGN_OR_RETURN(auto right, Unary(true));
    SLUICE_ASSIGN_OR_RETURN(node, Make(ExprKind::kBinary, line, Operands(std::move(node), std::move(right)), "**"));
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filters) {
  const Nested nested(nesting_);
  if (nesting_ > kNestingMax) return Fail("an expression is nested too deeply");
  ExprPtr node;
  if (cursor_.IsOperator("-") || cursor_.IsOperator("+")) {
    const Token& op = cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(auto inner, Unary(false));
    SLUICE_ASSIGN_OR_RETURN(
        node, Make(op.text == "-" ? ExprKind::kNegative : ExprKind::kPositive, op.line, Operands(std::move(inner))));
  } else {
    SLUICE_ASSIGN_OR_RETURN(node, Primary());
  }
  SLUICE_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
  if (with_filters) return FiltersAndTests(std::move(node));
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Primary() {
  switch (cursor_.now().type) {
    case Type::kName:
      return Name();
    case Type::kInteger:
    case Type::kFloat:
      return Number();
    case Type::kString: {
      const int line = cursor_.line();
      std::string text;
      while (cursor_.Is(Type::kString)) text += cursor_.Take().text;  // neighbours are one
      SLUICE_ASSIGN_OR_RETURN(auto node, Make(ExprKind::kConstant, line, {}, std::move(text)));
      node->constant = Value::String(node->text);
      return node;
    }
    case Type::kOperator:
      if (cursor_.IsOperator("(")) return Parenthesised();
      if (cursor_.IsOperator("[")) return ListLiteral();
      if (cursor_.IsOperator("{")) return DictLiteral();
      return Unexpected();
    default:
      return Unexpected();
  }
}

StatusOr<ExprPtr> ExpressionParser::Number() {
  const Token& token = cursor_.Take();
  SLUICE_ASSIGN_OR_RETURN(auto node, Make(ExprKind::kConstant, token.line, {}));
  const char* end = token.text.data() + token.text.size();
  if (token.type == Type::kInteger) {
    int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
      return ErrorAt(token.line, "the number " + token.text + " is too large");
    }
    node->constant = Value::Int(value);
  } else {
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
      return ErrorAt(token.line, "the number " + token.text + " is out of range");
    }
    node->constant = Value::Float(value);
  }
  return node;
}

StatusOr<ExprPtr> ExpressionParser::Name() {
  const Token& token = cursor_.Take();
  const std::string& name = token.text;
  if (name == "not" || name == "and" || name == "or" || name == "in" || name == "is" || name == "else") {
    return ErrorAt(token.line, "unexpected '" + name + "'");
  }
  const bool is_true = name == "true" || name == "True", is_false = name == "false" || name == "False";
  if (is_true || is_false || name == "none" || name == "None") {
    SLUICE_ASSIGN_OR_RETURN(auto node, Make(ExprKind::kConstant, token.line, {}));
    node->constant = is_true || is_false ? Value::Bool(is_true) : Value::None();
    return node;
  }
  names_.insert(name);
  return Make(ExprKind::kName, token.line, {}, name);
}

StatusOr<ExprPtr> ExpressionParser::Parenthesised() {
  const int line = cursor_.Take().line;
  if (cursor_.TakeOperator(")")) return Make(ExprKind::kTuple, line, {});
  SLUICE_ASSIGN_OR_RETURN(auto node, Tuple(true));
  if (!cursor_.TakeOperator(")")) return Unexpected();
  return node;
}

StatusOr<ExprPtr> ExpressionParser::ListLiteral() {
  const int line = cursor_.Take().line;
  std::vector<ExprPtr> items;
  while (!cursor_.TakeOperator("]")) {
    if (!items.empty() && !cursor_.TakeOperator(",")) return Unexpected();
    if (!items.empty() && cursor_.TakeOperator("]")) break;
    SLUICE_ASSIGN_OR_RETURN(auto item, Expression());
    items.push_back(std::move(item));
  }
  return Make(ExprKind::kList, line, std::move(items));
}

StatusOr<ExprPtr> ExpressionParser::DictLiteral() {
  const int line = cursor_.Take().line;
  std::vector<ExprPtr> items;
  while (!cursor_.TakeOperator("}")) {
    if (!items.empty() && !cursor_.TakeOperator(",")) return Unexpected();
    if (!items.empty() && cursor_.TakeOperator("}")) break;
    SLUICE_ASSIGN_OR_RETURN(auto key, Expression());
    if (!cursor_.TakeOperator(":")) return Unexpected();
    SLUICE_ASSIGN_OR_RETURN(auto value, Expression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
  }
  return Make(ExprKind::kDict, line, std::move(items));
}

StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr node) {
  while (true) {
    if (cursor_.IsOperator(".")) {
      SLUICE_ASSIGN_OR_RETURN(node, Attribute(std::move(node)));
    } else if (cursor_.IsOperator("[")) {
      SLUICE_ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (cursor_.IsOperator("(")) {
      SLUICE_ASSIGN_OR_RETURN(node, Call(std::move(node)));
    } else {
      return node;
    }
  }
}

StatusOr<ExprPtr> ExpressionParser::Attribute(ExprPtr node) {
  const int line = cursor_.Take().line;
  if (cursor_.Is(Type::kInteger)) {
    SLUICE_ASSIGN_OR_RETURN(auto index, Number());
    return Make(ExprKind::kItem, line, Operands(std::move(node), std::move(index)));
  }
  if (!cursor_.Is(Type::kName)) return Unexpected();
  return Make(ExprKind::kAttribute, line, Operands(std::move(node)), cursor_.Take().text);
}

StatusOr<ExprPtr> ExpressionParser::Subscript(ExprPtr node) {
  const int line = cursor_.Take().line;
  std::vector<ExprPtr> args = Operands(std::move(node));
  int colons = 0;
  args.push_back(nullptr);
  while (!cursor_.TakeOperator("]")) {
    if (cursor_.TakeOperator(":")) {
      if (++colons > 2) return Fail("a slice with more than three parts");
      args.push_back(nullptr);
      continue;
    }
    if (args.back() != nullptr) return Unexpected();
    SLUICE_ASSIGN_OR_RETURN(args.back(), Expression());
  }
  if (colons > 0) {
    args.resize(4);
    return Make(ExprKind::kSlice, line, std::move(args));
  }
  if (args[1] == nullptr) return Fail("an index is missing");
  return Make(ExprKind::kItem, line, std::move(args));
}

StatusOr<ExprPtr> ExpressionParser::Call(ExprPtr callee) {
  // Only values' own methods can be called by attribute, so an unknown name can be told now.
  if (callee->kind == ExprKind::kAttribute && !IsMethod(callee->text)) {
    return ErrorAt(callee->line, "unknown method '" + callee->text + "'");
  }
  SLUICE_ASSIGN_OR_RETURN(auto node, Make(ExprKind::kCall, cursor_.line(), Operands(std::move(callee))));
  SLUICE_RETURN_IF_ERROR(Arguments(*node));
  return WithDepth(std::move(node));
}

Status ExpressionParser::Arguments(Expr& node) {
  cursor_.Take();
  bool first = true;
  while (!cursor_.TakeOperator(")")) {
    if (!first && !cursor_.TakeOperator(",")) return Unexpected();
    if (!first && cursor_.TakeOperator(")")) break;
    first = false;
    if (cursor_.TakeOperator("**")) {
      if (node.spread_named != nullptr) return Fail("two '**' arguments");
      SLUICE_ASSIGN_OR_RETURN(node.spread_named, Expression());
    } else if (cursor_.TakeOperator("*")) {
      if (node.spread != nullptr) return Fail("two '*' arguments");
      SLUICE_ASSIGN_OR_RETURN(node.spread, Expression());
    } else if (cursor_.Is(Type::kName) && cursor_.after().type == Type::kOperator && cursor_.after().text == "=") {
      const std::string name = cursor_.Take().text;
      cursor_.Take();
      SLUICE_ASSIGN_OR_RETURN(auto value, Expression());
      node.named.emplace_back(name, std::move(value));
    } else {
      if (!node.named.empty() || node.spread != nullptr || node.spread_named != nullptr) {
        return Fail("a positional argument after a keyword argument");
      }
      SLUICE_ASSIGN_OR_RETURN(auto value, Expression());
      node.args.push_back(std::move(value));
    }
  }
  return absl::OkStatus();
}

StatusOr<ExprPtr> ExpressionParser::FiltersAndTests(ExprPtr node) {
  while (true) {
    if (cursor_.TakeOperator("|")) {
      SLUICE_ASSIGN_OR_RETURN(node, Filter(std::move(node)));
    } else if (cursor_.TakeName("is")) {
      SLUICE_ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (cursor_.IsOperator("(")) {
      SLUICE_ASSIGN_OR_RETURN(node, Call(std::move(node)));
    } else {
      return node;
    }
  }
}

StatusOr<ExprPtr> ExpressionParser::Filter(ExprPtr input) {
  if (!cursor_.Is(Type::kName)) return Fail("expected the name of a filter, found '" + cursor_.text() + "'");
  const Token& name = cursor_.Take();
  if (FindFilter(name.text) == nullptr) return ErrorAt(name.line, "unknown filter '" + name.text + "'");
  auto node = std::make_unique<Expr>();
  node->kind = ExprKind::kFilter;
  node->line = name.line;
  node->text = name.text;
  node->args.push_back(std::move(input));
  if (cursor_.IsOperator("(")) SLUICE_RETURN_IF_ERROR(Arguments(*node));
  SLUICE_RETURN_IF_ERROR(CheckNamedFilter(*node));
  return WithDepth(std::move(node));
}

// The filters that take the name of a filter or a test: a literal name can be checked now.
Status ExpressionParser::CheckNamedFilter(const Expr& filter) const {
  const auto literal = [&](size_t i) -> const std::string* {
    const bool is = filter.args.size() > i && filter.args[i]->kind == ExprKind::kConstant &&
                    filter.args[i]->constant.is(Kind::kString);
    return is ? &filter.args[i]->text : nullptr;
  };
  const bool by_attribute = filter.text == "selectattr" || filter.text == "rejectattr";
  if (by_attribute || filter.text == "select" || filter.text == "reject") {
    const std::string* test = literal(by_attribute ? 2 : 1);
    if (test != nullptr && FindTest(*test) == nullptr) return ErrorAt(filter.line, "unknown test '" + *test + "'");
  }
  if (filter.text == "map") {
    const std::string* inner = literal(1);
    if (inner != nullptr && FindFilter(*inner) == nullptr)
      return ErrorAt(filter.line, "unknown filter '" + *inner + "'");
  }
  return absl::OkStatus();
}

StatusOr<ExprPtr> ExpressionParser::Test(ExprPtr node) {
  const bool negated = cursor_.TakeName("not");
  if (!cursor_.Is(Type::kName)) return Fail("expected the name of a test, found '" + cursor_.text() + "'");
  const Token& name = cursor_.Take();
  if (FindTest(name.text) == nullptr) return ErrorAt(name.line, "unknown test '" + name.text + "'");
  SLUICE_ASSIGN_OR_RETURN(auto test, Make(ExprKind::kTest, name.line, Operands(std::move(node)), name.text));
  // One argument may follow without brackets: "x is divisibleby 3".
  static constexpr std::string_view kNoArgument[] = {"else", "or", "and", "is", "if", "not", "in"};
  const Type next = cursor_.now().type;
  if (cursor_.IsOperator("(")) {
    SLUICE_RETURN_IF_ERROR(Arguments(*test));
  } else if (next == Type::kString || next == Type::kInteger || next == Type::kFloat || cursor_.IsOperator("[") ||
             cursor_.IsOperator("{") ||
             (next == Type::kName &&
              std::find(std::begin(kNoArgument), std::end(kNoArgument), cursor_.text()) == std::end(kNoArgument))) {
    SLUICE_ASSIGN_OR_RETURN(auto argument, Primary());
    SLUICE_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    test->args.push_back(std::move(argument));
  }
  SLUICE_ASSIGN_OR_RETURN(test, WithDepth(std::move(test)));
  if (!negated) return test;
  return Make(ExprKind::kNot, name.line, Operands(std::move(test)));
}

}  // namespace sluice::jinja
