// Expressions of a template: Jinja's precedences, from "x if y" down to literals.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/text/template_ast.h"
#include "model/text/template_lexer.h"

namespace sluice::jinja {

// Where parsing stands; shared by the parsers of statements and of expressions.
class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}  // REQUIRES: ends with kEnd

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return now().line; }
  const std::string& text() const { return now().text; }
  bool Is(Token::Type type) const { return now().type == type; }
  bool IsOperator(std::string_view op) const { return Is(Token::Type::kOperator) && text() == op; }
  bool IsName(std::string_view name) const { return Is(Token::Type::kName) && text() == name; }
  // The current token, and on to the next; the last stays.
  const Token& Take() {
    const Token& token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool TakeOperator(std::string_view op) { return IsOperator(op) && (Take(), true); }
  bool TakeName(std::string_view name) { return IsName(name) && (Take(), true); }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& cursor) : cursor_(cursor) {}

  StatusOr<ExprPtr> Expression();
  // An expression, or several with commas between them as a tuple. Without `conditional`, "if" ends it.
  StatusOr<ExprPtr> Tuple(bool conditional);
  // What can be assigned to: names, tuples of them, and where `attributes` name.attribute.
  StatusOr<ExprPtr> Target(bool attributes);
  // A filter's name and arguments, the bar already taken.
  StatusOr<ExprPtr> Filter(ExprPtr input);

  // Every name that an expression mentioned so far.
  std::set<std::string>& names() { return names_; }

 private:
  Status Fail(std::string_view message) const { return ErrorAt(cursor_.line(), message); }
  Status Unexpected() const;
  StatusOr<ExprPtr> Make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string text = "");
  StatusOr<ExprPtr> WithDepth(ExprPtr node) const;

  StatusOr<ExprPtr> Or();
  StatusOr<ExprPtr> And();
  StatusOr<ExprPtr> Not();
  StatusOr<ExprPtr> Compare();
  StatusOr<ExprPtr> Sum();
  StatusOr<ExprPtr> Concat();
  StatusOr<ExprPtr> Product();
  StatusOr<ExprPtr> Power();
  StatusOr<ExprPtr> Unary(bool with_filters);
  StatusOr<ExprPtr> Primary();
  StatusOr<ExprPtr> Number();
  StatusOr<ExprPtr> Name();
  StatusOr<ExprPtr> Parenthesised();
  StatusOr<ExprPtr> ListLiteral();
  StatusOr<ExprPtr> DictLiteral();
  StatusOr<ExprPtr> Postfix(ExprPtr node);
  StatusOr<ExprPtr> Attribute(ExprPtr node);
  StatusOr<ExprPtr> Subscript(ExprPtr node);
  StatusOr<ExprPtr> Call(ExprPtr callee);
  StatusOr<ExprPtr> FiltersAndTests(ExprPtr node);
  StatusOr<ExprPtr> Test(ExprPtr node);
  Status Arguments(Expr& node);
  Status CheckNamedFilter(const Expr& filter) const;

  TokenCursor& cursor_;
  std::set<std::string> names_;
  int nesting_ = 0;
};

}  // namespace sluice::jinja
