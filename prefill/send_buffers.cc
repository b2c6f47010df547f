#include "prefill/send_buffers.h"

#include <utility>

namespace sluice::prefill {

StatusOr<std::unique_ptr<SendBuffers>> SendBuffers::Create(size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(GapList::RoundUp(bytes), /*touch=*/true));
  return std::unique_ptr<SendBuffers>(new SendBuffers(std::move(buffer)));
}

SendBuffers::SendBuffers(Buffer buffer) : buffer_(std::move(buffer)), gaps_(buffer_.size()) {}

SendBuffers::Lease::Lease(Lease&& other) noexcept
    : buffers_(std::exchange(other.buffers_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}

SendBuffers::Lease& SendBuffers::Lease::operator=(Lease&& other) noexcept {
  std::swap(buffers_, other.buffers_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SendBuffers::Lease::~Lease() {
  if (buffers_ != nullptr) buffers_->GiveBack(bytes_);
}

std::optional<SendBuffers::Lease> SendBuffers::Take(size_t bytes) {
  const std::optional<size_t> offset = gaps_.Take(bytes);
  if (!offset) return std::nullopt;
  return Lease(this, buffer_.span().subspan(*offset, bytes));
}

void SendBuffers::GiveBack(absl::Span<std::byte> bytes) {
  gaps_.GiveBack(static_cast<size_t>(bytes.data() - buffer_.data()), bytes.size());
}

}  // namespace sluice::prefill
