// A service behind a URL, asked through its OpenAI API.
#pragma once

#include "cli/completer.h"
#include "cli/http_client.h"

namespace sluice {

class RemoteModel final : public Completer {
 public:
  explicit RemoteModel(HttpClient client) : client_(std::move(client)) {}

  StatusOr<CompletionAnswer> Complete(const CompletionRequest& request,
                                      const std::function<void(std::string_view)>& on_text) override;

 private:
  HttpClient client_;
};

}  // namespace sluice
