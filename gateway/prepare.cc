#include "gateway/prepare.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "gateway/router.h"

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

// A noncharacter: no text needs it, so what a client writes of it is replaced by U+FFFD first.
constexpr std::string_view kMark = "\xEF\xB7\x90";  // U+FDD0
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

Status WithField(const Status& status, std::string_view field) {
  return absl::IsInvalidArgument(status) ? FieldError(field, std::string(status.message())) : status;
}

size_t FirstCharacterBytes(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (text[bytes] & 0xC0) == 0x80) ++bytes;
  return bytes;
}

// Puts the mark behind the first character of every special token that `text` spells. One pass over the text builds the
// result: a client may send nothing but special tokens.
std::string MarkSpecials(std::string text, const std::vector<std::string>& specials) {
  text = absl::StrReplaceAll(text, {{absl::string_view(kMark.data(), kMark.size()),
                                     absl::string_view(kReplacement.data(), kReplacement.size())}});
  std::vector<size_t> marks;
  for (const std::string& special : specials) {
    if (special.empty()) continue;
    for (size_t at = text.find(special); at != std::string::npos; at = text.find(special, at + 1)) {
      marks.push_back(at + FirstCharacterBytes(special));
    }
  }
  if (marks.empty()) return text;
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  std::string marked;
  marked.reserve(text.size() + marks.size() * kMark.size());
  size_t done = 0;
  for (const size_t mark : marks) {
    marked.append(text, done, mark - done);
    marked += kMark;
    done = mark;
  }
  marked.append(text, done);
  return marked;
}

Json Marked(const Json& value, const std::vector<std::string>& specials) {
  if (value.is_string()) return MarkSpecials(value.get<std::string>(), specials);
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& element : value) out.push_back(Marked(element, specials));
    return out;
  }
  if (value.is_object()) {
    Json out = Json::object();
    for (const auto& [key, element] : value.items()) out[MarkSpecials(key, specials)] = Marked(element, specials);
    return out;
  }
  return value;
}

// `text` without marks: specials are parsed but where a mark was.
std::vector<TokenId> EncodeMarked(const Tokenizer& tokenizer, const std::vector<std::string>& specials,
                                  std::string_view text) {
  std::vector<TokenId> ids;
  const auto append = [&](std::string_view piece, Tokenizer::SpecialTokens mode) {
    if (piece.empty()) return;
    const std::vector<TokenId> more = tokenizer.Encode(piece, mode);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  size_t special_bytes_max = 0;
  for (const std::string& special : specials) special_bytes_max = std::max(special_bytes_max, special.size());
  size_t begin = 0;
  for (size_t mark = text.find(kMark); mark != std::string_view::npos; mark = text.find(kMark, begin)) {
    size_t start = mark;
    while (start > begin && (text[--start] & 0xC0) == 0x80) {
    }
    append(text.substr(begin, start - begin), Tokenizer::SpecialTokens::kParse);
    std::string rest(text.substr(start, mark - start));
    rest += text.substr(mark + kMark.size(), special_bytes_max);
    size_t length = mark - start;
    for (const std::string& special : specials) {
      if (rest.compare(0, special.size(), special) == 0) length = std::max(length, special.size());
    }
    append(std::string_view(rest).substr(0, length), Tokenizer::SpecialTokens::kAsText);
    begin = start + kMark.size() + length;
  }
  append(text.substr(begin), Tokenizer::SpecialTokens::kParse);
  return ids;
}

// A text that cannot fit is refused before time is spent on its tokens.
Status CheckBytes(const ServedModel& model, const PrepareLimits& limits, std::string_view field,
                  std::string_view text) {
  if (model.token_bytes_max == 0) return absl::OkStatus();
  const int64_t least = static_cast<int64_t>(text.size() / model.token_bytes_max);
  if (least < limits.context_tokens_max) return absl::OkStatus();
  return FieldError(field, absl::StrCat("the prompt has more than ", least, " tokens, must be at most ",
                                        limits.context_tokens_max - 1));
}

StatusOr<std::vector<TokenId>> EncodeChat(const ServedModel& model, const PrepareLimits& limits,
                                          const OpenAiRequest& request) {
  if (model.chat_template == nullptr) return FieldError("messages", model.no_chat_template);
  ChatTemplate::Input input;
  input.messages = Marked(request.messages, model.special_texts);
  input.variables = Marked(request.template_variables, model.special_texts);
  input.bos_token = model.bos_text;
  input.eos_token = model.eos_text;
  const StatusOr<std::string> plain = model.chat_template->Render(input);
  if (request.tools.is_null()) {
    if (!plain.ok()) return WithField(plain.status(), "messages");
    SLUICE_RETURN_IF_ERROR(CheckBytes(model, limits, "messages", *plain));
    return EncodeMarked(*model.tokenizer, model.special_texts, *plain);
  }
  input.tools = Marked(request.tools, model.special_texts);
  SLUICE_ASSIGN_OR_RETURN(const std::string with_tools, model.chat_template->Render(input));
  // A template that does not mention tools would drop them without a word.
  if (plain.ok() && *plain == with_tools) {
    return FieldError("tools", "tools are given, but the model's chat template has no place for them");
  }
  SLUICE_RETURN_IF_ERROR(CheckBytes(model, limits, "messages", with_tools));
  return EncodeMarked(*model.tokenizer, model.special_texts, with_tools);
}

StatusOr<std::vector<TokenId>> EncodePrompt(const ServedModel& model, const PrepareLimits& limits,
                                            OpenAiRequest& request) {
  if (request.prompt_is_ids) return std::move(request.prompt_ids);
  const bool chat = request.api == OpenAiApi::kChat;
  if (model.tokenizer == nullptr) {
    return FieldError(
        chat ? "messages" : "prompt",
        absl::StrCat("only token ids are taken, the model's tokenizer is not supported: ", model.no_tokenizer));
  }
  if (chat) return EncodeChat(model, limits, request);
  SLUICE_RETURN_IF_ERROR(CheckBytes(model, limits, "prompt", request.prompt_text));
  std::vector<TokenId> ids;
  if (model.tokenizer->add_bos() && model.tokenizer->bos_id() >= 0) ids.push_back(model.tokenizer->bos_id());
  const std::vector<TokenId> text =
      model.tokenizer->Encode(request.prompt_text, request.parse_special ? Tokenizer::SpecialTokens::kParse
                                                                         : Tokenizer::SpecialTokens::kAsText);
  ids.insert(ids.end(), text.begin(), text.end());
  return ids;
}

Status CheckLength(const PrepareLimits& limits, std::string_view field, int64_t prompt_tokens) {
  if (prompt_tokens == 0) return FieldError(field, "the prompt has 0 tokens, must have at least 1");
  if (prompt_tokens + 1 > limits.context_tokens_max) {
    return FieldError(field, absl::StrCat("the prompt has ", prompt_tokens, " tokens, must be at most ",
                                          limits.context_tokens_max - 1, ": the model's context is ",
                                          limits.context_tokens_max, " and holds at least one generated token"));
  }
  if (limits.prompt_tokens_max > 0 && prompt_tokens > limits.prompt_tokens_max) {
    return FieldError(field, absl::StrCat("the prompt has ", prompt_tokens, " tokens, must be at most ",
                                          limits.prompt_tokens_max, " here"));
  }
  return absl::OkStatus();
}

// How many of `wanted` tokens may be generated behind the prompt with any decode that may get the request.
int64_t Generated(const PrepareLimits& limits, const OpenAiRequest& request, int64_t prompt_tokens, int64_t wanted) {
  const RequestShape shape = {.prompt_tokens = prompt_tokens, .policy = request.cache_policy};
  std::vector<CachePolicySpec> policies = limits.decode_policies;
  if (policies.empty()) policies.emplace_back();  // nobody is there who would say otherwise
  for (const CachePolicySpec& of_decode : policies) {
    wanted = PolicyWith(shape, of_decode).Generated(prompt_tokens, wanted, limits.context_tokens_max);
  }
  return wanted;
}

SamplingParams FinishSampling(const PrepareLimits& limits, const OpenAiRequest& request, int64_t prompt_tokens) {
  SamplingParams sampling = request.sampling;
  const int by_default = request.api == OpenAiApi::kChat ? limits.default_max_tokens : SamplingParams().max_tokens;
  const int64_t wanted = request.max_tokens.value_or(std::max(by_default, sampling.min_tokens));
  sampling.max_tokens = static_cast<int>(
      Generated(limits, request, prompt_tokens, std::min<int64_t>(wanted, SamplingParams::kMaxTokens)));
  sampling.min_tokens = std::min(sampling.min_tokens, sampling.max_tokens);
  sampling.seed = request.seed.value_or(limits.random_seed);
  return sampling;
}

}  // namespace

// Life of a request, step 1: parse, bound, validate, template and tokenise, once.
StatusOr<PreparedRequest> PrepareRequest(const ServedModel& model, const PrepareLimits& limits, OpenAiApi api,
                                         std::string_view body) {
  PreparedRequest out;
  SLUICE_ASSIGN_OR_RETURN(out.openai, ParseOpenAiRequest(api, body, model.vocab_size));
  OpenAiRequest& request = out.openai;
  if (!request.model.empty() && request.model != model.name) {
    return WithErrorParam(
        absl::NotFoundError(absl::StrCat("model is ", request.model, ", this server has ", model.name)), "model");
  }
  SLUICE_ASSIGN_OR_RETURN(out.prompt_ids, EncodePrompt(model, limits, request));
  const int64_t prompt_tokens = static_cast<int64_t>(out.prompt_ids.size());
  SLUICE_RETURN_IF_ERROR(CheckLength(limits, api == OpenAiApi::kChat ? "messages" : "prompt", prompt_tokens));
  out.sampling = FinishSampling(limits, request, prompt_tokens);
  request.messages = nullptr;
  request.tools = nullptr;
  request.prompt_text.clear();
  return out;
}

}  // namespace sluice
