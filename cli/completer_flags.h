// The flags that say who answers, shared by `complete` and `chat`.
#pragma once

#include <memory>
#include <string>

#include "CLI/App.hpp"
#include "absl/time/time.h"
#include "cli/completer.h"
#include "cli/flags.h"

namespace sluice {

struct CompleterFlags {
  LocalModelFlags local;
  bool streamed = false;  // --prefill streamed
  std::string url;
  absl::Duration timeout = absl::Minutes(10);
};

void AddCompleterFlags(CLI::App& app, CompleterFlags* flags);

// InvalidArgument unless exactly one of --model and --url is given.
Status Check(const CompleterFlags& flags);

// Loads the model, or makes a client of the service.
StatusOr<std::unique_ptr<Completer>> MakeCompleter(const CompleterFlags& flags);

}  // namespace sluice
