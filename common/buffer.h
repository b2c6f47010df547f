// Buffer owns bytes on a device; views point and never own. Only the CPU device exists so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/status.h"

namespace sluice {

// Move-only block of memory, 64-byte aligned or better, zeroed.
class Buffer {
 public:
  Buffer() = default;

  // Maps and zeroes `bytes`. With `touch` every page is faulted in now, so that memory is taken at start-up and not
  // under load. ResourceExhausted names the size if the system refuses.
  static StatusOr<Buffer> Create(size_t bytes, bool touch = false);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  absl::Span<std::byte> span() { return {data_, size_}; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  Buffer(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A row-major matrix somewhere else: [rows, cols], `stride_bytes` from row to row. Quantised rows are whole blocks. An
// element of kF8E4M3 is its code times the scale of its block.
struct ConstMatrixView {
  const void* data = nullptr;
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  size_t stride_bytes = 0;
  const float* block_scales = nullptr;  // kF8E4M3: [rows / kF8BlockSize, cols / kF8BlockSize], rounded up

  const void* row(int64_t r) const { return static_cast<const char*>(data) + static_cast<size_t>(r) * stride_bytes; }
  size_t bytes() const { return static_cast<size_t>(rows) * stride_bytes; }
};

}  // namespace sluice
