#include "gateway/openai_request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "gateway/cache_policy_field.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kParamPayload = "sluice/param";

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// Sent by other systems to steer where KV comes from. Never taken from outside: only decode's ticket says it.
constexpr std::string_view kKvFields[] = {"kv_transfer_params", "disagg_params",    "disaggregated_params",
                                          "bootstrap_host",     "bootstrap_port",   "bootstrap_room",
                                          "remote_block_ids",   "remote_engine_id", "migration_request"};

// Would change the answer and are not done here. Refused unless they say "no" (null, false, empty).
struct Refused {
  std::string_view field;
  std::string_view why;
};
constexpr Refused kRefused[] = {
    {"echo", "echoing the prompt is not supported"},
    {"suffix", "text after the completion is not supported"},
    {"prompt_logprobs", "log-probabilities of prompt tokens are not supported"},
    {"use_beam_search", "beam search is not supported"},
    {"functions", "is deprecated by OpenAI; use tools"},
    {"function_call", "is deprecated by OpenAI; use tools"},
    {"audio", "only text is supported"},
    {"guided_json", "constrained output is not supported"},
    {"guided_regex", "constrained output is not supported"},
    {"guided_choice", "constrained output is not supported"},
    {"guided_grammar", "constrained output is not supported"},
    {"structured_outputs", "constrained output is not supported"},
    {"chat_template", "templates are not taken from requests"},
    {"continue_final_message", "continuing the last message is not supported"},
};

std::string_view TypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_float:
      return "a fraction";
    default:
      return "an integer";
  }
}

// What a message shows of a value: enough to recognise it, never the whole body.
std::string Show(const Json& value) {
  if (value.is_structured()) return std::string(TypeName(value));
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

Status WrongType(std::string_view field, const Json& value, std::string_view wanted) {
  return FieldError(field, absl::StrCat(Absl(field), " is ", Absl(TypeName(value)), ", must be ", Absl(wanted)));
}

// Counts before parsing, so that neither nesting nor a million tiny arrays become memory, nor an object's many names
// time: ordered_json looks for each new name among all the former ones.
Status CheckShape(std::string_view body) {
  int depth = 0;
  int values = 1;
  int members[kJsonDepthMax + 1] = {};  // colons at each depth, of the value that is open there
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') {
      if (++depth > kJsonDepthMax) {
        return absl::InvalidArgumentError(absl::StrCat("body nests deeper than ", kJsonDepthMax, " levels"));
      }
      members[depth] = 0;
    }
    if ((c == ']' || c == '}') && --depth < 0) break;  // not JSON: the parser says where
    if (c == ':' && ++members[depth] > kJsonMembersMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("an object of the body has more than ", kJsonMembersMax, " members"));
    }
    if (c == ',' || c == '[' || c == '{') ++values;
    if (values > kJsonValuesMax) {
      return absl::InvalidArgumentError(absl::StrCat("body holds more than ", kJsonValuesMax, " values"));
    }
  }
  return absl::OkStatus();
}

StatusOr<Json> ParseJson(std::string_view body) {
  SLUICE_RETURN_IF_ERROR(CheckShape(body));
  try {
    return Json::parse(body);
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("body is not JSON: ", e.what()));
  }
}

// Reads fields of one object into plain values; the first problem is kept and the rest then does nothing.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  const Status& status() const { return status_; }
  void Fail(Status status) { status_.Update(status); }

  // The field, unless it is absent or null.
  const Json* Find(std::string_view field) const {
    const auto it = object_.find(std::string(field));
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  void Read(std::string_view field, bool* out) {
    const Json* value = Find(field);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(WrongType(field, *value, "true or false"));
    *out = value->get<bool>();
  }

  void Read(std::string_view field, std::string* out) {
    const Json* value = Find(field);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(WrongType(field, *value, "a string"));
    *out = value->get<std::string>();
  }

  void Read(std::string_view field, float* out) {
    const Json* value = Find(field);
    if (value == nullptr) return;
    if (!value->is_number()) return Fail(WrongType(field, *value, "a number"));
    const double number = value->get<double>();
    if (!std::isfinite(number) || std::abs(number) > std::numeric_limits<float>::max()) {
      return Fail(
          FieldError(field, absl::StrCat(Absl(field), " is ", Show(*value), ", beyond what a number here can be")));
    }
    *out = static_cast<float>(number);
  }

  // `out` may be an int or an optional of one.
  template <typename T>
  void ReadInt(std::string_view field, int64_t low, int64_t high, T* out) {
    if (const Json* value = Find(field)) {
      int64_t number = 0;
      Status status = ToInt(field, *value, low, high, &number);
      if (!status.ok()) return Fail(std::move(status));
      *out = static_cast<int>(number);
    }
  }

  static Status ToInt(std::string_view field, const Json& value, int64_t low, int64_t high, int64_t* out) {
    if (!value.is_number_integer()) return WrongType(field, value, "an integer");
    const bool beyond = value.is_number_unsigned() &&
                        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (beyond || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      return FieldError(field, absl::StrCat(Absl(field), " is ", Show(value), ", must be from ", low, " to ", high));
    }
    *out = value.get<int64_t>();
    return absl::OkStatus();
  }

 private:
  const Json& object_;
  Status status_;
};

Status ReadIds(std::string_view field, const Json& array, int vocab_size, std::vector<TokenId>* out) {
  out->reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    int64_t id = 0;
    // The element's own name is made only for an error: prompts are long.
    if (!Reader::ToInt(field, array[i], 0, vocab_size - 1, &id).ok()) {
      Status status = Reader::ToInt(absl::StrCat(Absl(field), "[", i, "]"), array[i], 0, vocab_size - 1, &id);
      return FieldError(field, std::string(status.message()));
    }
    out->push_back(static_cast<TokenId>(id));
  }
  return absl::OkStatus();
}

Status CheckRefused(const Json& body) {
  for (const std::string_view field : kKvFields) {
    if (body.contains(std::string(field))) {
      return FieldError(field,
                        absl::StrCat(Absl(field), " is not taken from clients: KV transfer is between the workers"));
    }
  }
  const auto says_no = [](const Json& v) {
    return v.is_null() || v == false || (v.is_structured() && v.empty()) ||
           (v.is_string() && v.get_ref<const std::string&>().empty());
  };
  for (const Refused& refused : kRefused) {
    const auto it = body.find(std::string(refused.field));
    if (it == body.end() || says_no(*it)) continue;
    return FieldError(refused.field, absl::StrCat(Absl(refused.field), " is ", Show(*it), ": ", Absl(refused.why)));
  }
  return absl::OkStatus();
}

void ReadResponseFormat(Reader& reader) {
  const Json* format = reader.Find("response_format");
  if (format == nullptr) return;
  if (!format->is_object()) return reader.Fail(WrongType("response_format", *format, "an object"));
  const Json type = format->value("type", Json());
  if (type != "text") {
    reader.Fail(FieldError("response_format",
                           absl::StrCat("response_format.type is ", Show(type), ", only \"text\" is supported")));
  }
}

void ReadStop(Reader& reader, SamplingParams& sampling) {
  const Json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    sampling.stop_strings.push_back(stop->get<std::string>());
    return;
  }
  if (!stop->is_array()) return reader.Fail(WrongType("stop", *stop, "a string or an array of strings"));
  if (stop->size() > SamplingParams::kMaxStops) {
    return reader.Fail(FieldError("stop", absl::StrCat("stop has ", stop->size(), " strings, at most ",
                                                       SamplingParams::kMaxStops, " are allowed")));
  }
  for (const Json& s : *stop) {
    if (!s.is_string()) return reader.Fail(WrongType("stop", s, "a string or an array of strings"));
    sampling.stop_strings.push_back(s.get<std::string>());
  }
}

void ReadStopTokenIds(Reader& reader, int vocab_size, SamplingParams& sampling) {
  const Json* ids = reader.Find("stop_token_ids");
  if (ids == nullptr) return;
  if (!ids->is_array()) return reader.Fail(WrongType("stop_token_ids", *ids, "an array of integers"));
  reader.Fail(ReadIds("stop_token_ids", *ids, vocab_size, &sampling.stop_token_ids));
}

void ReadLogitBias(Reader& reader, int vocab_size, SamplingParams& sampling) {
  const Json* bias = reader.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return reader.Fail(WrongType("logit_bias", *bias, "an object from token id to number"));
  if (bias->size() > SamplingParams::kMaxLogitBias) {
    return reader.Fail(FieldError("logit_bias", absl::StrCat("logit_bias has ", bias->size(), " entries, at most ",
                                                             SamplingParams::kMaxLogitBias, " are allowed")));
  }
  for (const auto& [key, value] : bias->items()) {
    LogitBias entry;
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, entry.token);
    if (error != std::errc() || stop != end || entry.token < 0 || entry.token >= vocab_size) {
      return reader.Fail(FieldError("logit_bias", absl::StrCat("logit_bias has the key ", Show(Json(key)),
                                                               ", must be a token id from 0 to ", vocab_size - 1)));
    }
    if (!value.is_number()) return reader.Fail(WrongType("logit_bias", value, "an object from token id to number"));
    entry.bias = static_cast<float>(value.get<double>());
    sampling.logit_bias.push_back(entry);
  }
}

void ReadLogprobs(Reader& reader, OpenAiApi api, SamplingParams& sampling) {
  if (api == OpenAiApi::kChat) {
    reader.Read("logprobs", &sampling.logprobs);
    reader.ReadInt("top_logprobs", 0, SamplingParams::kMaxTopLogprobs, &sampling.top_logprobs);
    return;
  }
  std::optional<int> top;
  reader.ReadInt("logprobs", 0, SamplingParams::kMaxTopLogprobs, &top);
  sampling.logprobs = top.has_value();
  sampling.top_logprobs = top.value_or(0);
}

void ReadPolicy(Reader& reader, OpenAiRequest& out) {
  const Json* value = reader.Find("cache_policy");
  if (value == nullptr) return;
  StatusOr<CachePolicySpec> spec = ReadCachePolicy(*value);
  if (!spec.ok()) return reader.Fail(FieldError("cache_policy", std::string(spec.status().message())));
  out.cache_policy = *spec;
}

void ReadSampling(Reader& reader, OpenAiApi api, int vocab_size, OpenAiRequest& out) {
  SamplingParams& s = out.sampling;
  reader.Read("temperature", &s.temperature);
  reader.ReadInt("top_k", -1, std::numeric_limits<int>::max(), &s.top_k);
  // vLLM's spelling of "all"; and keeping more than there are is keeping all.
  if (s.top_k < 0 || s.top_k > vocab_size) s.top_k = 0;
  reader.Read("top_p", &s.top_p);
  reader.Read("min_p", &s.min_p);
  reader.Read("repetition_penalty", &s.repetition_penalty);
  reader.Read("presence_penalty", &s.presence_penalty);
  reader.Read("frequency_penalty", &s.frequency_penalty);
  reader.ReadInt("n", 1, SamplingParams::kMaxChoices, &s.n);
  std::optional<int> best_of;
  reader.ReadInt("best_of", 1, SamplingParams::kMaxChoices, &best_of);
  if (best_of.has_value() && *best_of != s.n) {
    reader.Fail(FieldError("best_of", absl::StrCat("best_of is ", *best_of, ", must equal n, which is ", s.n)));
  }
  reader.ReadInt("max_tokens", 1, SamplingParams::kMaxTokens, &out.max_tokens);
  if (api == OpenAiApi::kChat) {
    reader.ReadInt("max_completion_tokens", 1, SamplingParams::kMaxTokens, &out.max_tokens);
  }
  reader.ReadInt("min_tokens", 0, SamplingParams::kMaxTokens, &s.min_tokens);
  reader.Read("ignore_eos", &s.ignore_eos);
  if (const Json* seed = reader.Find("seed")) {
    if (!seed->is_number_integer()) return reader.Fail(WrongType("seed", *seed, "an integer"));
    out.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  ReadStop(reader, s);
  ReadStopTokenIds(reader, vocab_size, s);
  ReadPolicy(reader, out);
  ReadLogitBias(reader, vocab_size, s);
  ReadLogprobs(reader, api, s);
}

void ReadStreamOptions(Reader& reader, OpenAiRequest& out) {
  reader.Read("stream", &out.stream);
  const Json* options = reader.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return reader.Fail(WrongType("stream_options", *options, "an object"));
  if (!out.stream) {
    return reader.Fail(FieldError("stream_options", "stream_options is given but stream is false"));
  }
  Reader inner(*options);
  inner.Read("include_usage", &out.include_usage);
  reader.Fail(inner.status());
}

Status ReadPrompt(const Json* prompt, int vocab_size, OpenAiRequest& out) {
  constexpr std::string_view kWanted = "a string or an array of token ids";
  if (prompt == nullptr) return FieldError("prompt", "prompt is missing");
  // An array of one prompt is that prompt.
  if (prompt->is_array() && !prompt->empty() && (prompt->front().is_string() || prompt->front().is_array())) {
    if (prompt->size() != 1) {
      return FieldError("prompt", absl::StrCat("prompt holds ", prompt->size(), " prompts, must be 1 a request"));
    }
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    out.prompt_text = prompt->get<std::string>();
    return absl::OkStatus();
  }
  if (!prompt->is_array()) return WrongType("prompt", *prompt, kWanted);
  if (prompt->empty()) return FieldError("prompt", "prompt has 0 tokens, must have at least 1");
  out.prompt_is_ids = true;
  return ReadIds("prompt", *prompt, vocab_size, &out.prompt_ids);
}

// Joins text parts into one string, in place.
Status FlattenContent(const std::string& field, Json& content) {
  if (content.is_string() || content.is_null()) return absl::OkStatus();
  if (!content.is_array()) return WrongType(field, content, "a string or an array of text parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    const Json& part = content[i];
    if (!part.is_object()) return WrongType(name, part, "an object");
    const Json type = part.value("type", Json());
    if (type != "text") {
      return FieldError(name + ".type", absl::StrCat(name, ".type is ", Show(type), ", only \"text\" is supported"));
    }
    const Json value = part.value("text", Json());
    if (!value.is_string()) return WrongType(name + ".text", value, "a string");
    if (i > 0) text += '\n';
    text += value.get_ref<const std::string&>();
  }
  content = std::move(text);
  return absl::OkStatus();
}

// Templates walk the arguments of a call as an object; clients send them back as the JSON text that they got.
Status ParseToolCalls(const std::string& field, Json& calls) {
  if (calls.is_null()) return absl::OkStatus();
  if (!calls.is_array()) return WrongType(field, calls, "an array");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    if (!calls[i].is_object()) return WrongType(name, calls[i], "an object");
    const auto function = calls[i].find("function");
    if (function == calls[i].end() || !function->is_object()) {
      return FieldError(name, absl::StrCat(name, ".function is missing or not an object"));
    }
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    StatusOr<Json> parsed = ParseJson(arguments->get_ref<const std::string&>());
    if (!parsed.ok()) {
      return FieldError(name, absl::StrCat(name, ".function.arguments: ", parsed.status().message()));
    }
    *arguments = *std::move(parsed);
  }
  return absl::OkStatus();
}

Status ReadMessages(const Json* messages, OpenAiRequest& out) {
  if (messages == nullptr) return FieldError("messages", "messages is missing");
  if (!messages->is_array()) return WrongType("messages", *messages, "an array");
  if (messages->empty()) return FieldError("messages", "messages has 0 entries, must have at least 1");
  out.messages = *messages;
  for (size_t i = 0; i < out.messages.size(); ++i) {
    Json& message = out.messages[i];
    const std::string name = absl::StrCat("messages[", i, "]");
    if (!message.is_object()) return WrongType(name, message, "an object");
    const Json role = message.value("role", Json());
    if (!role.is_string()) return WrongType(name + ".role", role, "a string");
    const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if (!message.contains("content") && !has_calls) {
      return FieldError(name + ".content", absl::StrCat(name, ".content is missing"));
    }
    SLUICE_RETURN_IF_ERROR(FlattenContent(name + ".content", message["content"]));
    if (has_calls) SLUICE_RETURN_IF_ERROR(ParseToolCalls(name + ".tool_calls", message["tool_calls"]));
  }
  return absl::OkStatus();
}

void ReadTools(Reader& reader, OpenAiRequest& out) {
  const Json* choice = reader.Find("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    return reader.Fail(FieldError(
        "tool_choice", absl::StrCat("tool_choice is ", Show(*choice), ", only \"auto\" and \"none\" are supported")));
  }
  const Json* tools = reader.Find("tools");
  if (tools != nullptr && !tools->is_array()) return reader.Fail(WrongType("tools", *tools, "an array"));
  if (tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none")) out.tools = *tools;
  const Json* variables = reader.Find("chat_template_kwargs");
  if (variables == nullptr) return;
  if (!variables->is_object()) return reader.Fail(WrongType("chat_template_kwargs", *variables, "an object"));
  out.template_variables = *variables;
}

// The sampling check reports in one sentence; its first word is the field where the body has it.
Status WithParam(const Status& status, const Json& body) {
  if (status.ok()) return status;
  const std::string message(status.message());
  const std::string first = message.substr(0, message.find(' '));
  return body.contains(first) ? FieldError(first, message) : status;
}

}  // namespace

Status FieldError(std::string_view field, std::string_view message) {
  return WithErrorParam(absl::InvalidArgumentError(Absl(message)), field);
}

Status WithErrorParam(Status status, std::string_view field) {
  status.SetPayload(kParamPayload, absl::Cord(Absl(field)));
  return status;
}

std::string ErrorParam(const Status& status) {
  const auto payload = status.GetPayload(kParamPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

StatusOr<OpenAiRequest> ParseOpenAiRequest(OpenAiApi api, std::string_view body, int vocab_size) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseJson(body));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("body is ", Absl(TypeName(json)), ", must be an object"));
  }
  SLUICE_RETURN_IF_ERROR(CheckRefused(json));
  OpenAiRequest out;
  out.api = api;
  Reader reader(json);
  reader.Read("model", &out.model);
  ReadSampling(reader, api, vocab_size, out);
  ReadStreamOptions(reader, out);
  ReadResponseFormat(reader);
  if (api == OpenAiApi::kCompletions) reader.Read("parse_special", &out.parse_special);
  reader.Read("return_token_ids", &out.return_token_ids);
  reader.Read("return_timings", &out.return_timings);
  if (api == OpenAiApi::kChat) ReadTools(reader, out);
  SLUICE_RETURN_IF_ERROR(reader.status());
  SLUICE_RETURN_IF_ERROR(api == OpenAiApi::kChat ? ReadMessages(reader.Find("messages"), out)
                                                 : ReadPrompt(reader.Find("prompt"), vocab_size, out));
  // min_tokens is compared with what will be max_tokens where the client named one.
  SamplingParams checked = out.sampling;
  checked.max_tokens = out.max_tokens.value_or(std::max(SamplingParams().max_tokens, checked.min_tokens));
  SLUICE_RETURN_IF_ERROR(WithParam(checked.Validate(vocab_size), json));
  return out;
}

}  // namespace sluice
