// A cursor over bytes that came from outside: little-endian numbers and length-prefixed strings, each read checked
// against what is left before it happens. Strings and spans point into the bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/types/span.h"
#include "common/status.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little, "file formats here are little-endian");

class ByteReader {
 public:
  explicit ByteReader(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  // InvalidArgument names `what`, the offset, and how many bytes were needed and left.
  template <typename T>
  StatusOr<T> Read(std::string_view what) {
    SLUICE_ASSIGN_OR_RETURN(const auto bytes, Take(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  // A 64-bit length and that many bytes. Longer than `bytes_max` is an error.
  StatusOr<std::string_view> ReadString(std::string_view what, uint64_t bytes_max) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(what));
    if (length > bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(absl::string_view(what.data(), what.size()), " at byte ",
                                                     position_ - 8, " is ", length, " bytes long, at most ", bytes_max,
                                                     " are allowed"));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto bytes, Take(length, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  StatusOr<absl::Span<const std::byte>> Take(uint64_t bytes, std::string_view what) {
    if (bytes > remaining()) {
      return absl::InvalidArgumentError(absl::StrCat("truncated: ", absl::string_view(what.data(), what.size()),
                                                     " at byte ", position_, " needs ", bytes, " bytes, ", remaining(),
                                                     " are left"));
    }
    const auto taken = bytes_.subspan(position_, bytes);
    position_ += bytes;
    return taken;
  }

 private:
  absl::Span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace sluice
