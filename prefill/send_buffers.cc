#include "prefill/send_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice::prefill {

namespace {

constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

StatusOr<std::unique_ptr<SendBuffers>> SendBuffers::Create(size_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(RoundUp(bytes), /*touch=*/true));
  return std::unique_ptr<SendBuffers>(new SendBuffers(std::move(buffer)));
}

SendBuffers::SendBuffers(Buffer buffer) : buffer_(std::move(buffer)), bytes_free_(buffer_.size()) {
  gaps_.emplace(0, buffer_.size());
}

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
  const size_t needed = RoundUp(bytes);
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [needed](const auto& g) { return g.second >= needed; });
  if (gap == gaps_.end()) return std::nullopt;
  const auto [offset, size] = *gap;
  gaps_.erase(gap);
  if (size > needed) gaps_.emplace(offset + needed, size - needed);
  bytes_free_ -= needed;
  return Lease(this, buffer_.span().subspan(offset, bytes));
}

void SendBuffers::GiveBack(absl::Span<std::byte> bytes) {
  const auto offset = static_cast<size_t>(bytes.data() - buffer_.data());
  const size_t size = RoundUp(bytes.size());
  bytes_free_ += size;
  auto gap = gaps_.emplace(offset, size).first;
  const auto after = std::next(gap);
  if (after != gaps_.end() && gap->first + gap->second == after->first) {
    gap->second += after->second;
    gaps_.erase(after);
  }
  if (gap == gaps_.begin()) return;
  const auto before = std::prev(gap);
  if (before->first + before->second != gap->first) return;
  before->second += gap->second;
  gaps_.erase(gap);
}

}  // namespace sluice::prefill
