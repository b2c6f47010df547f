#include "gateway/openai_response.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Every byte but UTF-8 continuations begins a character, so characters may be counted in pieces.
int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

bool IsUtf8(std::string_view bytes) {
  try {
    Json(std::string(bytes)).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string_view Bytes(const AnswerHead& head, TokenId id) {
  if (head.tokenizer == nullptr || id < 0 || id >= head.tokenizer->vocab_size()) return {};
  return head.tokenizer->Bytes(id, /*show_special=*/true);
}

// A token that is a part of a character has no text: it is spelled as OpenAI spells such tokens, and so differs from
// every other token.
std::string Spelling(std::string_view bytes) {
  if (IsUtf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
  return out;
}

Json ByteArray(std::string_view bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

using Tokens = google::protobuf::RepeatedPtrField<proto::GeneratedToken>;

Json ChatLogprobs(const AnswerHead& head, const Tokens& tokens) {
  Json content = Json::array();
  for (const proto::GeneratedToken& token : tokens) {
    const auto entry = [&head](TokenId id, float logprob) {
      const std::string_view bytes = Bytes(head, id);
      return Json{{"token", Spelling(bytes)}, {"logprob", logprob}, {"bytes", ByteArray(bytes)}};
    };
    Json one = entry(token.token(), token.logprob());
    one["top_logprobs"] = Json::array();
    for (const proto::TokenLogprob& top : token.top()) one["top_logprobs"].push_back(entry(top.token(), top.logprob()));
    content.push_back(std::move(one));
  }
  return Json{{"content", std::move(content)}, {"refusal", nullptr}};
}

// `characters`: of the choice's text before these tokens; moved past them.
Json CompletionLogprobs(const AnswerHead& head, const Tokens& tokens, int64_t* characters) {
  Json out{{"tokens", Json::array()},
           {"token_logprobs", Json::array()},
           {"top_logprobs", Json::array()},
           {"text_offset", Json::array()}};
  for (const proto::GeneratedToken& token : tokens) {
    const std::string_view bytes = Bytes(head, token.token());
    out["tokens"].push_back(Spelling(bytes));
    out["token_logprobs"].push_back(token.logprob());
    out["text_offset"].push_back(*characters);
    *characters += CountCharacters(bytes);
    Json top = Json::object();
    for (const proto::TokenLogprob& t : token.top()) top[Spelling(Bytes(head, t.token()))] = t.logprob();
    out["top_logprobs"].push_back(std::move(top));
  }
  return out;
}

Json Logprobs(const AnswerHead& head, const Tokens& tokens, int64_t* characters) {
  if (!head.logprobs) return nullptr;
  return head.api == OpenAiApi::kChat ? ChatLogprobs(head, tokens) : CompletionLogprobs(head, tokens, characters);
}

Json FinishReason(proto::FinishReason finish) {
  switch (finish) {
    case proto::FINISH_STOP:
      return "stop";
    case proto::FINISH_LENGTH:
      return "length";
    default:
      return nullptr;
  }
}

Json UsageObject(const proto::Usage& usage) {
  return Json{{"prompt_tokens", usage.prompt_tokens()},
              {"completion_tokens", usage.completion_tokens()},
              {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}}};
}

Json TimingsObject(const AnswerTimings& t) {
  return Json{{"queued_ms", t.queued_ms},
              {"prefill_ms", t.prefill_ms},
              {"transfer_ms", t.transfer_ms},
              {"first_token_ms", t.first_token_ms},
              {"total_ms", t.total_ms},
              {"kv_tokens_sent", t.kv_tokens_sent},
              {"kv_tokens_skipped", t.kv_tokens_skipped},
              {"kv_bytes_wire", t.kv_bytes_wire}};
}

Json Text(const Tokens& tokens) {
  std::string text;
  for (const proto::GeneratedToken& token : tokens) text += token.text();
  return text;
}

Json TokenIds(const Tokens& tokens) {
  Json ids = Json::array();
  for (const proto::GeneratedToken& token : tokens) ids.push_back(token.token());
  return ids;
}

Json Head(const AnswerHead& head, bool chunk) {
  const bool chat = head.api == OpenAiApi::kChat;
  const char* object = !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return Json{{"id", head.id()}, {"object", object}, {"created", head.created_unix_s}, {"model", head.model}};
}

// A chunk with one choice, or none where `choice` is null.
std::string Chunk(const AnswerHead& head, Json choice) {
  Json chunk = Head(head, /*chunk=*/true);
  chunk["choices"] = choice.is_null() ? Json::array() : Json::array({std::move(choice)});
  if (head.include_usage) chunk["usage"] = nullptr;
  return Dump(chunk);
}

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json ErrorCode(int http_status) {
  switch (http_status) {
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
      return "request_timeout";
    case 413:
      return "request_too_large";
    case 429:
      return "no_room";
    case 431:
      return "header_too_large";
    case 503:
      return "unavailable";
    case 504:
      return "deadline_exceeded";
    case 500:
      return "internal";
    default:
      return nullptr;
  }
}

}  // namespace

std::string AnswerHead::id() const {
  return absl::StrFormat("%s-%016x", api == OpenAiApi::kChat ? "chatcmpl" : "cmpl", request_id);
}

std::string AnswerBody(const AnswerHead& head, const std::vector<AnswerChoice>& choices, const proto::Usage& usage,
                       const std::vector<TokenId>& prompt_ids, const AnswerTimings* timings) {
  Json body = Head(head, /*chunk=*/false);
  body["choices"] = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Tokens tokens(choices[i].tokens.begin(), choices[i].tokens.end());
    int64_t characters = 0;
    Json choice{{"index", i}};
    if (head.api == OpenAiApi::kChat) {
      choice["message"] = {{"role", "assistant"}, {"content", Text(tokens)}, {"refusal", nullptr}};
    } else {
      choice["text"] = Text(tokens);
    }
    choice["logprobs"] = Logprobs(head, tokens, &characters);
    choice["finish_reason"] = FinishReason(choices[i].finish);
    if (head.return_token_ids) choice["token_ids"] = TokenIds(tokens);
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = UsageObject(usage);
  if (head.return_token_ids) body["prompt_token_ids"] = prompt_ids;
  if (timings != nullptr) body["timings"] = TimingsObject(*timings);
  return Dump(body);
}

ChunkWriter::ChunkWriter(AnswerHead head, int choices) : head_(std::move(head)), characters_(choices, 0) {}

std::vector<std::string> ChunkWriter::Opening() const {
  std::vector<std::string> out;
  if (head_.api != OpenAiApi::kChat) return out;
  for (size_t i = 0; i < characters_.size(); ++i) {
    out.push_back(Chunk(head_, Json{{"index", i},
                                    {"delta", {{"role", "assistant"}, {"content", ""}}},
                                    {"logprobs", nullptr},
                                    {"finish_reason", nullptr}}));
  }
  return out;
}

std::vector<std::string> ChunkWriter::Chunks(const proto::GenerateEvent& event) {
  std::vector<std::string> out;
  if (event.choice() >= characters_.size()) return out;
  const Json text = Text(event.tokens());
  const bool says_something = !text.get_ref<const std::string&>().empty() ||
                              ((head_.logprobs || head_.return_token_ids) && !event.tokens().empty());
  const bool chat = head_.api == OpenAiApi::kChat;
  const bool ends = event.finish() != proto::FINISH_NONE;
  const auto add = [&](bool with_tokens, bool with_finish) {
    Json choice{{"index", event.choice()}};
    if (chat) {
      choice["delta"] = with_tokens ? Json{{"content", text}} : Json::object();
    } else {
      choice["text"] = with_tokens ? text : Json("");
    }
    choice["logprobs"] = with_tokens ? Logprobs(head_, event.tokens(), &characters_[event.choice()]) : Json(nullptr);
    choice["finish_reason"] = with_finish ? FinishReason(event.finish()) : Json(nullptr);
    if (with_tokens && head_.return_token_ids) choice["token_ids"] = TokenIds(event.tokens());
    out.push_back(Chunk(head_, std::move(choice)));
  };
  // Chats end with a chunk of their own whose delta is empty; completions say it with the last text.
  if (chat) {
    if (says_something) add(true, false);
    if (ends) add(false, true);
  } else if (says_something || ends) {
    add(says_something, ends);
  }
  return out;
}

std::vector<std::string> ChunkWriter::Closing(const proto::Usage& usage, const AnswerTimings* timings) const {
  if (!head_.include_usage && timings == nullptr) return {};
  Json chunk = Head(head_, /*chunk=*/true);
  chunk["choices"] = Json::array();
  if (head_.include_usage) chunk["usage"] = UsageObject(usage);
  if (timings != nullptr) chunk["timings"] = TimingsObject(*timings);
  return {Dump(chunk)};
}

std::string ErrorBody(int http_status, const Status& status) {
  const std::string param = ErrorParam(status);
  return Dump(Json{{"error",
                    {{"message", std::string(status.message())},
                     {"type", ErrorType(http_status)},
                     {"param", param.empty() ? Json(nullptr) : Json(param)},
                     {"code", ErrorCode(http_status)}}}});
}

std::string ModelListBody(std::string_view model, int64_t created_unix_s, int64_t context_tokens_max) {
  return Dump(Json{{"object", "list"},
                   {"data", Json::array({{{"id", model},
                                          {"object", "model"},
                                          {"created", created_unix_s},
                                          {"owned_by", "sluice"},
                                          {"max_model_len", context_tokens_max}}})}});
}

}  // namespace sluice
