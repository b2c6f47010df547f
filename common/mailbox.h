// A bounded queue of messages for one owner thread, which waits for the next message or for a time, whichever comes
// first. Anybody posts; only the owner takes.
#pragma once

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sluice {

template <typename Message>
class Mailbox {
 public:
  explicit Mailbox(size_t messages_max) : messages_max_(messages_max) {}

  // False where the box is full or shut: the sender says so to whoever asked.
  bool TryPost(Message message) {
    absl::MutexLock lock(&mutex_);
    if (shut_ || messages_.size() >= messages_max_) return false;
    messages_.push_back(std::move(message));
    return true;
  }

  // For messages whose number something else bounds and which end things or give memory back: never refused. Forgotten
  // once the box is shut.
  void Post(Message message) {
    absl::MutexLock lock(&mutex_);
    if (!shut_) messages_.push_back(std::move(message));
  }

  // Everything that waits, in order; waits for something until `deadline` where nothing does.
  std::vector<Message> TakeAll(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto has_messages = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    mutex_.AwaitWithDeadline(absl::Condition(&has_messages), deadline);
    return std::exchange(messages_, {});
  }

  // Takes nothing any more. Returns what nobody has taken, for the owner to answer.
  std::vector<Message> Shut() {
    absl::MutexLock lock(&mutex_);
    shut_ = true;
    return std::exchange(messages_, {});
  }
  bool shut() const {
    absl::MutexLock lock(&mutex_);
    return shut_;
  }

 private:
  const size_t messages_max_;
  mutable absl::Mutex mutex_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice
