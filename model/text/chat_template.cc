#include "model/text/chat_template.h"

#include <utility>

#include "absl/time/clock.h"
#include "model/text/template_evaluator.h"
#include "model/text/template_parser.h"
#include "model/text/utf8.h"

namespace sluice {

namespace {

using jinja::Kind;
using jinja::Value;
using Json = nlohmann::ordered_json;

constexpr size_t kSourceBytesMax = size_t{1} << 20;

// Whether lists and objects are nested deeper than `depth`: looked at before anything else, since copying JSON recurses
// as deep as it goes.
bool DeeperThan(const Json& json, int depth) {
  if (!json.is_structured()) return false;
  if (depth == 0) return true;
  for (const Json& inner : json) {
    if (DeeperThan(inner, depth - 1)) return true;
  }
  return false;
}

// JSON as template values. Strings point into the input.
StatusOr<Value> FromJson(jinja::Arena& arena, const Json& json) {
  SLUICE_RETURN_IF_ERROR(arena.Step());
  switch (json.type()) {
    case Json::value_t::null:
      return Value::None();
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const uint64_t number = json.get<uint64_t>();
      return number <= INT64_MAX ? Value::Int(static_cast<int64_t>(number)) : Value::Float(static_cast<double>(number));
    }
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string: {
      const std::string& text = json.get_ref<const std::string&>();
      if (!IsValidUtf8(text)) return absl::InvalidArgumentError("the input holds text that is not UTF-8");
      return Value::String(text);
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) {
        SLUICE_ASSIGN_OR_RETURN(const Value value, FromJson(arena, item));
        items.push_back(value);
      }
      return arena.NewList(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.get_ref<const Json::object_t&>()) {
        if (!IsValidUtf8(key)) return absl::InvalidArgumentError("the input holds text that is not UTF-8");
        SLUICE_ASSIGN_OR_RETURN(const Value value, FromJson(arena, item));
        items.emplace_back(Value::String(key), value);
      }
      return arena.NewDict(std::move(items));
    }
    default:
      return absl::InvalidArgumentError("the input holds a value that is no JSON");
  }
}

// As transformers prepares messages: no null fields, and the names of reasoning stand for each other.
Json Prepared(const Json& messages) {
  if (!messages.is_array()) return messages;
  static constexpr const char* kReasoning[] = {"reasoning_content", "reasoning", "thinking"};
  Json prepared = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object()) {
      prepared.push_back(message);
      continue;
    }
    Json copy = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) copy[key] = value;
    }
    for (const char* given : kReasoning) {
      if (!copy.contains(given)) continue;
      const Json value = copy[given];
      for (const char* other : kReasoning) {
        if (!copy.contains(other)) copy[other] = value;
      }
      break;
    }
    prepared.push_back(std::move(copy));
  }
  return prepared;
}

class ParsedTemplate final : public ChatTemplate {
 public:
  explicit ParsedTemplate(jinja::Body body) : body_(std::move(body)) {}

  StatusOr<std::string> Render(const Input& input) const override {
    if (!IsValidUtf8(input.bos_token) || !IsValidUtf8(input.eos_token)) {
      return absl::InvalidArgumentError("a special token's text is not UTF-8");
    }
    const jinja::Limits limits;
    for (const Json* json : {&input.messages, &input.tools, &input.documents, &input.variables}) {
      if (DeeperThan(*json, limits.value_depth)) {
        return absl::InvalidArgumentError("the conversation is nested too deeply");
      }
    }
    const Json messages = Prepared(input.messages);
    jinja::Arena arena(limits, input.now_unix_s.value_or(absl::ToUnixSeconds(absl::Now())));
    jinja::Evaluator evaluator(arena);
    evaluator.Define("bos_token", Value::String(input.bos_token));
    evaluator.Define("eos_token", Value::String(input.eos_token));
    if (input.variables.is_object()) {
      SLUICE_ASSIGN_OR_RETURN(const Value variables, FromJson(arena, input.variables));
      for (const auto& [name, value] : variables.as<jinja::Dict>().items) evaluator.Define(name.text(), value);
    }
    // The conversation comes last: a variable of the same name must not replace it.
    const std::pair<std::string_view, const Json*> conversation[] = {
        {"messages", &messages}, {"tools", &input.tools}, {"documents", &input.documents}};
    for (const auto& [name, json] : conversation) {
      SLUICE_ASSIGN_OR_RETURN(const Value value, FromJson(arena, *json));
      evaluator.Define(name, value);
    }
    evaluator.Define("add_generation_prompt", Value::Bool(input.add_generation_prompt));
    return evaluator.Render(body_);
  }

 private:
  jinja::Body body_;
};

}  // namespace

StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template: ", source.size(), " bytes, at most ", kSourceBytesMax, " are read"));
  }
  SLUICE_ASSIGN_OR_RETURN(jinja::Body body, jinja::ParseTemplate(source));
  return std::make_unique<ParsedTemplate>(std::move(body));
}

}  // namespace sluice
