#include "gateway/admission_queue.h"

namespace sluice {

AdmissionQueue::AdmissionQueue(const GatewayOptions* options, EventLoop* loop, Fleet* fleet)
    : options_(options), loop_(loop), fleet_(fleet) {
  fleet_->SetOnReport([this] { Admit(); });
}

AdmissionQueue::~AdmissionQueue() { fleet_->SetOnReport(nullptr); }

void AdmissionQueue::Enter(Turn turn, Waiter* waiter) {
  waiters_.emplace(turn, waiter);
  Admit();
}

void AdmissionQueue::Leave(Turn turn) { waiters_.erase(turn); }

void AdmissionQueue::OnPrefillEnded(int prefill) {
  if (!waiters_.empty()) fleet_->Refresh({WorkerRole::kPrefill, prefill});
}

// Later: whoever has dropped it is in the middle of something.
void AdmissionQueue::OnPromiseDropped() {
  if (!waiters_.empty()) soon_ = loop_->After(absl::ZeroDuration(), [this] { Admit(); });
}

// Looks at waiters in order for as long as there is a prefill that could begin soon. The first is always looked at: he
// may find that there is nobody left for him.
void AdmissionQueue::Admit() {
  if (admitting_ || waiters_.empty()) return;
  admitting_ = true;
  FleetSnapshot fleet = fleet_->snapshot();
  Turn next = 0;
  do {
    const auto it = waiters_.lower_bound(next);
    if (it == waiters_.end()) break;
    const auto [turn, waiter] = *it;
    next = turn + 1;
    const StatusOr<Route> route = waiter->Choose(&fleet);
    if (!route.ok()) {
      waiters_.erase(it);
      waiter->OnNoWorker(route.status());
      continue;
    }
    const RequestShape shape = waiter->Shape();
    WorkerSnapshot& prefill = fleet.prefill[route->prefill];
    WorkerSnapshot& decode = fleet.decode[route->decode];
    if (BeginsSoon(fleet, route->prefill)) {
      waiters_.erase(it);
      waiter->OnAdmitted(fleet, *route);
      decode.pages_free -= PagesNeeded(shape, decode.page_tokens, decode.policy);
    }
    // Admitted or not, it is before all others there.
    prefill.queued_prompt_tokens += shape.prompt_tokens - prefill.cached_tokens;
  } while (AnybodyBeginsSoon(fleet));
  admitting_ = false;
}

bool AdmissionQueue::BeginsSoon(const FleetSnapshot& fleet, int prefill) const {
  return PredictQueueSeconds(fleet, prefill) * 1e3 <= static_cast<double>(options_->prefill_queue_max_ms);
}

// Also where there is nobody at all: then no waiter is to wait.
bool AdmissionQueue::AnybodyBeginsSoon(const FleetSnapshot& fleet) const {
  bool nobody = true;
  for (int i = 0; i < static_cast<int>(fleet.prefill.size()); ++i) {
    if (!fleet.prefill[i].unusable_because.empty()) continue;
    if (BeginsSoon(fleet, i)) return true;
    nobody = false;
  }
  return nobody;
}

}  // namespace sluice
