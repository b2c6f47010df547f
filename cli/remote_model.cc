#include "cli/remote_model.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace sluice {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json RequestBody(const CompletionRequest& request) {
  const SamplingParams& sampling = request.sampling;
  const bool chat = !request.messages.empty();
  ordered_json body;
  if (chat) {
    body["messages"] = request.messages;
  } else if (!request.ids.empty()) {
    body["prompt"] = request.ids;
  } else {
    body["prompt"] = request.text;
  }
  body["max_tokens"] = sampling.max_tokens;
  body["temperature"] = sampling.temperature;
  body["top_k"] = sampling.top_k;
  body["top_p"] = sampling.top_p;
  body["min_p"] = sampling.min_p;
  body["repetition_penalty"] = sampling.repetition_penalty;
  body["presence_penalty"] = sampling.presence_penalty;
  body["frequency_penalty"] = sampling.frequency_penalty;
  body["seed"] = sampling.seed;
  body["min_tokens"] = sampling.min_tokens;
  body["ignore_eos"] = sampling.ignore_eos;
  if (!sampling.stop_strings.empty()) body["stop"] = sampling.stop_strings;
  if (!sampling.stop_token_ids.empty()) body["stop_token_ids"] = sampling.stop_token_ids;
  if (sampling.logprobs && chat) {
    body["logprobs"] = true;
    body["top_logprobs"] = sampling.top_logprobs;
  } else if (sampling.logprobs) {
    body["logprobs"] = sampling.top_logprobs;
  }
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["return_token_ids"] = true;
  body["return_timings"] = true;
  return body;
}

// Collects the chunks of one stream. What a chunk lacks is no error: servers leave out what has its default.
class StreamReader {
 public:
  StreamReader(CompletionAnswer* answer, const std::function<void(std::string_view)>& on_text)
      : answer_(*answer), on_text_(on_text) {}

  Status Take(std::string_view data) {
    const json chunk = json::parse(data.begin(), data.end(), nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object()) return absl::DataLossError("the service sent an event that is not a JSON object");
    try {
      if (chunk.contains("error")) {
        return absl::UnavailableError(chunk["error"].value("message", "the service ended the stream with an error"));
      }
      if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) {
        answer_.prompt_tokens = usage->value("prompt_tokens", 0);
      }
      if (const auto timings = chunk.find("timings"); timings != chunk.end() && timings->is_object()) {
        for (const auto& [name, value] : timings->items()) {
          if (value.is_number()) answer_.timings.emplace_back(name, value.get<double>());
        }
      }
      if (const auto choices = chunk.find("choices"); choices != chunk.end() && !choices->empty()) {
        TakeChoice(choices->at(0));
      }
    } catch (const json::exception& error) {
      return absl::DataLossError(absl::StrCat("the service sent an event of an unknown form: ", error.what()));
    }
    return absl::OkStatus();
  }

 private:
  void TakeChoice(const json& choice) {
    if (const auto ids = choice.find("token_ids"); ids != choice.end() && ids->is_array()) {
      for (const json& id : *ids) answer_.ids.push_back(id.get<TokenId>());
    }
    if (const auto finish = choice.find("finish_reason"); finish != choice.end() && finish->is_string()) {
      answer_.finish_reason = finish->get<std::string>();
    }
    if (const auto logprobs = choice.find("logprobs"); logprobs != choice.end() && logprobs->is_object()) {
      TakeLogprobs(*logprobs);
    }
    std::string text;
    if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
      if (const auto content = delta->find("content"); content != delta->end() && content->is_string()) {
        text = content->get<std::string>();
      }
    } else {
      text = choice.value("text", "");
    }
    answer_.text += text;
    if (!text.empty()) on_text_(text);
  }

  // Completions have parallel lists, chats a list of objects.
  void TakeLogprobs(const json& logprobs) {
    if (const auto content = logprobs.find("content"); content != logprobs.end() && content->is_array()) {
      for (const json& token : *content) {
        CompletionAnswer::TokenLogprobs one;
        one.logprob = token.at("logprob").get<float>();
        for (const json& top : token.value("top_logprobs", json::array())) {
          one.top.emplace_back(top.at("token").get<std::string>(), top.at("logprob").get<float>());
        }
        answer_.logprobs.push_back(std::move(one));
      }
      return;
    }
    const json& values = logprobs.at("token_logprobs");
    const auto tops = logprobs.find("top_logprobs");
    for (size_t i = 0; i < values.size(); ++i) {
      CompletionAnswer::TokenLogprobs one;
      one.logprob = values.at(i).get<float>();
      if (tops != logprobs.end() && tops->is_array() && i < tops->size() && tops->at(i).is_object()) {
        for (const auto& [text, logprob] : tops->at(i).items()) one.top.emplace_back(text, logprob.get<float>());
        std::sort(one.top.begin(), one.top.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
      }
      answer_.logprobs.push_back(std::move(one));
    }
  }

  CompletionAnswer& answer_;
  const std::function<void(std::string_view)>& on_text_;
};

}  // namespace

StatusOr<CompletionAnswer> RemoteModel::Complete(const CompletionRequest& request,
                                                 const std::function<void(std::string_view)>& on_text) {
  CompletionAnswer answer;
  const absl::Time start = absl::Now();
  absl::Time first_text = absl::InfiniteFuture();
  const std::function<void(std::string_view)> note_first = [&](std::string_view text) {
    first_text = std::min(first_text, absl::Now());
    on_text(text);
  };
  StreamReader reader(&answer, note_first);
  const char* path = request.messages.empty() ? "/v1/completions" : "/v1/chat/completions";
  // What a terminal or a file holds need not be UTF-8, JSON must be.
  const std::string body = RequestBody(request).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  SLUICE_RETURN_IF_ERROR(client_.PostStream(path, body, [&](std::string_view data) { return reader.Take(data); }));
  const absl::Time end = absl::Now();
  first_text = std::min(first_text, end);
  const double decode_s = absl::ToDoubleSeconds(end - first_text);
  answer.timings.emplace_back("client_first_text_ms", absl::ToDoubleMilliseconds(first_text - start));
  answer.timings.emplace_back("client_total_ms", absl::ToDoubleMilliseconds(end - start));
  answer.timings.emplace_back("decode_tokens_per_s",
                              decode_s > 0 ? static_cast<double>(answer.ids.size()) / decode_s : 0);
  return answer;
}

}  // namespace sluice
