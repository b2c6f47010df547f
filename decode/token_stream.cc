#include "decode/token_stream.h"

#include <algorithm>
#include <utility>

namespace sluice::decode {

TokenStream::TokenStream(int tokens_max, std::function<void()> drained)
    : tokens_max_(tokens_max), drained_(std::move(drained)) {}

// Life of a request, step 9: tokens go to the gateway as they come, several at once where the reader is slower.
void TokenStream::Push(proto::GenerateEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    if (end_ || detached_) return;
    const auto earlier = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&event](const auto& waiting) { return waiting.choice() == event.choice(); });
    if (earlier == waiting_.end()) {
      waiting_.push_back(std::move(event));
    } else {
      // MergeFrom appends the tokens and takes over finish, usage and times where the new event has them.
      earlier->MergeFrom(event);
      if (event.last()) waiting_.splice(waiting_.end(), waiting_, earlier);
    }
  }
  if (const auto readable = Readable()) readable();
}

void TokenStream::Close(Status why) {
  {
    absl::MutexLock lock(&mutex_);
    if (end_) return;
    if (!why.ok()) waiting_.clear();
    end_ = std::move(why);
  }
  if (const auto readable = Readable()) readable();
}

bool TokenStream::Full(uint32_t choice) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(waiting_.begin(), waiting_.end(), [this, choice](const auto& waiting) {
    return waiting.choice() == choice && waiting.tokens_size() >= tokens_max_;
  });
}

void TokenStream::Attach(std::function<void()> readable) {
  {
    absl::MutexLock lock(&mutex_);
    if (detached_) return;
    readable_ = std::move(readable);
  }
  if (const auto call = Readable()) call();
}

std::optional<proto::GenerateEvent> TokenStream::Take(std::optional<Status>* end) {
  std::optional<proto::GenerateEvent> event;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) {
      *end = end_;
      return std::nullopt;
    }
    event = std::move(waiting_.front());
    waiting_.pop_front();
  }
  if (event->tokens_size() >= tokens_max_) drained_();
  return event;
}

void TokenStream::Detach() {
  absl::MutexLock lock(&mutex_);
  detached_ = true;
  waiting_.clear();
  readable_ = nullptr;
}

std::function<void()> TokenStream::Readable() const {
  absl::MutexLock lock(&mutex_);
  return readable_;
}

}  // namespace sluice::decode
