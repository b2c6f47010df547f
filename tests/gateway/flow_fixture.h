// A fleet of scripted workers and a client that keeps what it is told, under simulated time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/request_flow.h"
#include "gtest/gtest.h"
#include "tests/gateway/manual_loop.h"
#include "tests/gateway/scripted_workers.h"

namespace sluice {

class RecordingClient final : public FlowClient {
 public:
  bool OnEvent(const proto::GenerateEvent& event) override {
    for (const auto& token : event.tokens()) text += token.text();
    return !stalled;
  }
  void OnRestart() override {
    ++restarts;
    text.clear();
  }
  void OnDone(const proto::GenerateEvent&) override { done = true; }
  void OnFailed(const Status& status, absl::Duration after) override {
    failure = status;
    retry_after = after;
  }
  bool committed() const override { return streams && !text.empty(); }

  std::string text;
  bool streams = true;   // what it was told has left for good
  bool stalled = false;  // takes no more for now
  int restarts = 0;
  bool done = false;
  std::optional<Status> failure;
  absl::Duration retry_after;
};

class FlowFixture : public testing::Test {
 protected:
  void SetUpFleet(int prefills, int decodes) {
    workers = std::make_unique<ScriptedWorkers>(&loop, prefills, decodes);
    fleet = std::make_unique<Fleet>(&options, &loop, workers.get(),
                                    FleetModel{.model_hash = "hash", .vocab_size = 258, .context_tokens_max = 512});
    queue = std::make_unique<AdmissionQueue>(&options, &loop, fleet.get());
    loop.Settle();
  }
  FlowEnvironment Environment() {
    return {.options = &options,
            .loop = &loop,
            .workers = workers.get(),
            .fleet = fleet.get(),
            .queue = queue.get(),
            .prefixes = &prefixes,
            .metrics = &metrics};
  }

  void StartFlow() {
    FlowRequest request;
    request.id = 7;
    request.prompt_ids = prompt;
    request.timeout = absl::Seconds(60);
    request.room_wait = absl::Seconds(5);
    flow = std::make_unique<RequestFlow>(Environment(), std::move(request), &client);
    flow->Start();
  }
  static proto::ReserveReply Ticket(uint64_t reservation) {
    proto::ReserveReply reply;
    reply.set_ticket("ticket " + std::to_string(reservation));
    reply.set_reservation_id(reservation);
    reply.set_epoch(1000);
    return reply;
  }
  static proto::ReserveReply NoRoom(int64_t retry_after_ms) {
    proto::ReserveReply reply;
    reply.mutable_no_room()->set_pages_needed(8);
    reply.mutable_no_room()->set_pages_free(3);
    reply.mutable_no_room()->set_pages_total(100);
    reply.mutable_no_room()->set_retry_after_ms(retry_after_ms);
    return reply;
  }
  static proto::GenerateEvent Tokens(const std::string& text, bool last = false) {
    proto::GenerateEvent event;
    event.add_tokens()->set_text(text);
    event.set_last(last);
    if (last) event.set_finish(proto::FINISH_STOP);
    return event;
  }
  void GrantReservation(uint64_t reservation) { workers->reserves.back()->Answer(Ticket(reservation)); }

  std::vector<TokenId> prompt = {1, 2, 3};
  GatewayOptions options;
  GatewayMetrics metrics;
  PrefixRecords prefixes{100};
  ManualLoop loop;
  std::unique_ptr<ScriptedWorkers> workers;
  std::unique_ptr<Fleet> fleet;
  std::unique_ptr<AdmissionQueue> queue;
  RecordingClient client;
  std::unique_ptr<RequestFlow> flow;
};

}  // namespace sluice
