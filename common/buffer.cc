#include "common/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice {

namespace {
constexpr size_t kPageBytes = 4096;

size_t MappedBytes(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }
}  // namespace

StatusOr<Buffer> Buffer::Create(size_t bytes, bool touch) {
  if (bytes == 0) return Buffer();
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (touch ? MAP_POPULATE : 0);
  void* data = mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
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
