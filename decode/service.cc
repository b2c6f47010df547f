#include "decode/service.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/proto/worker.grpc.pb.h"
#include "decode/token_stream.h"
#include "grpcpp/grpcpp.h"

namespace sluice::decode {

namespace {

constexpr int kRequestBytesMax = 16 << 20;  // a Reserve with a long prompt, as prefill takes it

// The numbers of gRPC's codes are Abseil's.
grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// One Generate call: carries events from a TokenStream to the wire, one write at a time; while one is on its way, what
// follows gathers in the stream. gRPC, the engine thread and the worker's answer to Attach all call in.
class GenerateCall final : public grpc::ServerWriteReactor<proto::GenerateEvent>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // gRPC's share in the call is `self_`, which falls in OnDone; the engine thread's callbacks have theirs.
  static GenerateCall* Start(const proto::GenerateRequest& request, Worker* worker) {
    const std::shared_ptr<GenerateCall> call(new GenerateCall(request, worker));
    call->self_ = call;
    worker->Attach(request, [call](StatusOr<std::shared_ptr<TokenStream>> stream) { call->OnAttached(stream); });
    return call.get();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) broken_ = true;
    }
    Pump();
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
    }
    Pump();
  }

  void OnDone() override {
    const std::shared_ptr<GenerateCall> last = std::move(self_);
    std::shared_ptr<TokenStream> stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream == nullptr) return;
    stream->Detach();
    worker_->Detach(request_);
  }

 private:
  GenerateCall(const proto::GenerateRequest& request, Worker* worker) : request_(request), worker_(worker) {}

  void OnAttached(const StatusOr<std::shared_ptr<TokenStream>>& stream) {
    {
      absl::MutexLock lock(&mutex_);
      if (stream.ok()) stream_ = *stream;
      if (!stream.ok()) refused_ = stream.status();
    }
    if (stream.ok()) {
      (*stream)->Attach([call = shared_from_this()] { call->Pump(); });
    } else {
      Pump();
    }
  }

  // Starts the next write, or ends the call, or leaves it as it is: nothing to say, or a write is on its way. Until the
  // worker has answered, even a broken call waits, so that the reader that it attached is detached again.
  void Pump() {
    std::optional<Status> end;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_ || (stream_ == nullptr && refused_.ok())) return;
      if (broken_) {
        end = absl::CancelledError("the client left");
      } else if (stream_ == nullptr) {
        end = refused_;
      } else if (auto event = stream_->Take(&end)) {
        event_ = *std::move(event);
        writing_ = true;
      } else if (!end) {
        return;
      }
      finished_ = end.has_value();
    }
    if (end) {
      Finish(ToGrpc(*end));
    } else {
      StartWrite(&event_);
    }
  }

  const proto::GenerateRequest request_;
  Worker* const worker_;
  std::shared_ptr<GenerateCall> self_;  // set before gRPC knows the call, given up in its last callback
  absl::Mutex mutex_;
  std::shared_ptr<TokenStream> stream_ ABSL_GUARDED_BY(mutex_);
  Status refused_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  proto::GenerateEvent event_;  // of the write on its way
};

class GrpcService final : public Service, public proto::Decode::CallbackService {
 public:
  explicit GrpcService(Worker* worker) : worker_(worker) {}

  Status Start(const std::string& listen) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kRequestBytesMax);
    // Two processes on one address would share its connections at random.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) return absl::UnavailableError(absl::StrCat("cannot listen on ", listen));
    address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

  void Shutdown(absl::Time deadline) override { server_->Shutdown(absl::ToChronoTime(deadline)); }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const proto::WorkerStatusRequest*,
                                      proto::WorkerStatus* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    worker_->GetStatus(AnswerTo(reactor, reply));
    return reactor;
  }

  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context, const proto::ReserveRequest* request,
                                    proto::ReserveReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    worker_->Reserve(*request, AnswerTo(reactor, reply));
    return reactor;
  }

  grpc::ServerUnaryReactor* Rearm(grpc::CallbackServerContext* context, const proto::RearmRequest* request,
                                  proto::ReserveReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    worker_->Rearm(*request, AnswerTo(reactor, reply));
    return reactor;
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const proto::ReleaseRequest* request,
                                    proto::ReleaseReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    worker_->Release(*request, AnswerTo(reactor, reply));
    return reactor;
  }

  grpc::ServerWriteReactor<proto::GenerateEvent>* Generate(grpc::CallbackServerContext*,
                                                           const proto::GenerateRequest* request) override {
    return GenerateCall::Start(*request, worker_);
  }

 private:
  // gRPC keeps reactor and reply until Finish.
  template <typename Reply>
  static std::function<void(StatusOr<Reply>)> AnswerTo(grpc::ServerUnaryReactor* reactor, Reply* reply) {
    return [reactor, reply](StatusOr<Reply> answer) {
      if (answer.ok()) *reply = *std::move(answer);
      reactor->Finish(ToGrpc(answer.status()));
    };
  }

  Worker* const worker_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;  // last: its handlers use everything above
};

}  // namespace

StatusOr<std::unique_ptr<Service>> Service::Create(const std::string& listen, Worker* worker) {
  auto service = std::make_unique<GrpcService>(worker);
  SLUICE_RETURN_IF_ERROR(service->Start(listen));
  return service;
}

}  // namespace sluice::decode
