#include "decode/staging.h"

#include <iterator>
#include <utility>

namespace sluice::decode {

namespace {
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

StatusOr<std::unique_ptr<Staging>> Staging::Create(size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(RoundUp(bytes), /*touch=*/true));
  return std::unique_ptr<Staging>(new Staging(std::move(buffer)));
}

Staging::Staging(Buffer buffer) : buffer_(std::move(buffer)) { gaps_.emplace(0, buffer_.size()); }

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
  const size_t needed = RoundUp(bytes);
  absl::MutexLock lock(&mutex_);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [offset, size] = *gap;
    if (size < needed) continue;
    gaps_.erase(gap);
    if (size > needed) gaps_.emplace(offset + needed, size - needed);
    return Lease(this, buffer_.span().subspan(offset, bytes));
  }
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
  size_t bytes = 0;
  for (const auto& [offset, size] : gaps_) bytes += size;
  return bytes;
}

void Staging::GiveBack(absl::Span<std::byte> bytes) {
  size_t offset = static_cast<size_t>(bytes.data() - buffer_.data());
  size_t size = RoundUp(bytes.size());
  absl::MutexLock lock(&mutex_);
  const auto after = gaps_.lower_bound(offset);
  if (after != gaps_.end() && after->first == offset + size) {
    size += after->second;
    gaps_.erase(after);
  }
  const auto behind = gaps_.lower_bound(offset);
  if (behind != gaps_.begin() && std::prev(behind)->first + std::prev(behind)->second == offset) {
    std::prev(behind)->second += size;
  } else {
    gaps_.emplace(offset, size);
  }
}

}  // namespace sluice::decode
