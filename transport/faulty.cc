#include "transport/faulty.h"

#include <algorithm>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "transport/fault_policy.h"

namespace sluice {

namespace {

// A message in the decorator's memory.
struct Held {
  ConnectionId connection;
  std::string header;
  std::vector<std::byte> payload;
  FaultPlan plan;
  bool stalled = false;  // counted in its flow
};

// What the decorator knows of a connection that is open for its receiver.
struct Flow {
  absl::Time stalled_until = absl::InfinitePast();
  std::multimap<absl::Time, Held> waiting;  // by when they are due, then in the order of their coming
  size_t stalled = 0;                       // messages that wait for the stall's end, or are being offered after it
  Status ended;                             // not OK: the decorator or the receiver has ended it; nothing is offered
};

class FaultyTransport final : public Transport, public Receiver {
 public:
  FaultyTransport(const TransportOptions& options, Receiver* receiver)
      : held_bytes_max_(options.faults.held_bytes_max), receiver_(receiver), dice_(options.faults) {}

  ~FaultyTransport() override {
    owned_.reset();  // closes every connection; what is held goes with them
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  Status Start(TransportFactory real, const TransportOptions& options) {
    SLUICE_ASSIGN_OR_RETURN(owned_, real(options, this));
    real_ = owned_.get();
    thread_ = std::thread([this] { OfferWhatIsDue(); });
    started_.Notify();
    return absl::OkStatus();
  }

  std::string address() const override { return real_->address(); }

  ConnectionId Connect(const std::string& address, std::string hello, absl::Duration timeout,
                       std::function<void(StatusOr<std::string>)> done) override {
    return real_->Connect(address, std::move(hello), timeout,
                          [this, done = std::move(done)](StatusOr<std::string> reply) {
                            absl::MutexLock lock(&calls_);
                            done(std::move(reply));
                          });
  }

  void Send(ConnectionId connection, std::string header, absl::Span<const std::byte> payload,
            std::function<void(Status)> done) override {
    real_->Send(connection, std::move(header), payload, [this, done = std::move(done)](Status status) {
      absl::MutexLock lock(&calls_);
      done(std::move(status));
    });
  }

  void Close(ConnectionId connection) override { real_->Close(connection); }

  TransportCounters counters() const override {
    TransportCounters counters = real_->counters();
    absl::MutexLock lock(&mutex_);
    counters.faults = dice_.counts();
    return counters;
  }

  // From the real transport.

  StatusOr<std::string> OnHello(ConnectionId connection, std::string_view hello) override {
    started_.WaitForNotification();
    absl::MutexLock lock(&calls_);
    return receiver_->OnHello(connection, hello);
  }

  StatusOr<Landing> OnMessage(ConnectionId connection, std::string_view header, size_t payload_bytes) override {
    absl::MutexLock lock(&calls_);
    FaultPlan plan;
    bool hold = false;
    {
      absl::MutexLock state(&mutex_);
      if (!flows_[connection].ended.ok()) return Landing{.drop = true};
      plan = dice_.Throw(header, payload_bytes);
      hold = !plan.is_clean() || IsStalled(flows_[connection]);
    }
    if (plan.has(FaultKind::kKill)) return absl::UnavailableError("a fault has killed the connection");
    if (plan.has(FaultKind::kDrop)) return Landing{.drop = true};
    const uint64_t token = ++last_token_;
    if (hold) {
      Held& held =
          held_landings_[token] = {connection, std::string(header), std::vector<std::byte>(payload_bytes), plan, false};
      return Landing{.memory = {absl::MakeSpan(held.payload)}, .token = token};
    }
    SLUICE_ASSIGN_OR_RETURN(Landing landing, receiver_->OnMessage(connection, header, payload_bytes));
    if (landing.drop) {
      OfferReordered(connection);
      return landing;
    }
    clean_landings_[token] = std::exchange(landing.token, token);
    return landing;
  }

  void OnLanded(ConnectionId connection, uint64_t token, const Status& status) override {
    absl::MutexLock lock(&calls_);
    if (const auto clean = clean_landings_.extract(token)) {
      receiver_->OnLanded(connection, clean.mapped(), status);
      if (status.ok()) OfferReordered(connection);
      return;
    }
    auto held = held_landings_.extract(token);
    if (status.ok()) HoldOrOffer(std::move(held.mapped()));
  }

  void OnClosed(ConnectionId connection, const Status& why) override {
    absl::MutexLock lock(&calls_);
    Status ended = why;
    {
      absl::MutexLock state(&mutex_);
      const auto flow = flows_.extract(connection);
      if (flow && !flow.mapped().ended.ok()) ended = flow.mapped().ended;
      if (flow) held_bytes_ -= BytesOf(flow.mapped());
    }
    receiver_->OnClosed(connection, ended);
  }

 private:
  static size_t BytesOf(const Flow& flow) {
    size_t bytes = 0;
    for (const auto& [due, held] : flow.waiting) bytes += held.payload.size();
    return bytes;
  }

  // Does to a message that has landed here what its plan says.
  void HoldOrOffer(Held held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_) {
    const FaultPlan plan = held.plan;
    if (plan.has(FaultKind::kCorruptHeader))
      FlipBit(absl::MakeSpan(reinterpret_cast<std::byte*>(held.header.data()), held.header.size()), plan.bits);
    if (plan.has(FaultKind::kCorruptPayload)) FlipBit(absl::MakeSpan(held.payload), plan.bits);
    if (plan.has(FaultKind::kTruncate)) held.payload.resize(plan.bits % held.payload.size());
    const ConnectionId connection = held.connection;
    {
      absl::MutexLock state(&mutex_);
      Flow& flow = flows_[connection];
      const absl::Time now = absl::Now();
      if (plan.has(FaultKind::kStall)) flow.stalled_until = std::max(flow.stalled_until, now + plan.stall);
      held.stalled = IsStalled(flow);
      flow.stalled += held.stalled ? 1 : 0;
      const absl::Time due = std::max({now + plan.delay, now + plan.reorder, flow.stalled_until});
      if (held.stalled || due > now) return Hold(flow, due, std::move(held));
    }
    Offer(held);
    OfferReordered(connection);
  }

  // Until all that a stall has held is offered, what comes after it waits too.
  static bool IsStalled(const Flow& flow) { return flow.stalled > 0 || flow.stalled_until > absl::Now(); }

  void Hold(Flow& flow, absl::Time due, Held held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (held_bytes_ + held.payload.size() > held_bytes_max_)
      return End(held.connection, absl::ResourceExhaustedError(
                                      absl::StrCat("more than ", held_bytes_max_, " bytes of messages are held back")));
    held_bytes_ += held.payload.size();
    flow.waiting.emplace(due, std::move(held));
    changed_ = true;
  }

  // Whatever waited for a next message, after that one.
  void OfferReordered(ConnectionId connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_) {
    std::vector<Held> released;
    {
      absl::MutexLock state(&mutex_);
      const auto found = flows_.find(connection);
      if (found == flows_.end() || IsStalled(found->second)) return;
      Flow& flow = found->second;
      for (auto it = flow.waiting.begin(); it != flow.waiting.end();) {
        if (!it->second.plan.has(FaultKind::kReorder) || it->second.plan.has(FaultKind::kDelay)) {
          ++it;
          continue;
        }
        held_bytes_ -= it->second.payload.size();
        released.push_back(std::move(it->second));
        it = flow.waiting.erase(it);
      }
    }
    for (const Held& held : released) Offer(held);
  }

  void Offer(const Held& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_) {
    OfferOnce(held);
    if (held.plan.has(FaultKind::kDuplicate)) OfferOnce(held);
  }

  void OfferOnce(const Held& held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_) {
    {
      absl::MutexLock state(&mutex_);
      const auto flow = flows_.find(held.connection);
      if (flow == flows_.end() || !flow->second.ended.ok()) return;
    }
    const StatusOr<Landing> landing = receiver_->OnMessage(held.connection, held.header, held.payload.size());
    if (landing.ok() && landing->drop) return;
    const Status fits = landing.ok() ? landing->Check(held.payload.size()) : landing.status();
    if (fits.ok()) landing->Copy(held.payload);
    if (landing.ok()) receiver_->OnLanded(held.connection, landing->token, fits);
    absl::MutexLock state(&mutex_);
    if (!fits.ok()) End(held.connection, fits);
  }

  // OnClosed follows, with `why`.
  void End(ConnectionId connection, const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto flow = flows_.find(connection);
    if (flow == flows_.end() || !flow->second.ended.ok()) return;
    flow->second.ended = why;
    real_->Close(connection);
  }

  // The decorator's own thread.
  void OfferWhatIsDue() {
    for (;;) {
      std::vector<Held> due;
      {
        absl::MutexLock lock(&mutex_);
        changed_ = false;
        const auto wakes = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopping_ || changed_; };
        mutex_.AwaitWithDeadline(absl::Condition(&wakes), NextDue());
        if (stopping_) return;
        due = TakeDue(absl::Now());
      }
      // Each on its own, so that what comes meanwhile is not kept waiting for all.
      for (const Held& held : due) {
        absl::MutexLock lock(&calls_);
        Offer(held);
        if (held.stalled) CountUnstalled(held.connection);
        OfferReordered(held.connection);
      }
    }
  }

  void CountUnstalled(ConnectionId connection) {
    absl::MutexLock lock(&mutex_);
    if (const auto flow = flows_.find(connection); flow != flows_.end()) --flow->second.stalled;
  }

  absl::Time NextDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [id, flow] : flows_) {
      if (!flow.waiting.empty()) next = std::min(next, flow.waiting.begin()->first);
    }
    return next;
  }

  std::vector<Held> TakeDue(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Held> due;
    for (auto& [id, flow] : flows_) {
      while (!flow.waiting.empty() && flow.waiting.begin()->first <= now) {
        held_bytes_ -= flow.waiting.begin()->second.payload.size();
        due.push_back(std::move(flow.waiting.begin()->second));
        flow.waiting.erase(flow.waiting.begin());
      }
    }
    return due;
  }

  const size_t held_bytes_max_;
  Receiver* const receiver_;
  std::unique_ptr<Transport> owned_;
  Transport* real_ = nullptr;  // stays while `owned_` is being destroyed, which makes calls
  absl::Notification started_;
  std::thread thread_;

  // Held during each call of the receiver and of a completion; taken before mutex_.
  absl::Mutex calls_ ABSL_ACQUIRED_BEFORE(mutex_);
  uint64_t last_token_ ABSL_GUARDED_BY(calls_) = 0;
  std::unordered_map<uint64_t, uint64_t> clean_landings_ ABSL_GUARDED_BY(calls_);  // -> the receiver's token
  std::unordered_map<uint64_t, Held> held_landings_ ABSL_GUARDED_BY(calls_);

  mutable absl::Mutex mutex_;
  FaultDice dice_ ABSL_GUARDED_BY(mutex_);
  std::map<ConnectionId, Flow> flows_ ABSL_GUARDED_BY(mutex_);
  size_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

StatusOr<std::unique_ptr<Transport>> CreateFaultyTransport(TransportFactory real, const TransportOptions& options,
                                                           Receiver* receiver) {
  auto transport = std::make_unique<FaultyTransport>(options, receiver);
  SLUICE_RETURN_IF_ERROR(transport->Start(real, options));
  return transport;
}

}  // namespace sluice
