#include "common/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice {

namespace {
constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t MappedBytes(size_t bytes) { return RoundUp(bytes, kPageBytes); }

// Maps `size` bytes from a multiple of the huge page's size on, or anywhere where they are fewer than one.
void* Map(size_t size) {
  const size_t slack = size >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapped = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED || slack == 0) return mapped;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = RoundUp(begin, kHugePageBytes);
  if (aligned != begin) munmap(mapped, aligned - begin);
  const uintptr_t tail = begin + slack - aligned;
  if (tail != 0) munmap(reinterpret_cast<void*>(aligned + size), tail);
  return reinterpret_cast<void*>(aligned);
}
}  // namespace

StatusOr<Buffer> Buffer::Create(size_t bytes, bool touch) {
  if (bytes == 0) return Buffer();
  const size_t size = MappedBytes(bytes);
  void* data = Map(size);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
  }
  // Weights and KV are read from end to end: with small pages, address translation costs as much as the reading. Where
  // the system grants no huge pages this changes nothing.
  if (size >= kHugePageBytes) madvise(data, size, MADV_HUGEPAGE);
  if (touch) {
    for (size_t at = 0; at < size; at += kPageBytes) static_cast<volatile std::byte*>(data)[at] = std::byte{0};
  }
  return Buffer(static_cast<std::byte*>(data), bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, MappedBytes(size_));
}

}  // namespace sluice
