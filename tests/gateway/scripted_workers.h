// Workers that answer when a test says so. Every call is kept; destroyed handles are seen as cancelled.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gateway/event_loop.h"
#include "gateway/workers.h"

namespace sluice {

class ScriptedWorkers final : public Workers {
 public:
  template <typename Request, typename Reply>
  struct CallRecord {
    int worker = 0;
    Request request;
    absl::Duration timeout;
    Done<Reply> done;  // null once answered or cancelled
    bool cancelled = false;
    bool let_finish = false;
    void Answer(StatusOr<Reply> reply) {
      const auto call = std::exchange(done, nullptr);
      if (call) call(std::move(reply));
    }
  };
  struct StreamRecord {
    int worker = 0;
    proto::GenerateRequest request;
    std::function<void(proto::GenerateEvent)> on_event;
    std::function<void(Status)> on_end;
    int wanted = 0;  // calls of Next() less events given
    bool cancelled = false;
    void Event(const proto::GenerateEvent& event) {
      --wanted;
      const auto call = on_event;
      if (call) call(event);
    }
    void End(const Status& status) {
      const auto call = std::exchange(on_end, nullptr);
      if (call) call(status);
    }
  };
  using ReserveCall = CallRecord<proto::ReserveRequest, proto::ReserveReply>;
  using RearmCall = CallRecord<proto::RearmRequest, proto::ReserveReply>;
  using RunCall = CallRecord<proto::PrefillRequest, proto::PrefillReply>;

  ScriptedWorkers(EventLoop* loop, int prefills, int decodes) : loop_(loop) {
    for (int i = 0; i < prefills; ++i) Add(WorkerRole::kPrefill, i);
    for (int i = 0; i < decodes; ++i) Add(WorkerRole::kDecode, i);
  }

  // What GetStatus answers; an error where the worker is down, nothing at all where it is silent.
  struct State {
    std::string address;
    StatusOr<proto::WorkerStatus> status;
    bool silent = false;
  };
  State& prefill(int i) { return states_[0][i]; }
  State& decode(int i) { return states_[1][i]; }

  std::deque<std::shared_ptr<ReserveCall>> reserves;
  std::deque<std::shared_ptr<RearmCall>> rearms;
  std::deque<std::shared_ptr<RunCall>> runs;
  std::deque<std::shared_ptr<StreamRecord>> streams;
  std::vector<std::pair<int, uint64_t>> released;  // decode, reservation

  int count(WorkerRole role) const override { return static_cast<int>(states_[static_cast<int>(role)].size()); }
  const std::string& address(WorkerRef w) const override { return states_[static_cast<int>(w.role)][w.index].address; }

  CallHandle GetStatus(WorkerRef worker, absl::Duration timeout, Done<proto::WorkerStatus> done) override {
    auto call = std::make_shared<CallRecord<int, proto::WorkerStatus>>();
    call->done = std::move(done);
    const State& state = states_[static_cast<int>(worker.role)][worker.index];
    if (!state.silent) {
      loop_->Post([call, status = state.status] { call->Answer(status); });
      return std::make_unique<Handle<CallRecord<int, proto::WorkerStatus>>>(call, nullptr);
    }
    auto timer = loop_->After(timeout, [call] { call->Answer(absl::DeadlineExceededError("no answer")); });
    return std::make_unique<Handle<CallRecord<int, proto::WorkerStatus>>>(call, std::move(timer));
  }
  CallHandle Reserve(int decode, const proto::ReserveRequest& request, absl::Duration timeout,
                     Done<proto::ReserveReply> done) override {
    return Record(reserves, decode, request, timeout, std::move(done));
  }
  CallHandle Rearm(int decode, const proto::RearmRequest& request, absl::Duration timeout,
                   Done<proto::ReserveReply> done) override {
    return Record(rearms, decode, request, timeout, std::move(done));
  }
  CallHandle Run(int prefill, const proto::PrefillRequest& request, absl::Duration timeout,
                 Done<proto::PrefillReply> done) override {
    return Record(runs, prefill, request, timeout, std::move(done));
  }
  void Release(int decode, const proto::ReleaseRequest& request) override {
    released.emplace_back(decode, request.reservation_id());
  }
  StreamHandle Generate(int decode, const proto::GenerateRequest& request, absl::Duration,
                        std::function<void(proto::GenerateEvent)> on_event,
                        std::function<void(Status)> on_end) override {
    auto stream = std::make_shared<StreamRecord>();
    stream->worker = decode;
    stream->request = request;
    stream->on_event = std::move(on_event);
    stream->on_end = std::move(on_end);
    streams.push_back(stream);
    return std::make_unique<StreamHandleImpl>(stream);
  }

 private:
  template <typename Record>
  class Handle final : public Call {
   public:
    Handle(std::shared_ptr<Record> call, std::unique_ptr<EventLoop::Timer> timer)
        : call_(std::move(call)), timer_(std::move(timer)) {}
    ~Handle() override {
      call_->cancelled = call_->done != nullptr && !call_->let_finish;
      call_->done = nullptr;
    }
    void LetFinish() override { call_->let_finish = true; }

   private:
    std::shared_ptr<Record> call_;
    std::unique_ptr<EventLoop::Timer> timer_;
  };
  class StreamHandleImpl final : public Stream {
   public:
    explicit StreamHandleImpl(std::shared_ptr<StreamRecord> stream) : stream_(std::move(stream)) {}
    ~StreamHandleImpl() override {
      stream_->cancelled = true;
      stream_->on_event = nullptr;
      stream_->on_end = nullptr;
    }
    void Next() override { ++stream_->wanted; }

   private:
    std::shared_ptr<StreamRecord> stream_;
  };

  template <typename Request, typename Reply>
  CallHandle Record(std::deque<std::shared_ptr<CallRecord<Request, Reply>>>& list, int worker, const Request& request,
                    absl::Duration timeout, Done<Reply> done) {
    auto call = std::make_shared<CallRecord<Request, Reply>>();
    call->worker = worker;
    call->request = request;
    call->timeout = timeout;
    call->done = std::move(done);
    list.push_back(call);
    return std::make_unique<Handle<CallRecord<Request, Reply>>>(call, nullptr);
  }

  void Add(WorkerRole role, int index) {
    const bool is_prefill = role == WorkerRole::kPrefill;
    proto::WorkerStatus status;
    status.set_role(is_prefill ? "prefill" : "decode");
    status.set_epoch(1000 + index);
    status.set_model_hash("hash");
    status.set_vocab_size(258);
    status.set_context_tokens_max(512);
    status.set_page_tokens(16);
    status.add_wire_codecs("bf16");
    status.set_kv_pages_total(100);
    status.set_kv_pages_free(100 - index);  // so that the order of choice is the order of index
    states_[static_cast<int>(role)].push_back({absl::StrCat(is_prefill ? "p" : "d", index), status, false});
  }

  EventLoop* const loop_;
  std::vector<State> states_[2];
};

}  // namespace sluice
