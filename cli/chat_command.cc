// `sluice chat`: a conversation in a terminal, or one turn for each line of standard input.
#include <unistd.h>

#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "cli/completer_flags.h"
#include "cli/subcommand.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

constexpr char kCommands[] = "/new starts over, /exit or end of input leaves";

double TimingOf(const CompletionAnswer& answer, std::string_view name) {
  for (const auto& [timing, value] : answer.timings) {
    if (timing == name) return value;
  }
  return 0;
}

class ChatCommand final : public Subcommand {
 public:
  explicit ChatCommand(CLI::App* app) : Subcommand(app) {
    app->add_option("--system", system_, "System message")->type_name("TEXT");
    AddCompleterFlags(*app, &completer_flags_);
    sampling_.max_tokens = 1024;
    sampling_.temperature = 0.2f;
    sampling_.top_p = 0.9f;
    AddSamplingFlags(*app, &sampling_);
  }

  Status Check() const override { return sluice::Check(completer_flags_); }

  Status Run(Streams streams) override {
    const bool interactive = &streams.in == &std::cin && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    SLUICE_ASSIGN_OR_RETURN(completer_, MakeCompleter(completer_flags_));
    if (interactive) streams.err << kCommands << "\n";
    StartOver();
    std::string line;
    for (;;) {
      if (interactive) streams.err << "\n> " << std::flush;
      if (!std::getline(streams.in, line)) break;
      const absl::string_view words = absl::StripAsciiWhitespace(line);
      if (words == "/exit") break;
      if (words == "/new") StartOver();
      if (words.empty() || words == "/new") continue;
      const Status status = Turn(std::string(words), streams);
      if (status.ok()) continue;
      // In a terminal the person can go on; a script must notice.
      if (!interactive) return status;
      streams.err << "sluice: " << status.message() << "\n";
    }
    return absl::OkStatus();
  }

 private:
  void StartOver() {
    messages_ = ordered_json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  Status Turn(const std::string& text, Streams streams) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    CompletionRequest request;
    request.messages = messages_;
    request.sampling = sampling_;
    const StatusOr<CompletionAnswer> answer =
        completer_->Complete(request, [&](std::string_view part) { streams.out << part << std::flush; });
    if (!answer.ok()) {
      messages_.erase(messages_.size() - 1);
      return answer.status();
    }
    streams.out << "\n" << std::flush;
    messages_.push_back({{"role", "assistant"}, {"content", answer->text}});
    streams.err << absl::StreamFormat("[%d tokens, %.1f tokens/s%s", answer->ids.size(),
                                      TimingOf(*answer, "decode_tokens_per_s"),
                                      answer->finish_reason == "length" ? ", cut off" : "");
    if (answer->cache) {
      streams.err << absl::StreamFormat("; %d tokens kept, %d dropped", answer->cache->kept_tokens,
                                        answer->cache->dropped_tokens);
    }
    streams.err << "]\n" << std::flush;
    return absl::OkStatus();
  }

  std::string system_;
  CompleterFlags completer_flags_;
  SamplingParams sampling_;
  std::unique_ptr<Completer> completer_;
  ordered_json messages_;
};

}  // namespace

std::unique_ptr<Subcommand> MakeChatCommand(CLI::App& parent) {
  return std::make_unique<ChatCommand>(parent.add_subcommand("chat",
                                                             "Talk to a model, in this process or through a "
                                                             "service"));
}

}  // namespace sluice
