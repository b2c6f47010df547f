// Bounded memory for what has arrived and is not checked or not in its pages yet. Taken and touched at start-up, given
// out in pieces of any size by first fit. Thread-safe: the transport's thread takes, the engine thread gives back.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/status.h"

namespace sluice::decode {

class Staging {
 public:
  static StatusOr<std::unique_ptr<Staging>> Create(size_t bytes);

  // Move-only handle of one piece; gives it back in its destructor. The Staging outlives it.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    absl::Span<std::byte> bytes() const { return bytes_; }

   private:
    friend class Staging;
    Lease(Staging* staging, absl::Span<std::byte> bytes) : staging_(staging), bytes_(bytes) {}
    Staging* staging_ = nullptr;
    absl::Span<std::byte> bytes_;
  };

  // Nothing where no gap is large enough; never waits.
  std::optional<Lease> Take(size_t bytes);

  size_t bytes_total() const { return buffer_.size(); }
  size_t bytes_free() const;

 private:
  explicit Staging(Buffer buffer);
  void GiveBack(absl::Span<std::byte> bytes);

  Buffer buffer_;
  mutable absl::Mutex mutex_;
  std::map<size_t, size_t> gaps_ ABSL_GUARDED_BY(mutex_);  // offset -> bytes, neighbours merged
};

}  // namespace sluice::decode
