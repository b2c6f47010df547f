#include "prefill/service.h"

#include "common/proto/worker.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "spdlog/spdlog.h"

namespace sluice::prefill {

namespace {

// The numbers of gRPC's codes are Abseil's.
grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      IsAtPeer(status) ? kAtPeerDetails : "");
}

// One Run call. gRPC calls OnCancel and OnDone only after the handler has returned, and OnDone only after Finish; so
// this lives at least until both.
class RunCall final : public grpc::ServerUnaryReactor {
 public:
  RunCall(proto::PrefillReply* reply, Worker* worker) : reply_(reply), worker_(worker) {}

  // Called in the handler. Where the worker refuses, Refuse must follow.
  Status Begin(const proto::PrefillRequest& request, proto::Ticket ticket) {
    const StatusOr<PromptId> id =
        worker_->Submit(request, std::move(ticket), [this](const StatusOr<proto::PrefillReply>& reply) {
          if (reply.ok()) *reply_ = *reply;
          Finish(ToGrpc(reply.status()));
        });
    if (id.ok()) prompt_ = *id;
    return id.status();
  }

  void Refuse(const Status& why) { Finish(ToGrpc(why)); }

  void OnCancel() override { worker_->Cancel(prompt_); }
  void OnDone() override { delete this; }

 private:
  proto::PrefillReply* const reply_;
  Worker* const worker_;
  PromptId prompt_;  // set in the handler only
};

class GrpcService final : public Service, public proto::Prefill::CallbackService {
 public:
  GrpcService(const ServiceOptions& options, const ClusterKey& key, Worker* worker, PrefillMetrics* metrics,
              const Clock* clock)
      : options_(options), key_(key), worker_(worker), metrics_(metrics), clock_(clock) {}

  Status Start() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(options_.request_bytes_max);
    // Two processes on one address would share its connections at random.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0)
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.listen));
    address_ = absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

  void Shutdown(absl::Time deadline) override { server_->Shutdown(absl::ToChronoTime(deadline)); }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const proto::WorkerStatusRequest*,
                                      proto::WorkerStatus* reply) override {
    const Worker::Load load = worker_->load();
    *reply = options_.fixed_status;
    reply->set_kv_pages_free(static_cast<uint32_t>(load.pages_free));
    reply->set_requests_active(static_cast<uint32_t>(load.requests));
    reply->set_queued_prompt_tokens(static_cast<uint64_t>(load.queued_tokens));
    reply->set_prefill_tokens_per_s(load.tokens_per_s);
    reply->set_transfer_tokens_per_s(load.transfer_tokens_per_s);
    reply->set_kv_pages_cached(static_cast<uint32_t>(load.pages_cached));
    reply->set_draining(load.draining);
    if (load.draining) reply->set_not_ready_reason("prefill is draining");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext*, const proto::PrefillRequest* request,
                                proto::PrefillReply* reply) override {
    auto* call = new RunCall(reply, worker_);
    StatusOr<proto::Ticket> ticket = Admit(*request, options_.limits, key_, clock_->Now());
    const Status accepted = ticket.ok() ? call->Begin(*request, *std::move(ticket)) : ticket.status();
    if (!accepted.ok()) {
      spdlog::info("request {} refused: {}", request->request_id(), accepted.ToString());
      metrics_->refused(accepted).Increment();
      call->Refuse(accepted);
    }
    return call;
  }

 private:
  const ServiceOptions options_;
  const ClusterKey key_;
  Worker* const worker_;
  PrefillMetrics* const metrics_;
  const Clock* const clock_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;  // last: its handlers use everything above
};

}  // namespace

StatusOr<std::unique_ptr<Service>> Service::Create(const ServiceOptions& options, const ClusterKey& key, Worker* worker,
                                                   PrefillMetrics* metrics, const Clock* clock) {
  auto service = std::make_unique<GrpcService>(options, key, worker, metrics, clock);
  SLUICE_RETURN_IF_ERROR(service->Start());
  return service;
}

}  // namespace sluice::prefill
