// The tokens of one request on their way from the engine thread to the reader of its Generate call. The engine never
// waits here: where the reader is behind, tokens of a choice gather in one event, and beyond a bound the engine pauses
// the choice. Thread-safe; owned by the engine's request and by the call that reads it, whichever ends last.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"

namespace sluice::decode {

class TokenStream {
 public:
  // `drained` is called from the reader's thread each time a choice that was full has room again.
  TokenStream(int tokens_max, std::function<void()> drained);

  // --- the engine thread ---

  // Adds an event; joins it to the choice's waiting one, if there is one. Of a choice that is Full() only an event
  // that ends it is sensible: nothing is ever refused. Ignored after Close.
  void Push(proto::GenerateEvent event);
  // No more events. What waits is still read, unless `why` is an error: a broken answer ends at once.
  void Close(Status why);
  // The choice has `tokens_max` tokens waiting.
  bool Full(uint32_t choice) const;

  // --- the reader ---

  // `readable` is called (from the engine thread, or at once from here) when Take may have something new to say.
  // Ignored after Detach.
  void Attach(std::function<void()> readable);
  // The next event; or nothing, and then `*end` has the final status once the stream has ended.
  std::optional<proto::GenerateEvent> Take(std::optional<Status>* end);
  // The reader is gone: forgets what waits, calls nothing any more.
  void Detach();

 private:
  std::function<void()> Readable() const ABSL_LOCKS_EXCLUDED(mutex_);

  const int tokens_max_;
  const std::function<void()> drained_;
  mutable absl::Mutex mutex_;
  std::list<proto::GenerateEvent> waiting_ ABSL_GUARDED_BY(mutex_);  // at most one a choice; the last one stays last
  std::optional<Status> end_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> readable_ ABSL_GUARDED_BY(mutex_);
  bool detached_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::decode
