// What the public port offers: the OpenAI paths, health, readiness and metrics. Joins HTTP exchanges to request flows.
// Lives on the loop's thread; bodies are prepared off it.
#pragma once

#include <memory>

#include "common/rng.h"
#include "gateway/http_server.h"
#include "gateway/openai_request.h"
#include "gateway/prepare.h"
#include "gateway/readiness.h"
#include "gateway/request_flow.h"
#include "gateway/served_model.h"

namespace sluice {

class OpenAiService final : public HttpHandler {
 public:
  // All outlive it. `random_key` keys request ids and the seeds of requests that bring none.
  OpenAiService(const FlowEnvironment& environment, const ServedModel* model, Readiness* readiness,
                uint64_t random_key);

  std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply* reply) override;
  HttpResponse Refuse(int status, std::string_view why) override;

  // For the gauges that /metrics shows; set once the server exists.
  void SetServer(const HttpServer* server) { server_ = server; }
  // New requests are refused from here on.
  void Drain() { draining_ = true; }

 private:
  class Completion;

  std::unique_ptr<HttpExchange> Complete(OpenAiApi api, HttpRequest request, HttpReply* reply);
  HttpResponse Error(std::string_view path, const Status& status) const;
  void Ready(HttpReply* reply);
  void MetricsText(HttpReply* reply);

  const FlowEnvironment env_;
  const ServedModel* const model_;
  Readiness* const readiness_;
  const HttpServer* server_ = nullptr;
  const int64_t created_unix_s_;
  Rng random_;
  int active_ = 0;  // completions
  bool draining_ = false;
};

}  // namespace sluice
