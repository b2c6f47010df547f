#include "model/text/chat_template.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

StatusOr<std::string> Render(const std::string& source, ChatTemplate::Input input = {}) {
  SLUICE_ASSIGN_OR_RETURN(const auto parsed, ChatTemplate::Parse(source));
  input.now_unix_s = 0;
  return parsed->Render(input);
}
std::string Rendered(const std::string& source, ChatTemplate::Input input = {}) {
  const auto text = Render(source, std::move(input));
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}
std::string ParseError(const std::string& source) {
  const auto parsed = ChatTemplate::Parse(source);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(parsed.status().message());
}
std::string RenderError(const std::string& source, ChatTemplate::Input input = {}) {
  const auto text = Render(source, std::move(input));
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(text.status().message());
}

TEST(ChatTemplateParse, WhatIsNotKnownFailsWithItsLine) {
  EXPECT_THAT(ParseError("a\n{% include 'x' %}"), HasSubstr("line 2: unknown tag 'include'"));
  EXPECT_THAT(ParseError("\n\n{{ x | wordwrap }}"), HasSubstr("line 3: unknown filter 'wordwrap'"));
  EXPECT_THAT(ParseError("{{ x is\n weird }}"), HasSubstr("line 2: unknown test 'weird'"));
  EXPECT_THAT(ParseError("{{ x.append(1) }}"), HasSubstr("line 1: unknown method 'append'"));
  EXPECT_THAT(ParseError("{{ x | map('nope') }}"), HasSubstr("unknown filter 'nope'"));
  EXPECT_THAT(ParseError("{{ x | selectattr('a', 'nope') }}"), HasSubstr("unknown test 'nope'"));
  EXPECT_THAT(ParseError("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive"));
}

TEST(ChatTemplateParse, WhatIsNotWholeFailsWithItsLine) {
  EXPECT_THAT(ParseError("{% if x %}\n"), HasSubstr("'endif' is missing"));
  EXPECT_THAT(ParseError("\n{{ x "), HasSubstr("line 2"));
  EXPECT_THAT(ParseError("{{ }}"), HasSubstr("missing"));
  EXPECT_THAT(ParseError("{{ 'x }}"), HasSubstr("without its end"));
  EXPECT_THAT(ParseError("{# x"), HasSubstr("comment"));
  EXPECT_THAT(ParseError("{% raw %} x"), HasSubstr("endraw"));
  EXPECT_THAT(ParseError("{% endfor %}"), HasSubstr("unknown tag 'endfor'"));
  EXPECT_THAT(ParseError("{% break %}"), HasSubstr("outside of a loop"));
  EXPECT_THAT(ParseError("{{ x ? y }}"), HasSubstr("unexpected character '?'"));
  EXPECT_THAT(ParseError("{{ (1] }}"), HasSubstr("unexpected ']'"));
  EXPECT_THAT(ParseError("{{ 99999999999999999999 }}"), HasSubstr("too large"));
  EXPECT_THAT(ParseError("{{ '\xff' }}"), HasSubstr("not UTF-8"));
}

TEST(ChatTemplateParse, NestingIsBounded) {
  const auto repeat = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  EXPECT_THAT(ParseError("{{ " + repeat("(", 10'000) + "x" + repeat(")", 10'000) + " }}"), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError("{{ " + repeat("[", 10'000) + repeat("]", 10'000) + " }}"), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError("{{ " + repeat("not ", 10'000) + "x }}"), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError("{{ " + repeat("- ", 10'000) + "x }}"), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError("{{ 1" + repeat(" + 1", 10'000) + " }}"), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError("{{ x" + repeat("|upper", 10'000) + " }}"), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError(repeat("{% if x %}", 10'000)), HasSubstr("too deeply"));
  EXPECT_THAT(ParseError("{% for " + repeat("(", 10'000) + "y" + repeat(")", 10'000) + " in x %}"),
              HasSubstr("too deeply"));
}

TEST(ChatTemplateRender, ErrorsHaveTheirLine) {
  EXPECT_THAT(RenderError("\n{{ 1 + 'a' }}"), HasSubstr("line 2: '+' does not go with int and str"));
  EXPECT_THAT(RenderError("{{ missing.field }}"), HasSubstr("'missing' is undefined"));
  EXPECT_THAT(RenderError("{{ 1 // 0 }}"), HasSubstr("division by zero"));
  EXPECT_THAT(RenderError("{{ missing() }}"), HasSubstr("cannot be called"));
  EXPECT_THAT(RenderError("{% macro m(a) %}\n{{ a.b.c }}{% endmacro %}\n\n{{ m({}) }}"), HasSubstr("line 2"));
}

TEST(ChatTemplateRender, RaiseExceptionKeepsTheTemplatesOwnWords) {
  EXPECT_EQ(RenderError("{% macro m() %}{{ raise_exception('Only ' ~ 2) }}{% endmacro %}\n{{ m() }}"), "Only 2");
}

TEST(ChatTemplateRender, WorkAndOutputAreBounded) {
  const std::string loop =
      "{% set r = range(100000) %}{% for a in r %}{% for b in r if b < 0 %}{% endfor %}{% endfor %}";
  EXPECT_THAT(RenderError(loop), HasSubstr("too many steps"));
  EXPECT_THAT(RenderError("{{ 'ab' * 1000000000000 }}"), HasSubstr("too long"));
  EXPECT_THAT(RenderError("{{ [0] * 1000000000000 }}"), HasSubstr("too long"));
  const std::string doubling =
      "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
  EXPECT_THAT(RenderError(doubling), HasSubstr("too much memory"));
  EXPECT_THAT(RenderError("{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}"), HasSubstr("output is too long"));
  EXPECT_THAT(RenderError("{{ range(1000000) }}"), HasSubstr("100000"));
  EXPECT_THAT(RenderError("{{ 2 ** 64 }}"), HasSubstr("too large"));
  EXPECT_THAT(RenderError("{{ '%999999999d' % 1 }}"), HasSubstr("too wide"));
}

TEST(ChatTemplateRender, RecursionAndCyclesAreBounded) {
  EXPECT_THAT(RenderError("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("too deeply"));
  const std::string nest =
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}";
  EXPECT_EQ(Rendered(nest), "");
  EXPECT_THAT(RenderError(nest + "{{ ns.l }}"), HasSubstr("too deeply"));
  EXPECT_THAT(RenderError(nest + "{{ ns.l | tojson }}"), HasSubstr("too deeply"));
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns.a.a == ns }}"), "True");
}

TEST(ChatTemplateRender, ADeepConversationIsRefused) {
  ChatTemplate::Input input;
  input.messages = Json::parse(std::string(500'000, '[') + std::string(500'000, ']'));
  const auto parsed = ChatTemplate::Parse("x");
  EXPECT_THAT(std::string((*parsed)->Render(input).status().message()), HasSubstr("too deeply"));
}

TEST(ChatTemplateRender, VariablesDoNotReplaceTheConversation) {
  ChatTemplate::Input input;
  input.messages = Json::array({Json{{"role", "user"}}});
  input.variables = {{"messages", "forged"}, {"add_generation_prompt", false}, {"mood", "calm"}};
  EXPECT_EQ(Rendered("{{ messages | length }} {{ add_generation_prompt }} {{ mood }}", input), "1 True calm");
}

TEST(ChatTemplateRender, NullFieldsOfMessagesAreAbsentAndReasoningHasThreeNames) {
  ChatTemplate::Input input;
  input.messages = Json::array({Json{{"content", nullptr}, {"reasoning", "so"}}});
  EXPECT_EQ(Rendered("{{ messages[0].content is defined }} {{ messages[0].reasoning_content }}"
                     " {{ messages[0]['thinking'] }}",
                     input),
            "False so so");
}

TEST(ChatTemplateRender, LoopsKeepTheirVariablesToThemselves) {
  EXPECT_EQ(Rendered("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(Rendered("{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}"),
            "1:2 2:3 ");
  EXPECT_EQ(
      Rendered("{% for x in 'ab' %}{% for y in [1] %}{{ loop.depth }}{% endfor %}{% endfor %}{{ loop is defined }}"),
      "22False");
}

TEST(ChatTemplateRender, MacrosSeeWhatIsDefinedWhereTheyAre) {
  EXPECT_EQ(Rendered("{% macro m(a, b='d') %}{{ a }}{{ b }}{{ x }}{% endmacro %}{% set x = 1 %}{{ m('c') }}"), "cd1");
  EXPECT_EQ(Rendered("{% macro m() %}[{{ caller('v') }}]{% endmacro %}{% call(p) m() %}{{ p }}{% endcall %}"), "[v]");
  EXPECT_EQ(Rendered("{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(*[1, 2], **{'k': 3}) }}"),
            "1(2,){'k': 3}");
  EXPECT_THAT(RenderError("{% macro m() %}{% endmacro %}{{ m(1) }}"), HasSubstr("too many arguments for macro 'm'"));
}

TEST(ChatTemplateRender, AMacroFromALoopKeepsItsTurnsVariables) {
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}"
                     "{% if i == 1 %}{% set ns.m = m %}{% endif %}{% endfor %}{% set f = ns.m %}{{ f() }}"),
            "1");
}

TEST(ChatTemplateRender, NumbersPrintAsPythonPrintsThem) {
  EXPECT_EQ(Rendered("{{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 123456789012345680.0 }} {{ -0.0 }} {{ 1e22 }}"),
            "1e+16 1e-05 0.30000000000000004 1.2345678901234568e+17 -0.0 1e+22");
  EXPECT_EQ(Rendered("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ 2 ** -1 }}"), "-4 2 -2 -4.0 0.5");
  EXPECT_THAT(RenderError("{{ (0 - 9223372036854775807 - 1) // -1 }}"), HasSubstr("too large"));
  EXPECT_EQ(Rendered("{{ (0 - 9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(ChatTemplateRender, WhiteSpaceControlFollowsTrimAndLstripBlocks) {
  EXPECT_EQ(Rendered("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(Rendered("  {{ 'x' }}  \n  {%- if true -%}  y  {%- endif %}  z"), "  xy  z");
  EXPECT_EQ(Rendered("a {%+ if true +%}\nb{% endif %}"), "a \nb");
  EXPECT_EQ(Rendered("{% raw %}\n{{ x }}\n{% endraw %}\nz"), "\n{{ x }}\nz");
  EXPECT_EQ(Rendered("a\r\nb\r{# c #}\n"), "a\nb\n");
}

}  // namespace
}  // namespace sluice
