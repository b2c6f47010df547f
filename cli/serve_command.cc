// `sluice serve`: the flags of a whole service on this machine.
#include "CLI/CLI.hpp"
#include "cli/flags.h"
#include "cli/serve.h"
#include "cli/subcommand.h"

namespace sluice {
namespace {

class ServeCommand final : public Subcommand {
 public:
  explicit ServeCommand(CLI::App* app) : Subcommand(app) {
    app->add_option("--model", options_.model, "GGUF file or Hugging Face folder")->type_name("PATH")->required();
    app->add_option("--host", options_.host, "Where the HTTP endpoint listens")->capture_default_str();
    app->add_option("--port", options_.port, "Its port; 0 picks one")->capture_default_str();
    app->add_option("--prefill", options_.prefill_processes, "Prefill processes")->capture_default_str();
    app->add_option("--decode", options_.decode_processes, "Decode processes")->capture_default_str();
    AddWorkerFlag("--threads", "N", "Compute threads of each");
    AddWorkerFlag("--kv-memory", "BYTES", "Memory for KV of each");
    AddWorkerFlag("--page-tokens", "N", "Tokens of a KV page");
    AddWorkerFlag("--prefix-cache-pages", "N", "KV pages that finished requests may keep; -1: all that are free");
    AddWorkerFlag("--kv-store", "auto|CODEC", "How KV is kept");
    app->add_flag_callback(
           "--exact", [this] { options_.worker_flags.push_back("--exact"); },
           "Compute in f32 with dequantised weights: slower, for comparisons")
        ->group("Prefill and decode processes");
    AddPassed("--kv-wire", "auto|store|CODEC", "How KV travels from prefill to decode", &options_.prefill_flags);
    AddPassed("--send", "layer|chunk|prompt", "When KV leaves prefill", &options_.prefill_flags);
    AddCachePolicyFlags(*app, &policy_);
    for (const auto& [flag, type, help] :
         {std::tuple("--request-policies", "POLICY,",
                     "Policies that a request may name beside that, as long as it needs no more room; full,sink-window "
                     "unless told"),
          std::tuple("--kv-park", "BYTES",
                     "Room beside --kv-memory where the youngest requests wait when pages run out; none unless told"),
          std::tuple("--kv-park-folder", "FOLDER", "That room is a file in this folder, not memory")}) {
      AddPassed(flag, type, help, &options_.decode_flags);
      app_->get_option(flag)->group("Cache");
    }
    AddPassed("--model-name", "NAME", "What clients call the model", &options_.gateway_flags);
    AddPassed("--default-max-tokens", "N", "Of chats that do not say", &options_.gateway_flags);
    AddPassed("--request-timeout", "DURATION", "Of a whole request; then 504", &options_.gateway_flags);
    AddPassed("--queue-timeout", "DURATION", "Waiting for room in a KV cache; then 429", &options_.gateway_flags);
    AddPassed("--prefill-queue-max", "DURATION",
              "Predicted queue of a prefill process up to which KV memory is reserved; beyond it requests wait",
              &options_.gateway_flags);
  }

  Status Check() const override {
    SLUICE_RETURN_IF_ERROR(sluice::Validate(policy_));
    return options_.Validate();
  }
  Status Run(Streams) override {
    // As they were given: a share of the prompt is no number to be spelled again.
    for (const char* flag : kCachePolicyFlags) {
      const CLI::Option* option = app_->get_option(flag);
      if (option->count() > 0) options_.decode_flags.push_back(absl::StrCat(flag, "=", option->results().back()));
    }
    return RunServe(options_);
  }

 private:
  // A flag that the processes themselves read and judge.
  void AddPassed(const std::string& flag, const std::string& type, const std::string& help,
                 std::vector<std::string>* flags) {
    app_->add_option_function<std::string>(
            flag,
            [flag, flags](const std::string& value) {
              flags->push_back(flag);
              flags->push_back(value);
            },
            help)
        ->type_name(type);
  }
  void AddWorkerFlag(const std::string& flag, const std::string& type, const std::string& help) {
    AddPassed(flag, type, help, &options_.worker_flags);
    app_->get_option(flag)->group("Prefill and decode processes");
  }

  ServeOptions options_;
  CachePolicySpec policy_;
};

}  // namespace

std::unique_ptr<Subcommand> MakeServeCommand(CLI::App& parent) {
  return std::make_unique<ServeCommand>(
      parent.add_subcommand("serve", "One gateway, N prefill and M decode processes on this machine"));
}

}  // namespace sluice
