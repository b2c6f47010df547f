// Prefill and decode over real gRPC, without a model: decode answers with the prompt's own tokens in capitals, and does
// what a test has scripted for a request's path.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/proto/worker.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace sluice {

class FakeWorkers {
 public:
  // What the next requests meet.
  enum class Script {
    kAnswer,
    kNoRoom,
    kSlowReserve,  // answers after 300 ms
    kPrefillFails,
    kPrefillHangs,    // until it is cancelled
    kDecodeBreaks,    // after the first token
    kDecodeHangs,     // after the first token, until it is cancelled
    kFirstTokenEnds,  // one event, the last
  };

  FakeWorkers() : decode_(this), prefill_(this) {}
  ~FakeWorkers() { Stop(); }

  void Start(int decode_port = 0, int prefill_port = 0) {
    decode_server_ = Serve(&decode_, &decode_port_, decode_port);
    prefill_server_ = Serve(&prefill_, &prefill_port_, prefill_port);
  }
  void Stop() {
    for (auto* server : {&decode_server_, &prefill_server_}) {
      if (*server != nullptr) (*server)->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
      server->reset();
    }
  }
  std::string decode_address() const { return "127.0.0.1:" + std::to_string(decode_port_); }
  std::string prefill_address() const { return "127.0.0.1:" + std::to_string(prefill_port_); }

  std::atomic<Script> script{Script::kAnswer};
  std::atomic<int> generating{0};  // streams that are open
  std::atomic<int> running{0};     // prefill calls that are open
  std::atomic<int> reserved{0};    // reservations held: leaks show here
  std::atomic<uint64_t> epoch{1};

 private:
  struct DecodeService final : proto::Decode::Service {
    explicit DecodeService(FakeWorkers* f) : fake(f) {}
    grpc::Status GetStatus(grpc::ServerContext*, const proto::WorkerStatusRequest*, proto::WorkerStatus* out) override {
      fake->Fill("decode", out);
      return grpc::Status::OK;
    }
    grpc::Status Reserve(grpc::ServerContext*, const proto::ReserveRequest* in, proto::ReserveReply* out) override;
    grpc::Status Rearm(grpc::ServerContext*, const proto::RearmRequest*, proto::ReserveReply*) override {
      return grpc::Status(grpc::StatusCode::ABORTED, "not held");
    }
    grpc::Status Release(grpc::ServerContext*, const proto::ReleaseRequest* in, proto::ReleaseReply*) override {
      fake->Drop(in->reservation_id());
      return grpc::Status::OK;
    }
    grpc::Status Generate(grpc::ServerContext* context, const proto::GenerateRequest* in,
                          grpc::ServerWriter<proto::GenerateEvent>* writer) override;
    FakeWorkers* fake;
  };
  struct PrefillService final : proto::Prefill::Service {
    explicit PrefillService(FakeWorkers* f) : fake(f) {}
    grpc::Status GetStatus(grpc::ServerContext*, const proto::WorkerStatusRequest*, proto::WorkerStatus* out) override {
      fake->Fill("prefill", out);
      return grpc::Status::OK;
    }
    grpc::Status Run(grpc::ServerContext* context, const proto::PrefillRequest* in, proto::PrefillReply*) override;
    FakeWorkers* fake;
  };
  struct Reservation {
    std::vector<int32_t> prompt;
    bool prefilled = false;
    proto::SamplingParams sampling;
    Script script;
  };

  static std::unique_ptr<grpc::Server> Serve(grpc::Service* service, int* port, int wanted) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(wanted), grpc::InsecureServerCredentials(), port);
    builder.RegisterService(service);
    return builder.BuildAndStart();
  }
  void Fill(const std::string& role, proto::WorkerStatus* out) {
    out->set_role(role);
    out->set_epoch(epoch);
    out->set_model_hash("hash");
    out->set_vocab_size(258);
    out->set_context_tokens_max(512);
    out->set_page_tokens(16);
    out->add_wire_codecs("bf16");
    out->set_kv_pages_total(100);
    out->set_kv_pages_free(100);
  }
  void Drop(uint64_t id) {
    const std::lock_guard lock(mutex_);
    reserved -= static_cast<int>(reservations_.erase(id));
  }

  std::mutex mutex_;
  std::condition_variable prefilled_;
  std::map<uint64_t, Reservation> reservations_;
  uint64_t next_ = 1;
  DecodeService decode_;
  PrefillService prefill_;
  int decode_port_ = 0;
  int prefill_port_ = 0;
  std::unique_ptr<grpc::Server> decode_server_;
  std::unique_ptr<grpc::Server> prefill_server_;
};

inline grpc::Status FakeWorkers::DecodeService::Reserve(grpc::ServerContext*, const proto::ReserveRequest* in,
                                                        proto::ReserveReply* out) {
  const bool canary = in->prompt_tokens() == 1 && in->sampling().ignore_eos();
  const Script script = canary ? Script::kFirstTokenEnds : fake->script.load();
  if (script == Script::kNoRoom) {
    out->mutable_no_room()->set_pages_needed(9);
    out->mutable_no_room()->set_pages_total(8);
    out->mutable_no_room()->set_retry_after_ms(2000);
    return grpc::Status::OK;
  }
  if (script == Script::kSlowReserve) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::lock_guard lock(fake->mutex_);
  const uint64_t id = fake->next_++;
  fake->reservations_[id] = {.sampling = in->sampling(), .script = script};
  ++fake->reserved;
  out->set_reservation_id(id);
  out->set_epoch(fake->epoch);
  out->set_ticket(std::to_string(id));
  return grpc::Status::OK;
}

inline grpc::Status FakeWorkers::PrefillService::Run(grpc::ServerContext* context, const proto::PrefillRequest* in,
                                                     proto::PrefillReply*) {
  ++fake->running;
  std::unique_lock lock(fake->mutex_);
  Reservation& reservation = fake->reservations_[std::stoull(in->ticket())];
  const Script script = reservation.script;
  if (script == Script::kPrefillHangs) {
    lock.unlock();
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    lock.lock();
  }
  --fake->running;
  if (script == Script::kPrefillHangs) return grpc::Status::CANCELLED;
  if (script == Script::kPrefillFails) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "prefill has died");
  reservation.prompt.assign(in->prompt_ids().begin(), in->prompt_ids().end());
  reservation.prefilled = true;
  fake->prefilled_.notify_all();
  return grpc::Status::OK;
}

inline grpc::Status FakeWorkers::DecodeService::Generate(grpc::ServerContext* context, const proto::GenerateRequest* in,
                                                         grpc::ServerWriter<proto::GenerateEvent>* writer) {
  const uint64_t id = in->reservation_id();
  ++fake->generating;
  Reservation reservation;
  {
    std::unique_lock lock(fake->mutex_);
    while (!context->IsCancelled() && fake->reservations_.contains(id) && !fake->reservations_[id].prefilled) {
      fake->prefilled_.wait_for(lock, std::chrono::milliseconds(2));
    }
    reservation = fake->reservations_[id];
  }
  grpc::Status status = grpc::Status::OK;
  const int n = reservation.sampling.n();
  const int count = reservation.script == Script::kFirstTokenEnds
                        ? 1
                        : std::min<int>(reservation.sampling.max_tokens(), static_cast<int>(reservation.prompt.size()));
  for (int i = 0; i < count && status.ok() && !context->IsCancelled(); ++i) {
    for (int choice = 0; choice < n; ++choice) {
      proto::GenerateEvent event;
      event.set_choice(choice);
      proto::GeneratedToken* token = event.add_tokens();
      token->set_token(std::toupper(reservation.prompt[i]));
      token->set_text(std::string(1, static_cast<char>(token->token())));
      token->set_logprob(-1.0f);
      if (i + 1 == count) event.set_finish(proto::FINISH_LENGTH);
      event.set_last(i + 1 == count && choice + 1 == n);
      event.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(reservation.prompt.size()));
      event.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(count * n));
      writer->Write(event);
    }
    if (reservation.script == Script::kDecodeBreaks) status = {grpc::StatusCode::UNAVAILABLE, "decode has died"};
    while (reservation.script == Script::kDecodeHangs && !context->IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  fake->Drop(id);
  --fake->generating;
  return status;
}

}  // namespace sluice
