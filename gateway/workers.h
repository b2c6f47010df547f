// Calls to prefill and decode workers, as an interface: gRPC in a process, a script in tests. Lives on the loop's
// thread. Callbacks come on that thread, never from within the call that asked for them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"

namespace sluice {

enum class WorkerRole { kPrefill, kDecode };

// One of the configured workers: an index into its role's list.
struct WorkerRef {
  WorkerRole role = WorkerRole::kPrefill;
  int index = 0;
  bool operator==(const WorkerRef&) const = default;
};

class Workers {
 public:
  // A call under way. Destroying it cancels the call, and its callbacks then certainly do not come.
  class Call {
   public:
    virtual ~Call() = default;
    virtual void LetFinish() {}  // from here on, destroying it does not cancel the call
  };
  using CallHandle = std::unique_ptr<Call>;

  // A stream under way. One event comes for each Next(), so a slow client holds its decode worker back, not memory.
  class Stream : public Call {
   public:
    virtual void Next() = 0;  // REQUIRES: the event asked for before has come
  };
  using StreamHandle = std::unique_ptr<Stream>;

  template <typename Reply>
  using Done = std::function<void(StatusOr<Reply>)>;

  virtual ~Workers() = default;

  virtual int count(WorkerRole role) const = 0;
  virtual const std::string& address(WorkerRef worker) const = 0;

  virtual CallHandle GetStatus(WorkerRef worker, absl::Duration timeout, Done<proto::WorkerStatus> done) = 0;
  // Destroying the handle abandons the call: a reservation that it still makes is released.
  virtual CallHandle Reserve(int decode, const proto::ReserveRequest& request, absl::Duration timeout,
                             Done<proto::ReserveReply> done) = 0;
  virtual CallHandle Rearm(int decode, const proto::RearmRequest& request, absl::Duration timeout,
                           Done<proto::ReserveReply> done) = 0;
  virtual void Release(int decode, const proto::ReleaseRequest& request) = 0;
  // `on_end` comes after the last event, once a Next() has found that there is none.
  virtual StreamHandle Generate(int decode, const proto::GenerateRequest& request, absl::Duration timeout,
                                std::function<void(proto::GenerateEvent)> on_event,
                                std::function<void(Status)> on_end) = 0;
  virtual CallHandle Run(int prefill, const proto::PrefillRequest& request, absl::Duration timeout,
                         Done<proto::PrefillReply> done) = 0;
};

}  // namespace sluice
