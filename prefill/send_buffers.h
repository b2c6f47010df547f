// Memory for bodies that the transport may still read: taken and touched at start-up, given out in pieces of any size
// by first fit. Of the sender's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/gap_list.h"
#include "common/status.h"

namespace sluice::prefill {

class SendBuffers {
 public:
  // ResourceExhausted where the memory cannot be had.
  static StatusOr<std::unique_ptr<SendBuffers>> Create(size_t bytes);

  // Move-only handle of one piece; gives it back in its destructor. The SendBuffers outlives it.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    absl::Span<std::byte> bytes() const { return bytes_; }

   private:
    friend class SendBuffers;
    Lease(SendBuffers* buffers, absl::Span<std::byte> bytes) : buffers_(buffers), bytes_(bytes) {}
    SendBuffers* buffers_ = nullptr;
    absl::Span<std::byte> bytes_;
  };

  // Nothing where no gap is large enough; never waits. REQUIRES: bytes > 0.
  std::optional<Lease> Take(size_t bytes);

  size_t bytes_free() const { return gaps_.bytes_free(); }

 private:
  explicit SendBuffers(Buffer buffer);
  void GiveBack(absl::Span<std::byte> bytes);

  Buffer buffer_;
  GapList gaps_;
};

}  // namespace sluice::prefill
