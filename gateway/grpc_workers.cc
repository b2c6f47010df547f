#include "gateway/grpc_workers.h"

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/proto/worker.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/client_callback.h"

namespace sluice {

namespace {

constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);
constexpr absl::Duration kEndPatience = absl::Seconds(2);  // at the end, for calls that were not cancelled

Status FromGrpc(const grpc::Status& status) {
  const Status error(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  return status.error_details() == kAtPeerDetails ? AtPeer(error) : error;
}

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

// Calls that gRPC still holds: they post to the loop, so the loop may not go before them.
//
// It owns them, and gRPC's callbacks own nothing: a context holds its channel, and a channel whose last owner is one of
// gRPC's own threads waits there for that thread's end, and aborts. So what has ended is destroyed by the next call to
// Add() or AwaitNone(), which are the loop's.
class Inflight {
 public:
  void Add(std::shared_ptr<grpc::ClientContext> context) {
    std::vector<std::shared_ptr<grpc::ClientContext>> ended;  // destroyed without the lock
    absl::MutexLock lock(&mutex_);
    ended.swap(ended_);
    grpc::ClientContext* const key = context.get();
    calls_.emplace(key, std::move(context));
  }
  // By gRPC's callback, as the last that it does.
  void Remove(grpc::ClientContext* context) {
    absl::MutexLock lock(&mutex_);
    ended_.push_back(std::move(calls_.extract(context).mapped()));
  }
  // Gives calls that may still end by themselves `patience` to do so, and cancels the others, which ends them.
  void AwaitNone(absl::Duration patience) {
    std::vector<std::shared_ptr<grpc::ClientContext>> left;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&IsEmpty, &calls_), patience);
      for (const auto& [key, context] : calls_) left.push_back(context);
    }
    // Without the lock: gRPC may run the callback of a cancelled call in here.
    for (const auto& context : left) context->TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&IsEmpty, &calls_));
  }

 private:
  using Calls = std::map<grpc::ClientContext*, std::shared_ptr<grpc::ClientContext>>;
  static bool IsEmpty(Calls* calls) { return calls->empty(); }

  absl::Mutex mutex_;
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<grpc::ClientContext>> ended_ ABSL_GUARDED_BY(mutex_);
};

// Shared between the handle and, until gRPC's callback has come, Inflight.
template <typename Request, typename Reply>
struct Unary : std::enable_shared_from_this<Unary<Request, Reply>> {
  EventLoop* loop;
  Inflight* inflight;
  grpc::ClientContext context;
  Request request;
  Reply reply;
  Workers::Done<Reply> done;                 // loop's thread only
  std::function<void(const Reply&)> orphan;  // takes an answer that nobody waits for any more

  // `start` makes the call on its stub, with a context, a request, a reply and a callback.
  template <typename StartFunction>
  void Start(absl::Duration timeout, StartFunction start) {
    SetTimeout(context, timeout);
    inflight->Add({this->shared_from_this(), &context});
    start(&context, &request, &reply, [this](grpc::Status status) {
      loop->Post([self = this->shared_from_this(), status = FromGrpc(status)] { self->Finish(status); });
      inflight->Remove(&context);
    });
  }

  void Finish(const Status& status) {
    const auto callback = std::move(done);
    done = nullptr;
    if (callback) {
      status.ok() ? callback(std::move(reply)) : callback(status);
    } else if (status.ok() && orphan) {
      orphan(reply);
    }
  }
};

template <typename State>
class UnaryHandle final : public Workers::Call {
 public:
  // A call whose answer must be dealt with even if nobody waits for it is not cancelled.
  explicit UnaryHandle(std::shared_ptr<State> state) : state_(std::move(state)), cancels_(!state_->orphan) {}
  ~UnaryHandle() override {
    state_->done = nullptr;
    if (cancels_) state_->context.TryCancel();
  }
  void LetFinish() override { cancels_ = false; }

 private:
  std::shared_ptr<State> state_;
  bool cancels_;
};

// Shared between the handle and, until OnDone, Inflight. A hold keeps OnDone away while the handle may still
// start reads.
class GenerateCall final : public grpc::ClientReadReactor<proto::GenerateEvent>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(EventLoop* loop, Inflight* inflight, const proto::GenerateRequest& request,
               std::function<void(proto::GenerateEvent)> on_event, std::function<void(Status)> on_end)
      : loop_(loop),
        inflight_(inflight),
        request_(request),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)) {}

  void Start(proto::Decode::Stub* stub, absl::Duration timeout) {
    SetTimeout(context_, timeout);
    inflight_->Add({shared_from_this(), &context_});
    stub->async()->Generate(&context_, &request_, this);
    AddHold();
    StartCall();
  }

  void Next() {
    reading_ = true;
    StartRead(&event_);
  }

  void Abandon() {
    on_event_ = nullptr;
    on_end_ = nullptr;
    abandoned_ = true;
    context_.TryCancel();
    if (!reading_) LetGo();
  }

  void OnReadDone(bool ok) override {
    proto::GenerateEvent event;
    event.Swap(&event_);
    // Either this sees that the handle has gone, or the handle sees that nothing is being read; both may. The event is
    // posted last: once the loop has it, the next read may begin.
    reading_ = false;
    if (!ok || abandoned_) return LetGo();
    loop_->Post([self = shared_from_this(), event = std::move(event)]() mutable {
      const auto callback = self->on_event_;  // a copy, since it may destroy the handle
      if (callback) callback(std::move(event));
    });
  }

  void OnDone(const grpc::Status& status) override {
    loop_->Post([self = shared_from_this(), status = FromGrpc(status)] {
      const auto callback = std::move(self->on_end_);
      if (callback) callback(status);
    });
    inflight_->Remove(&context_);
  }

 private:
  void LetGo() {
    if (held_.exchange(false)) RemoveHold();
  }

  EventLoop* const loop_;
  Inflight* const inflight_;
  grpc::ClientContext context_;
  const proto::GenerateRequest request_;
  proto::GenerateEvent event_;
  std::function<void(proto::GenerateEvent)> on_event_;  // loop's thread only, as on_end_
  std::function<void(Status)> on_end_;
  std::atomic<bool> reading_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> held_{true};
};

class GenerateHandle final : public Workers::Stream {
 public:
  explicit GenerateHandle(std::shared_ptr<GenerateCall> call) : call_(std::move(call)) {}
  ~GenerateHandle() override { call_->Abandon(); }
  void Next() override { call_->Next(); }

 private:
  std::shared_ptr<GenerateCall> call_;
};

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // Workers come and go: a restarted one is found again within a second, also behind a name.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class GrpcWorkers final : public Workers {
 public:
  GrpcWorkers(const GatewayOptions& options, EventLoop* loop)
      : loop_(loop), addresses_{options.prefill_workers, options.decode_workers} {
    for (const std::string& address : options.prefill_workers) {
      prefill_.push_back(proto::Prefill::NewStub(OpenChannel(address)));
    }
    for (const std::string& address : options.decode_workers) {
      decode_.push_back(proto::Decode::NewStub(OpenChannel(address)));
    }
  }
  ~GrpcWorkers() override { inflight_.AwaitNone(kEndPatience); }

  int count(WorkerRole role) const override { return static_cast<int>(addresses_[static_cast<int>(role)].size()); }
  const std::string& address(WorkerRef worker) const override {
    return addresses_[static_cast<int>(worker.role)][worker.index];
  }

  CallHandle GetStatus(WorkerRef worker, absl::Duration timeout, Done<proto::WorkerStatus> done) override {
    auto call = Make<proto::WorkerStatusRequest, proto::WorkerStatus>({}, std::move(done));
    call->Start(timeout, [&](auto* context, auto* request, auto* reply, auto callback) {
      worker.role == WorkerRole::kPrefill
          ? prefill_[worker.index]->async()->GetStatus(context, request, reply, std::move(callback))
          : decode_[worker.index]->async()->GetStatus(context, request, reply, std::move(callback));
    });
    return Handle(std::move(call));
  }

  CallHandle Reserve(int decode, const proto::ReserveRequest& request, absl::Duration timeout,
                     Done<proto::ReserveReply> done) override {
    auto call = Make<proto::ReserveRequest, proto::ReserveReply>(request, std::move(done));
    call->orphan = [this, decode](const proto::ReserveReply& reply) {
      if (!reply.has_ticket() && !reply.local()) return;
      proto::ReleaseRequest release;
      release.set_reservation_id(reply.reservation_id());
      release.set_epoch(reply.epoch());
      Release(decode, release);
    };
    call->Start(timeout, [&](auto* context, auto* request, auto* reply, auto callback) {
      decode_[decode]->async()->Reserve(context, request, reply, std::move(callback));
    });
    return Handle(std::move(call));
  }

  CallHandle Rearm(int decode, const proto::RearmRequest& request, absl::Duration timeout,
                   Done<proto::ReserveReply> done) override {
    auto call = Make<proto::RearmRequest, proto::ReserveReply>(request, std::move(done));
    call->Start(timeout, [&](auto* context, auto* request, auto* reply, auto callback) {
      decode_[decode]->async()->Rearm(context, request, reply, std::move(callback));
    });
    return Handle(std::move(call));
  }

  void Release(int decode, const proto::ReleaseRequest& request) override {
    auto call = Make<proto::ReleaseRequest, proto::ReleaseReply>(request, nullptr);
    call->Start(kReleaseTimeout, [&](auto* context, auto* request, auto* reply, auto callback) {
      decode_[decode]->async()->Release(context, request, reply, std::move(callback));
    });
  }

  StreamHandle Generate(int decode, const proto::GenerateRequest& request, absl::Duration timeout,
                        std::function<void(proto::GenerateEvent)> on_event,
                        std::function<void(Status)> on_end) override {
    auto call = std::make_shared<GenerateCall>(loop_, &inflight_, request, std::move(on_event), std::move(on_end));
    call->Start(decode_[decode].get(), timeout);
    return std::make_unique<GenerateHandle>(std::move(call));
  }

  CallHandle Run(int prefill, const proto::PrefillRequest& request, absl::Duration timeout,
                 Done<proto::PrefillReply> done) override {
    auto call = Make<proto::PrefillRequest, proto::PrefillReply>(request, std::move(done));
    call->Start(timeout, [&](auto* context, auto* request, auto* reply, auto callback) {
      prefill_[prefill]->async()->Run(context, request, reply, std::move(callback));
    });
    return Handle(std::move(call));
  }

 private:
  template <typename Request, typename Reply>
  std::shared_ptr<Unary<Request, Reply>> Make(const Request& request, Done<Reply> done) {
    auto call = std::make_shared<Unary<Request, Reply>>();
    call->loop = loop_;
    call->inflight = &inflight_;
    call->request = request;
    call->done = std::move(done);
    return call;
  }
  template <typename State>
  static CallHandle Handle(std::shared_ptr<State> state) {
    return std::make_unique<UnaryHandle<State>>(std::move(state));
  }

 private:
  EventLoop* const loop_;
  Inflight inflight_;
  const std::vector<std::string> addresses_[2];  // by WorkerRole
  std::vector<std::unique_ptr<proto::Prefill::Stub>> prefill_;
  std::vector<std::unique_ptr<proto::Decode::Stub>> decode_;
};

}  // namespace

std::unique_ptr<Workers> MakeGrpcWorkers(const GatewayOptions& options, EventLoop* loop) {
  return std::make_unique<GrpcWorkers>(options, loop);
}

}  // namespace sluice
