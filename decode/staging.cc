#include "decode/staging.h"

#include <utility>

namespace sluice::decode {

StatusOr<std::unique_ptr<Staging>> Staging::Create(size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(GapList::RoundUp(bytes), /*touch=*/true));
  return std::unique_ptr<Staging>(new Staging(std::move(buffer)));
}

Staging::Staging(Buffer buffer) : buffer_(std::move(buffer)), gaps_(buffer_.size()) {}

Staging::Lease::Lease(Lease&& other) noexcept
    : staging_(std::exchange(other.staging_, nullptr)),
      heap_(std::move(other.heap_)),
      bytes_(std::exchange(other.bytes_, {})) {}

Staging::Lease& Staging::Lease::operator=(Lease&& other) noexcept {
  std::swap(staging_, other.staging_);
  std::swap(heap_, other.heap_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Staging::Lease::~Lease() {
  if (staging_ != nullptr && heap_ == nullptr && !bytes_.empty()) staging_->GiveBack(bytes_);
}

Staging::Lease Staging::Take(size_t bytes) {
  if (bytes == 0) return Lease(this, {});
  absl::MutexLock lock(&mutex_);
  if (const std::optional<size_t> offset = gaps_.Take(bytes))
    return Lease(this, buffer_.span().subspan(*offset, bytes));
  ++pieces_from_heap_;
  Lease lease(this, {});
  lease.heap_ = std::make_unique<std::byte[]>(bytes);
  lease.bytes_ = {lease.heap_.get(), bytes};
  return lease;
}

uint64_t Staging::pieces_from_heap() const {
  absl::MutexLock lock(&mutex_);
  return pieces_from_heap_;
}

size_t Staging::bytes_free() const {
  absl::MutexLock lock(&mutex_);
  return gaps_.bytes_free();
}

void Staging::GiveBack(absl::Span<std::byte> bytes) {
  absl::MutexLock lock(&mutex_);
  gaps_.GiveBack(static_cast<size_t>(bytes.data() - buffer_.data()), bytes.size());
}

}  // namespace sluice::decode
