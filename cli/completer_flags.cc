#include "cli/completer_flags.h"

#include <thread>

#include "cli/http_client.h"
#include "cli/local_model.h"
#include "cli/remote_model.h"

namespace sluice {

void AddCompleterFlags(CLI::App& app, CompleterFlags* flags) {
  AddLocalModelFlags(app, &flags->local);
  CLI::Option* url =
      app.add_option("--url", flags->url, "Ask the service at this address instead, e.g. http://127.0.0.1:8080")
          ->type_name("URL")
          ->group("Service");
  // A service has settled these for itself.
  for (const char* of_this_process : {"--threads", "--exact", "--kv-store", "--cache-policy", "--cache-budget",
                                      "--sinks", "--window", "--score-decay", "--score-by-age"}) {
    app.get_option(of_this_process)->excludes(url);
  }
  AddDuration(app, "--timeout", &flags->timeout, "Give up on a service that is silent for so long");
  app.get_option("--timeout")->group("Service");
}

Status Check(const CompleterFlags& flags) {
  if (flags.local.model.empty() == flags.url.empty()) {
    return absl::InvalidArgumentError("give either --model PATH or --url URL");
  }
  if (flags.streamed && flags.local.policy.kind == CachePolicyKind::kFull) {
    return absl::InvalidArgumentError("--prefill streamed needs a --cache-policy other than full");
  }
  if (flags.streamed && flags.local.policy.kind == CachePolicyKind::kSnapKv) {
    return absl::InvalidArgumentError("--prefill streamed: snapkv chooses when the whole prompt is there");
  }
  return Validate(flags.local.policy);
}

StatusOr<std::unique_ptr<Completer>> MakeCompleter(const CompleterFlags& flags) {
  if (!flags.url.empty()) {
    SLUICE_ASSIGN_OR_RETURN(HttpClient client, HttpClient::Create(flags.url, flags.timeout));
    return std::make_unique<RemoteModel>(std::move(client));
  }
  LocalModelOptions options;
  options.path = flags.local.model;
  options.threads = flags.local.threads > 0 ? flags.local.threads
                                            : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  options.exact = flags.local.exact;
  options.kv_store = flags.local.kv_store;
  options.policy = flags.local.policy;
  options.streamed = flags.streamed;
  if (options.kv_store != "auto") SLUICE_RETURN_IF_ERROR(ParseKvCodec(options.kv_store).status());
  return LocalModel::Open(options);
}

}  // namespace sluice
