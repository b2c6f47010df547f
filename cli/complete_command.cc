// `sluice complete`: one prompt, one answer, in this process or from a service.
#include "CLI/CLI.hpp"
#include "cli/completer_flags.h"
#include "cli/subcommand.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

ordered_json AnswerJson(const CompletionAnswer& answer) {
  ordered_json json = {{"text", answer.text},
                       {"ids", answer.ids},
                       {"finish_reason", answer.finish_reason},
                       {"logprobs", nullptr},
                       {"usage", {{"prompt_tokens", answer.prompt_tokens}, {"completion_tokens", answer.ids.size()}}},
                       {"timings", ordered_json::object()}};
  if (!answer.logprobs.empty()) json["logprobs"] = ordered_json::array();
  for (size_t i = 0; i < answer.logprobs.size(); ++i) {
    ordered_json token;
    if (i < answer.ids.size()) token["id"] = answer.ids[i];
    token["logprob"] = answer.logprobs[i].logprob;
    token["top"] = ordered_json::array();
    for (const auto& [text, logprob] : answer.logprobs[i].top) {
      token["top"].push_back({{"text", text}, {"logprob", logprob}});
    }
    json["logprobs"].push_back(std::move(token));
  }
  if (answer.cache) {
    json["cache"] = {{"policy", answer.cache->policy},
                     {"kept_tokens", answer.cache->kept_tokens},
                     {"dropped_tokens", answer.cache->dropped_tokens}};
  }
  for (const auto& [name, value] : answer.timings) json["timings"][name] = value;
  return json;
}

class CompleteCommand final : public Subcommand {
 public:
  explicit CompleteCommand(CLI::App* app) : Subcommand(app) {
    app->add_option("--prompt", prompt_, "Text to continue")->type_name("TEXT");
    AddTokenIds(*app, "--prompt-ids", &prompt_ids_, "Token ids to continue");
    app->add_flag("--chat", chat_, "Take the prompt as a user's message and apply the model's chat template");
    app->add_option("--system", system_, "System message of a --chat")->type_name("TEXT");
    app->add_option("--logprobs", logprobs_, "Log-probability of each token, with this many alternatives")
        ->type_name("N")
        ->check(CLI::Range(0, SamplingParams::kMaxTopLogprobs).description(""));
    app->add_flag("--json", json_, "Print ids, text, log-probabilities and timings as JSON");
    AddCompleterFlags(*app, &completer_);
    app->add_option_function<std::string>(
           "--prefill", [this](const std::string& way) { completer_.streamed = way == "streamed"; },
           "dense: the whole prompt, then pruned once; streamed: through the bounded cache, token by token")
        ->default_str("dense")
        ->check(CLI::IsMember({"dense", "streamed"}).description(""))
        ->group("Cache")
        ->excludes("--url");
    sampling_.max_tokens = 128;
    sampling_.temperature = 0;
    AddSamplingFlags(*app, &sampling_);
  }

  Status Check() const override {
    SLUICE_RETURN_IF_ERROR(sluice::Check(completer_));
    if (prompt_.empty() == prompt_ids_.empty()) {
      return absl::InvalidArgumentError("give either --prompt or --prompt-ids");
    }
    if (chat_ && prompt_.empty()) return absl::InvalidArgumentError("--chat needs a --prompt");
    if (!system_.empty() && !chat_) return absl::InvalidArgumentError("--system needs --chat");
    return absl::OkStatus();
  }

  Status Run(Streams streams) override {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Completer> completer, MakeCompleter(completer_));
    const bool stream = !json_;
    SLUICE_ASSIGN_OR_RETURN(const CompletionAnswer answer, completer->Complete(Request(), [&](std::string_view text) {
      if (stream) streams.out << text << std::flush;
    }));
    if (json_) {
      streams.out << AnswerJson(answer).dump(-1, ' ', false, ordered_json::error_handler_t::replace) << "\n";
    } else if (answer.text.empty()) {
      for (const TokenId id : answer.ids) streams.out << id << " ";
      streams.out << "\n";
    } else {
      streams.out << "\n";
    }
    return absl::OkStatus();
  }

 private:
  CompletionRequest Request() const {
    CompletionRequest request;
    request.sampling = sampling_;
    request.sampling.logprobs = logprobs_ >= 0;
    request.sampling.top_logprobs = std::max(logprobs_, 0);
    if (chat_) {
      request.messages = ordered_json::array();
      if (!system_.empty()) request.messages.push_back({{"role", "system"}, {"content", system_}});
      request.messages.push_back({{"role", "user"}, {"content", prompt_}});
    } else {
      request.text = prompt_;
      request.ids = prompt_ids_;
    }
    return request;
  }

  std::string prompt_;
  std::vector<TokenId> prompt_ids_;
  bool chat_ = false;
  std::string system_;
  int logprobs_ = -1;
  bool json_ = false;
  CompleterFlags completer_;
  SamplingParams sampling_;
};

}  // namespace

std::unique_ptr<Subcommand> MakeCompleteCommand(CLI::App& parent) {
  return std::make_unique<CompleteCommand>(
      parent.add_subcommand("complete", "Continue one prompt, in this process or through a service"));
}

}  // namespace sluice
