#include "gateway/openai_service.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"
#include "gateway/openai_response.h"
#include "nlohmann/json.hpp"

namespace sluice {

namespace {

constexpr size_t kUnsentMax = 256 << 10;  // of a stream: beyond it decode is held back until the client has read

HttpResponse ErrorResponse(int http_status, const Status& status, absl::Duration retry_after) {
  HttpResponse response{.status = http_status, .body = ErrorBody(http_status, status)};
  if (http_status == 429 || http_status == 503) {
    const int64_t seconds = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(retry_after))));
    response.headers.emplace_back("Retry-After", std::to_string(seconds));
  }
  return response;
}

}  // namespace

// One request to /v1/completions or /v1/chat/completions, from its body to its last byte.
class OpenAiService::Completion final : public HttpExchange, public FlowClient {
 public:
  Completion(OpenAiService* service, std::string path, HttpReply* reply)
      : service_(service),
        path_(std::move(path)),
        reply_(reply),
        arrived_(service->env_.loop->Now()),
        id_(service->random_.Bits()) {
    ++service_->active_;
  }
  ~Completion() override { --service_->active_; }

  void Start(OpenAiApi api, HttpRequest request) {
    // Shared with the thread that prepares: the client may leave, and this object with it, before that is done.
    struct Work {
      HttpRequest request;
      StatusOr<PreparedRequest> prepared = absl::InternalError("not prepared");
    };
    auto work = std::make_shared<Work>();
    work->request = std::move(request);
    const PrepareLimits limits{.context_tokens_max = service_->env_.fleet->context_tokens_max(),
                               .decode_policies = service_->env_.fleet->decode_policies(),
                               .prompt_tokens_max = service_->env_.options->prompt_tokens_max,
                               .default_max_tokens = service_->env_.options->default_max_tokens,
                               .random_seed = service_->random_.Bits()};
    service_->env_.loop->Offload(
        [work, limits, api, model = service_->model_] {
          work->prepared = PrepareRequest(*model, limits, api, work->request.body);
          work->request = HttpRequest();
        },
        [work, weak = std::weak_ptr<Completion*>(self_)] {
          const auto self = weak.lock();
          if (self != nullptr) (*self)->OnPrepared(std::move(work->prepared));
        });
  }

  void OnDrained() override {
    if (flow_.has_value()) flow_->Resume();
  }

  bool OnEvent(const proto::GenerateEvent& event) override {
    service_->readiness_->NoteTokens();
    if (first_token_ == absl::InfinitePast()) {
      first_token_ = service_->env_.loop->Now();
      service_->readiness_->NoteServed();
    }
    if (!writer_.has_value()) {
      Collect(event);
      return true;
    }
    if (!streaming_) {
      streaming_ = true;
      reply_->StartEvents(Headers());
      for (const std::string& chunk : writer_->Opening()) reply_->SendEvent(chunk);
    }
    for (const std::string& chunk : writer_->Chunks(event)) reply_->SendEvent(chunk);
    return reply_->unsent_bytes() < kUnsentMax;
  }

  void OnRestart() override {
    choices_.assign(choices_.size(), {});
    first_token_ = absl::InfinitePast();
  }

  void OnDone(const proto::GenerateEvent& last) override {
    const proto::Usage& usage = last.usage();
    CountTokens(usage);
    const AnswerTimings timings = Timings(last);
    const AnswerTimings* shown = return_timings_ ? &timings : nullptr;
    if (!writer_.has_value()) {
      return Send({.body = AnswerBody(head_, choices_, usage, prompt_ids_, shown), .headers = Headers()});
    }
    for (const std::string& chunk : writer_->Closing(usage, shown)) reply_->SendEvent(chunk);
    reply_->SendEvent(kStreamEnd);
    reply_->EndEvents();
    service_->env_.metrics->CountAnswer(path_, 200);
  }

  void OnFailed(const Status& status, absl::Duration retry_after) override {
    const int http_status = HttpStatus(status.code());
    if (!streaming_) return Send(ErrorResponse(http_status, status, retry_after));
    // The status line is gone: the error is an event of its own, and no end marker follows it.
    service_->env_.metrics->broken_streams.Increment();
    reply_->SendEvent(ErrorBody(http_status, status));
    reply_->EndEvents();
    service_->env_.metrics->CountAnswer(path_, 200);
  }

  bool committed() const override { return streaming_; }

 private:
  HttpHeaders Headers() const { return {{"X-Request-Id", head_.id()}}; }

  void Send(HttpResponse response) {
    service_->env_.metrics->CountAnswer(path_, response.status);
    reply_->Send(std::move(response));
  }

  void OnPrepared(StatusOr<PreparedRequest> prepared) {
    if (!prepared.ok()) {
      return Send(ErrorResponse(HttpStatus(prepared.status().code()), prepared.status(), absl::Seconds(1)));
    }
    const OpenAiRequest& openai = prepared->openai;
    head_ = {.api = openai.api,
             .request_id = id_,
             .created_unix_s = absl::ToUnixSeconds(arrived_),
             .model = service_->model_->name,
             .logprobs = prepared->sampling.logprobs,
             .include_usage = openai.include_usage,
             .return_token_ids = openai.return_token_ids,
             .tokenizer = service_->model_->tokenizer.get()};
    return_timings_ = openai.return_timings;
    choices_.resize(prepared->sampling.n);
    if (openai.stream) writer_.emplace(head_, prepared->sampling.n);
    if (openai.return_token_ids) prompt_ids_ = prepared->prompt_ids;
    const GatewayOptions& options = *service_->env_.options;
    flow_.emplace(service_->env_,
                  FlowRequest{.id = id_,
                              .prompt_ids = std::move(prepared->prompt_ids),
                              .sampling = std::move(prepared->sampling),
                              .policy = openai.cache_policy,
                              .timeout = absl::Milliseconds(options.request_timeout_ms),
                              .room_wait = absl::Milliseconds(options.room_wait_ms)},
                  this);
    flow_->Start();
  }

  void Collect(const proto::GenerateEvent& event) {
    if (event.choice() >= choices_.size()) return;
    AnswerChoice& choice = choices_[event.choice()];
    choice.tokens.insert(choice.tokens.end(), event.tokens().begin(), event.tokens().end());
    if (event.finish() != proto::FINISH_NONE) choice.finish = event.finish();
  }

  void CountTokens(const proto::Usage& usage) {
    GatewayMetrics& metrics = *service_->env_.metrics;
    metrics.prompt_tokens.Increment(usage.prompt_tokens());
    metrics.completion_tokens.Increment(usage.completion_tokens());
    metrics.request_seconds.Observe(absl::ToDoubleSeconds(service_->env_.loop->Now() - arrived_));
    metrics.first_token_seconds.Observe(absl::ToDoubleSeconds(first_token_ - arrived_));
  }

  AnswerTimings Timings(const proto::GenerateEvent& last) const {
    const proto::StageTimes& times = last.times();
    return {.queued_ms = times.queued_us() / 1e3,
            .prefill_ms = times.prefill_us() / 1e3,
            .transfer_ms = times.transfer_us() / 1e3,
            .first_token_ms = absl::ToDoubleMilliseconds(first_token_ - arrived_),
            .total_ms = absl::ToDoubleMilliseconds(service_->env_.loop->Now() - arrived_),
            .kv_tokens_sent = last.kv().tokens_sent(),
            .kv_tokens_skipped = last.kv().tokens_skipped(),
            .kv_bytes_wire = static_cast<int64_t>(last.kv().bytes_wire())};
  }

  OpenAiService* const service_;
  const std::string path_;
  HttpReply* const reply_;
  const absl::Time arrived_;
  const uint64_t id_;
  const std::shared_ptr<Completion*> self_ = std::make_shared<Completion*>(this);  // others hold it weakly

  AnswerHead head_;
  bool return_timings_ = false;
  bool streaming_ = false;
  absl::Time first_token_ = absl::InfinitePast();
  std::vector<TokenId> prompt_ids_;  // where the client wants them back
  std::vector<AnswerChoice> choices_;
  std::optional<ChunkWriter> writer_;  // of streams
  std::optional<RequestFlow> flow_;
};

OpenAiService::OpenAiService(const FlowEnvironment& environment, const ServedModel* model, Readiness* readiness,
                             uint64_t random_key)
    : env_(environment),
      model_(model),
      readiness_(readiness),
      created_unix_s_(absl::ToUnixSeconds(environment.loop->Now())),
      random_(random_key) {}

std::unique_ptr<HttpExchange> OpenAiService::Handle(HttpRequest request, HttpReply* reply) {
  const std::string path = request.path;
  const bool completions = path == "/v1/completions";
  const bool chat = path == "/v1/chat/completions";
  const bool known = path == "/v1/models" || path == "/v1/models/" + model_->name || path == "/health" ||
                     path == "/ready" || path == "/metrics";
  if (!completions && !chat && !known) {
    reply->Send(Error("other", absl::NotFoundError(absl::StrCat("there is no ", path, " here"))));
    return nullptr;
  }
  const bool get = request.method == "GET" || request.method == "HEAD";
  if ((completions || chat) ? request.method != "POST" : !get) {
    const char* allowed = completions || chat ? "POST" : "GET, HEAD";
    HttpResponse response = Refuse(405, absl::StrCat(path, " takes ", allowed, ", the method is ", request.method));
    response.headers.emplace_back("Allow", allowed);
    reply->Send(std::move(response));
    return nullptr;
  }
  if (completions || chat)
    return Complete(chat ? OpenAiApi::kChat : OpenAiApi::kCompletions, std::move(request), reply);
  if (path == "/health") {
    reply->Send({.body = R"({"status":"ok"})"});
  } else if (path == "/ready") {
    Ready(reply);
  } else if (path == "/metrics") {
    MetricsText(reply);
  } else {
    const std::string list = ModelListBody(model_->name, created_unix_s_, env_.fleet->context_tokens_max());
    reply->Send({.body = path == "/v1/models" ? list : nlohmann::ordered_json::parse(list)["data"][0].dump()});
  }
  return nullptr;
}

std::unique_ptr<HttpExchange> OpenAiService::Complete(OpenAiApi api, HttpRequest request, HttpReply* reply) {
  const std::string path = request.path;
  if (draining_) {
    reply->Send(Error(path, absl::UnavailableError("the gateway is shutting down")));
    return nullptr;
  }
  if (active_ >= env_.options->requests_max) {
    reply->Send(Error(path, absl::ResourceExhaustedError(absl::StrCat(active_, " requests are in flight, at most ",
                                                                      env_.options->requests_max))));
    return nullptr;
  }
  auto completion = std::make_unique<Completion>(this, path, reply);
  completion->Start(api, std::move(request));
  return completion;
}

HttpResponse OpenAiService::Refuse(int status, std::string_view why) {
  const Status message = absl::InvalidArgumentError(absl::string_view(why.data(), why.size()));
  env_.metrics->CountAnswer("other", status);
  return ErrorResponse(status, message, absl::Seconds(1));
}

HttpResponse OpenAiService::Error(std::string_view path, const Status& status) const {
  env_.metrics->CountAnswer(path, HttpStatus(status.code()));
  return ErrorResponse(HttpStatus(status.code()), status, absl::Seconds(1));
}

void OpenAiService::Ready(HttpReply* reply) {
  const std::string reason = draining_ ? "the gateway is shutting down" : readiness_->NotReadyReason();
  nlohmann::ordered_json body{{"ready", reason.empty()}};
  if (!reason.empty()) body["reason"] = reason;
  reply->Send({.status = reason.empty() ? 200 : 503,
               .body = body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)});
}

void OpenAiService::MetricsText(HttpReply* reply) {
  GatewayMetrics& metrics = *env_.metrics;
  if (server_ != nullptr) {
    const HttpCounts counts = server_->counts();
    metrics.connections.Set(counts.connections);
    metrics.connections_refused.Increment(static_cast<double>(counts.connections_refused) -
                                          metrics.connections_refused.Value());
    metrics.clients_left.Increment(static_cast<double>(counts.clients_left) - metrics.clients_left.Value());
  }
  metrics.requests_active.Set(active_);
  metrics.ready.Set(readiness_->NotReadyReason().empty() ? 1 : 0);
  const FleetSnapshot fleet = env_.fleet->snapshot();
  for (const auto* workers : {&fleet.prefill, &fleet.decode}) {
    const auto usable = std::count_if(workers->begin(), workers->end(),
                                      [](const WorkerSnapshot& worker) { return worker.unusable_because.empty(); });
    metrics.SetWorkers(workers == &fleet.prefill ? "prefill" : "decode", static_cast<int>(usable),
                       static_cast<int>(workers->size()));
  }
  reply->Send({.body = metrics.metrics().Text(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

}  // namespace sluice
