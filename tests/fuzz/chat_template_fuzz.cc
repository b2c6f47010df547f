// Any text as a template, rendered over a small conversation: refused with a line, or rendered within its limits into
// valid UTF-8.
#include <string_view>

#include "model/text/template_evaluator.h"
#include "model/text/template_parser.h"
#include "model/text/utf8.h"

namespace {
using sluice::jinja::Arena;
using sluice::jinja::Value;

sluice::StatusOr<std::string> Render(const sluice::jinja::Body& body) {
  Arena arena({.steps = 200'000, .bytes = size_t{8} << 20, .output_bytes = size_t{1} << 20, .depth = 500}, 1927857906);
  sluice::jinja::Evaluator evaluator(arena);
  std::vector<Value> messages;
  for (const char* role : {"system", "user", "assistant"}) {
    SLUICE_ASSIGN_OR_RETURN(const Value message,
                            arena.NewDict({{Value::String("role"), Value::String(role)},
                                           {Value::String("content"), Value::String("Gr\u00fc\u00dfe, \U0001F600 <b>")},
                                           {Value::String("count"), Value::Int(3)},
                                           {Value::String("share"), Value::Float(0.25)}}));
    messages.push_back(message);
  }
  SLUICE_ASSIGN_OR_RETURN(const Value list, arena.NewList(std::move(messages)));
  evaluator.Define("messages", list);
  evaluator.Define("tools", Value::None());
  evaluator.Define("bos_token", Value::String("<s>"));
  evaluator.Define("add_generation_prompt", Value::Bool(true));
  return evaluator.Render(body);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto body = sluice::jinja::ParseTemplate(source);
  if (!body.ok()) {
    SLUICE_CHECK(body.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  const auto rendered = Render(*body);
  SLUICE_CHECK(rendered.ok() ? sluice::IsValidUtf8(*rendered)
                             : rendered.status().code() == absl::StatusCode::kInvalidArgument);
  return 0;
}
