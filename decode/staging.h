// Memory for KV that arrives in another codec than the pool's, until it is recoded. Taken and touched at start-up,
// given out in pieces of any size by first fit. Whoever takes bounds what is out at once (credits do); gaps that are
// too small for a piece although together they would do are made good from the heap, so that no piece is ever refused.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/gap_list.h"
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
    std::unique_ptr<std::byte[]> heap_;  // where there was no gap
    absl::Span<std::byte> bytes_;
  };

  // Never waits and never fails.
  Lease Take(size_t bytes);

  size_t bytes_total() const { return buffer_.size(); }
  size_t bytes_free() const;
  uint64_t pieces_from_heap() const;  // since the start

 private:
  explicit Staging(Buffer buffer);
  void GiveBack(absl::Span<std::byte> bytes);

  Buffer buffer_;
  mutable absl::Mutex mutex_;
  GapList gaps_ ABSL_GUARDED_BY(mutex_);
  uint64_t pieces_from_heap_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::decode
