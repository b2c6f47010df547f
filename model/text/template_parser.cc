#include "model/text/template_parser.h"

#include <algorithm>
#include <set>

#include "model/text/template_expression_parser.h"
#include "model/text/template_lexer.h"

namespace sluice::jinja {

namespace {

constexpr int kStatementDepthMax = 50;
using Type = Token::Type;
using EndWords = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : cursor_(std::move(tokens)), expressions_(cursor_) {}

  StatusOr<Body> Run() {
    SLUICE_ASSIGN_OR_RETURN(Body body, Statements({}));
    return body;
  }

 private:
  Status Fail(std::string_view message) const { return ErrorAt(cursor_.line(), message); }

  // Up to a block tag whose word is in `ends`; that word is the current token afterwards. Without ends: to the end.
  StatusOr<Body> Statements(EndWords ends) {
    if (++depth_ > kStatementDepthMax) return Fail("blocks are nested too deeply");
    Body body;
    while (!cursor_.Is(Type::kEnd)) {
      if (cursor_.Is(Type::kText)) {
        auto text = New(StmtKind::kText);
        text->text = cursor_.Take().text;
        body.push_back(std::move(text));
      } else if (cursor_.Is(Type::kOutputBegin)) {
        SLUICE_ASSIGN_OR_RETURN(auto output, Output());
        body.push_back(std::move(output));
      } else {
        cursor_.Take();
        if (!cursor_.Is(Type::kName)) return Fail("a block tag without a name");
        if (std::find(ends.begin(), ends.end(), cursor_.text()) != ends.end()) break;
        SLUICE_ASSIGN_OR_RETURN(auto statement, Statement());
        body.push_back(std::move(statement));
      }
    }
    --depth_;
    if (cursor_.Is(Type::kEnd) && ends.size() > 0) {
      return Fail(
          absl::StrCat("the template ends inside a block: '", std::string(*(ends.end() - 1)), "' is missing"));
    }
    return body;
  }

  std::unique_ptr<Stmt> New(StmtKind kind) const {
    auto statement = std::make_unique<Stmt>();
    statement->kind = kind;
    statement->line = cursor_.line();
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> Output() {
    auto output = New(StmtKind::kOutput);
    cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(output->value, expressions_.Tuple(true));
    if (!cursor_.Is(Type::kOutputEnd))
      return Fail("expected the end of the expression, found '" + cursor_.text() + "'");
    cursor_.Take();
    return output;
  }

  Status EndTag() {
    if (!cursor_.Is(Type::kBlockEnd)) return Fail("expected the end of the tag, found '" + cursor_.text() + "'");
    cursor_.Take();
    return absl::OkStatus();
  }
  // The word that ended a body, then the tag's end.
  Status EndWord() {
    cursor_.Take();
    return EndTag();
  }

  StatusOr<std::unique_ptr<Stmt>> Statement() {
    const std::string word = cursor_.text();
    if (word == "if") return If();
    if (word == "for") return For();
    if (word == "set") return Set();
    if (word == "macro") return Macro();
    if (word == "call") return CallBlock();
    if (word == "filter") return FilterBlock();
    if (word == "with") return With();
    if (word == "generation") return Generation();
    if (word == "break" || word == "continue") return LoopControl(word);
    return Fail("unknown tag '" + word + "'");
  }

  StatusOr<std::unique_ptr<Stmt>> If() {
    auto statement = New(StmtKind::kIf);
    while (true) {
      cursor_.Take();  // if, elif
      SLUICE_ASSIGN_OR_RETURN(auto condition, expressions_.Tuple(false));
      SLUICE_RETURN_IF_ERROR(EndTag());
      SLUICE_ASSIGN_OR_RETURN(Body body, Statements({"elif", "else", "endif"}));
      statement->branches.emplace_back(std::move(condition), std::move(body));
      if (cursor_.text() != "elif") break;
    }
    if (cursor_.text() == "else") {
      SLUICE_RETURN_IF_ERROR(EndWord());
      SLUICE_ASSIGN_OR_RETURN(statement->orelse, Statements({"endif"}));
    }
    SLUICE_RETURN_IF_ERROR(EndWord());
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> For() {
    auto statement = New(StmtKind::kFor);
    cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(statement->target, expressions_.Target(false));
    if (!cursor_.TakeName("in")) return Fail("expected 'in', found '" + cursor_.text() + "'");
    SLUICE_ASSIGN_OR_RETURN(statement->value, expressions_.Tuple(false));
    if (cursor_.TakeName("if")) {
      SLUICE_ASSIGN_OR_RETURN(statement->condition, expressions_.Expression());
    }
    if (cursor_.IsName("recursive")) return Fail("'recursive' loops are not known");
    SLUICE_RETURN_IF_ERROR(EndTag());
    ++loops_;
    SLUICE_ASSIGN_OR_RETURN(statement->body, Statements({"else", "endfor"}));
    --loops_;
    if (cursor_.text() == "else") {
      SLUICE_RETURN_IF_ERROR(EndWord());
      SLUICE_ASSIGN_OR_RETURN(statement->orelse, Statements({"endfor"}));
    }
    SLUICE_RETURN_IF_ERROR(EndWord());
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> Set() {
    auto statement = New(StmtKind::kSet);
    cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(statement->target, expressions_.Target(true));
    if (cursor_.TakeOperator("=")) {
      SLUICE_ASSIGN_OR_RETURN(statement->value, expressions_.Tuple(true));
      SLUICE_RETURN_IF_ERROR(EndTag());
      return statement;
    }
    statement->kind = StmtKind::kSetBlock;
    if (cursor_.TakeOperator("|")) {
      SLUICE_ASSIGN_OR_RETURN(statement->filters, Filters());
    }
    SLUICE_RETURN_IF_ERROR(EndTag());
    SLUICE_ASSIGN_OR_RETURN(statement->body, Statements({"endset"}));
    SLUICE_RETURN_IF_ERROR(EndWord());
    return statement;
  }

  // name(...) | name ... of a block, the first bar already taken.
  StatusOr<std::vector<ExprPtr>> Filters() {
    std::vector<ExprPtr> filters;
    do {
      SLUICE_ASSIGN_OR_RETURN(auto filter, expressions_.Filter(nullptr));
      filters.push_back(std::move(filter));
    } while (cursor_.TakeOperator("|"));
    return filters;
  }

  Status Signature(Stmt& statement) {
    if (!cursor_.TakeOperator("(")) return Fail("expected '(', found '" + cursor_.text() + "'");
    while (!cursor_.TakeOperator(")")) {
      if (!statement.parameters.empty() && !cursor_.TakeOperator(",")) return Fail("expected ',' or ')'");
      if (!cursor_.Is(Type::kName)) return Fail("expected the name of a parameter, found '" + cursor_.text() + "'");
      Parameter parameter{cursor_.Take().text, nullptr};
      if (cursor_.TakeOperator("=")) {
        SLUICE_ASSIGN_OR_RETURN(parameter.fallback, expressions_.Expression());
      } else if (!statement.parameters.empty() && statement.parameters.back().fallback != nullptr) {
        return Fail("a parameter without default after one with a default");
      }
      statement.parameters.push_back(std::move(parameter));
    }
    return absl::OkStatus();
  }

  // The body of a macro or a call block, noting which of the implicit variables it names.
  Status MacroBody(Stmt& statement, std::string_view end) {
    const int outer_loops = std::exchange(loops_, 0);  // break does not reach out of a macro
    std::set<std::string> outer_names = std::exchange(expressions_.names(), {});
    SLUICE_ASSIGN_OR_RETURN(statement.body, Statements({end}));
    statement.uses_varargs = expressions_.names().count("varargs") > 0;
    statement.uses_kwargs = expressions_.names().count("kwargs") > 0;
    statement.uses_caller = expressions_.names().count("caller") > 0;
    expressions_.names().merge(outer_names);
    loops_ = outer_loops;
    return EndWord();
  }

  StatusOr<std::unique_ptr<Stmt>> Macro() {
    auto statement = New(StmtKind::kMacro);
    cursor_.Take();
    if (!cursor_.Is(Type::kName)) return Fail("a macro without a name");
    statement->text = cursor_.Take().text;
    SLUICE_RETURN_IF_ERROR(Signature(*statement));
    SLUICE_RETURN_IF_ERROR(EndTag());
    SLUICE_RETURN_IF_ERROR(MacroBody(*statement, "endmacro"));
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> CallBlock() {
    auto statement = New(StmtKind::kCallBlock);
    cursor_.Take();
    statement->text = "caller";
    if (cursor_.IsOperator("(")) SLUICE_RETURN_IF_ERROR(Signature(*statement));
    SLUICE_ASSIGN_OR_RETURN(statement->value, expressions_.Expression());
    if (statement->value->kind != ExprKind::kCall) return Fail("a call block needs a call");
    SLUICE_RETURN_IF_ERROR(EndTag());
    SLUICE_RETURN_IF_ERROR(MacroBody(*statement, "endcall"));
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> FilterBlock() {
    auto statement = New(StmtKind::kFilterBlock);
    cursor_.Take();
    SLUICE_ASSIGN_OR_RETURN(statement->filters, Filters());
    SLUICE_RETURN_IF_ERROR(EndTag());
    SLUICE_ASSIGN_OR_RETURN(statement->body, Statements({"endfilter"}));
    SLUICE_RETURN_IF_ERROR(EndWord());
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> With() {
    auto statement = New(StmtKind::kWith);
    cursor_.Take();
    while (!cursor_.Is(Type::kBlockEnd)) {
      if (!statement->assignments.empty() && !cursor_.TakeOperator(","))
        return Fail("expected ',' or the end of the tag");
      SLUICE_ASSIGN_OR_RETURN(auto target, expressions_.Target(false));
      if (!cursor_.TakeOperator("=")) return Fail("expected '=', found '" + cursor_.text() + "'");
      SLUICE_ASSIGN_OR_RETURN(auto value, expressions_.Expression());
      statement->assignments.emplace_back(std::move(target), std::move(value));
    }
    SLUICE_RETURN_IF_ERROR(EndTag());
    SLUICE_ASSIGN_OR_RETURN(statement->body, Statements({"endwith"}));
    SLUICE_RETURN_IF_ERROR(EndWord());
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> Generation() {
    auto statement = New(StmtKind::kScope);
    cursor_.Take();
    SLUICE_RETURN_IF_ERROR(EndTag());
    SLUICE_ASSIGN_OR_RETURN(statement->body, Statements({"endgeneration"}));
    SLUICE_RETURN_IF_ERROR(EndWord());
    return statement;
  }

  StatusOr<std::unique_ptr<Stmt>> LoopControl(std::string_view word) {
    if (loops_ == 0) return Fail("'" + std::string(word) + "' outside of a loop");
    auto statement = New(word == "break" ? StmtKind::kBreak : StmtKind::kContinue);
    cursor_.Take();
    SLUICE_RETURN_IF_ERROR(EndTag());
    return statement;
  }

  TokenCursor cursor_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

StatusOr<Body> ParseTemplate(std::string_view source) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace sluice::jinja
