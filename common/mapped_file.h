// A file mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "common/status.h"

namespace sluice {

class MappedFile {
 public:
  // NotFound or InvalidArgument with the path and the system's words.
  static StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Gives the resident pages wholly inside [data, data + bytes) back to the system; they are read again when touched.
  void DropResident(const void* data, size_t bytes) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_;
  size_t size_;
};

}  // namespace sluice
