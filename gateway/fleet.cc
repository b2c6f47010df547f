#include "gateway/fleet.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/proto/convert.h"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {

// One of a later version may know policies that we do not.
CachePolicySpec PolicyOf(const proto::WorkerStatus& status) {
  return status.has_policy() ? FromProto(status.policy()).value_or(CachePolicySpec()) : CachePolicySpec();
}

constexpr absl::Duration kProbationMin = absl::Milliseconds(500);
constexpr absl::Duration kProbationMax = absl::Seconds(30);

absl::string_view RoleName(WorkerRole role) { return role == WorkerRole::kPrefill ? "prefill" : "decode"; }

}  // namespace

struct Fleet::Worker {
  WorkerRef ref;
  std::string address;
  std::string unusable_because = "has not answered yet";
  bool alive = false;
  absl::Time seen;  // last answer
  proto::WorkerStatus status;
  PromisedLoad promised;  // pages of decode, tokens of prefill

  int failures = 0;  // in a row
  absl::Time suspect_until;

  Workers::CallHandle call;
  bool ask_again = false;  // what is under way may have been answered before it was wanted
  std::unique_ptr<EventLoop::Timer> next;
};

class Fleet::Listener final : public Fleet::Subscription {
 public:
  Listener(std::list<Listener*>* list, OnLost call) : call(std::move(call)), list_(list) { list_->push_back(this); }
  ~Listener() override { list_->remove(this); }
  const OnLost call;

 private:
  std::list<Listener*>* list_;
};

Fleet::Fleet(const GatewayOptions* options, EventLoop* loop, Workers* workers, FleetModel model)
    : options_(options), loop_(loop), calls_(workers), model_(std::move(model)) {
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
    auto& list = role == WorkerRole::kPrefill ? prefill_ : decode_;
    for (int i = 0; i < workers->count(role); ++i) {
      list.push_back(std::make_unique<Worker>());
      list.back()->ref = {role, i};
      list.back()->address = workers->address({role, i});
      Ask(*list.back());
    }
  }
}

Fleet::~Fleet() = default;

Fleet::Worker& Fleet::at(WorkerRef ref) { return *(ref.role == WorkerRole::kPrefill ? prefill_ : decode_)[ref.index]; }

void Fleet::Ask(Worker& worker) {
  worker.next.reset();
  worker.ask_again = false;
  worker.promised.OnAsk();
  worker.call =
      calls_->GetStatus(worker.ref, absl::Milliseconds(options_->status_timeout_ms),
                        [this, &worker](const StatusOr<proto::WorkerStatus>& answer) { OnAnswer(worker, answer); });
}

void Fleet::OnAnswer(Worker& worker, const StatusOr<proto::WorkerStatus>& answer) {
  worker.call.reset();
  const bool again = answer.ok() && worker.ask_again;
  worker.next = loop_->After(again ? absl::ZeroDuration() : absl::Milliseconds(options_->status_period_ms),
                             [this, &worker] { Ask(worker); });
  answer.ok() ? OnStatus(worker, *answer) : OnSilence(worker, answer.status());
  if (on_report_) on_report_();
}

void Fleet::OnStatus(Worker& worker, const proto::WorkerStatus& status) {
  if (worker.alive && status.epoch() != worker.status.epoch()) {
    Lose(worker,
         absl::UnavailableError(absl::StrCat(RoleName(worker.ref.role), " ", worker.address, " has restarted")));
  }
  if (!worker.alive) worker.failures = 0, worker.suspect_until = absl::Time();
  const bool came = !worker.alive;
  // The rate is measured anew with every step, and the queue only grows while nothing is computed.
  if (!came && worker.ref.role == WorkerRole::kPrefill &&
      (status.prefill_tokens_per_s() != worker.status.prefill_tokens_per_s() ||
       status.queued_prompt_tokens() < worker.status.queued_prompt_tokens())) {
    prefill_progress_ = loop_->Now();
  }
  worker.alive = true;
  worker.seen = loop_->Now();
  worker.status = status;
  worker.promised.OnReport();
  std::string why = WhyUnusable(worker, status);
  if (!came && why == worker.unusable_because) return;
  worker.unusable_because = std::move(why);
  spdlog::info("{} {}: {}", std::string(RoleName(worker.ref.role)), worker.address,
               worker.unusable_because.empty() ? "takes work" : worker.unusable_because);
  if (on_change_) on_change_();
}

void Fleet::OnSilence(Worker& worker, const Status& error) {
  const absl::Duration silent = loop_->Now() - worker.seen;
  const bool lost = silent >= absl::Milliseconds(options_->worker_lost_ms);
  // A refused connection says more than a late answer: nobody is there.
  if (worker.alive && !lost && !absl::IsUnavailable(error)) return;
  std::string why = absl::StrCat("does not answer (", error.message(), ")");
  const bool changed = worker.unusable_because != why;
  worker.unusable_because = std::move(why);
  if (worker.alive && lost) {
    Lose(worker, absl::UnavailableError(absl::StrCat(RoleName(worker.ref.role), " ", worker.address,
                                                     " has not answered for ", absl::FormatDuration(silent))));
  }
  if (changed && on_change_) on_change_();
}

void Fleet::Lose(Worker& worker, const Status& why) {
  spdlog::warn("{}", std::string(why.message()));
  worker.alive = false;
  worker.promised.OnLost();
  // Listeners may end each other's subscriptions while they are called.
  const std::list<Listener*> listeners = listeners_;
  for (Listener* listener : listeners) {
    if (std::find(listeners_.begin(), listeners_.end(), listener) != listeners_.end()) listener->call(worker.ref, why);
  }
}

std::string Fleet::WhyUnusable(const Worker& worker, const proto::WorkerStatus& status) const {
  if (status.role() != RoleName(worker.ref.role)) {
    return absl::StrCat("is a ", status.role(), " worker, listed as ", RoleName(worker.ref.role));
  }
  if (status.model_hash() != model_.model_hash) {
    return absl::StrCat("serves the model with hash ", status.model_hash(), ", the gateway's is ", model_.model_hash);
  }
  if (status.vocab_size() != static_cast<uint32_t>(model_.vocab_size)) {
    return absl::StrCat("has a vocabulary of ", status.vocab_size(), " tokens, the gateway's has ", model_.vocab_size);
  }
  if (status.draining()) return "is draining";
  return status.not_ready_reason();
}

WorkerSnapshot Fleet::Snapshot(const Worker& worker) const {
  const proto::WorkerStatus& status = worker.status;
  WorkerSnapshot out;
  out.address = worker.address;
  out.unusable_because = worker.unusable_because;
  out.suspect = loop_->Now() < worker.suspect_until;
  out.epoch = status.epoch();
  out.model_hash = status.model_hash();
  out.layout = status.layout();
  out.wire_codecs = {status.wire_codecs().begin(), status.wire_codecs().end()};
  out.page_tokens = static_cast<int>(status.page_tokens());
  out.pages_total = status.kv_pages_total();
  out.pages_free = int64_t{status.kv_pages_free()} + status.kv_pages_cached();
  out.pages_cached = status.kv_pages_cached();
  out.local_prefill_tokens_max = status.local_prefill_tokens_max();
  out.policy = PolicyOf(status);
  out.queued_prompt_tokens = static_cast<int64_t>(status.queued_prompt_tokens());
  out.prefill_tokens_per_s = status.prefill_tokens_per_s();
  out.transfer_tokens_per_s = status.transfer_tokens_per_s();
  if (worker.ref.role == WorkerRole::kDecode) out.pages_free -= worker.promised.total();
  if (worker.ref.role == WorkerRole::kPrefill) out.queued_prompt_tokens += worker.promised.total();
  return out;
}

FleetSnapshot Fleet::snapshot() const {
  FleetSnapshot out;
  for (const auto& worker : prefill_) out.prefill.push_back(Snapshot(*worker));
  for (const auto& worker : decode_) out.decode.push_back(Snapshot(*worker));
  return out;
}

std::string Fleet::NotReadyReason() const {
  const StatusOr<Route> route = Pick(snapshot(), {.prompt_tokens = 1, .max_tokens = 1, .n = 1}, {});
  return route.ok() ? "" : std::string(route.status().message());
}

int64_t Fleet::context_tokens_max() const {
  int64_t tokens = model_.context_tokens_max;
  for (const auto* list : {&prefill_, &decode_}) {
    for (const auto& worker : *list) {
      const int64_t theirs = worker->status.context_tokens_max();
      if (worker->unusable_because.empty() && theirs > 0) tokens = std::min(tokens, theirs);
    }
  }
  return tokens;
}

std::vector<CachePolicySpec> Fleet::decode_policies() const {
  std::vector<CachePolicySpec> policies;
  for (const auto& worker : decode_) {
    const CachePolicySpec policy = PolicyOf(worker->status);
    const bool known = std::find(policies.begin(), policies.end(), policy) != policies.end();
    if (worker->unusable_because.empty() && !known) policies.push_back(policy);
  }
  return policies;
}

void Fleet::PromisePages(int index, const RequestShape& shape) {
  Worker& decode = *decode_[index];
  decode.promised.Add(PagesNeeded(shape, decode.status.page_tokens(), PolicyOf(decode.status)));
}

std::unique_ptr<PromisedLoad::Hold> Fleet::PromisePrefill(int prefill, int64_t tokens) {
  return std::make_unique<PromisedLoad::Hold>(&prefill_[prefill]->promised, tokens);
}

void Fleet::Refresh(WorkerRef ref) {
  Worker& worker = at(ref);
  if (worker.call == nullptr) return Ask(worker);
  worker.ask_again = true;
}

void Fleet::ReportFailure(WorkerRef ref) {
  Worker& worker = at(ref);
  const int doublings = std::min(worker.failures++, 6);
  worker.suspect_until = loop_->Now() + std::min(kProbationMax, kProbationMin * (1 << doublings));
  if (worker.call == nullptr) Ask(worker);
}

void Fleet::ReportSuccess(WorkerRef ref) {
  at(ref).failures = 0;
  at(ref).suspect_until = absl::Time();
}

std::unique_ptr<Fleet::Subscription> Fleet::Listen(OnLost listener) {
  return std::make_unique<Listener>(&listeners_, std::move(listener));
}

}  // namespace sluice
