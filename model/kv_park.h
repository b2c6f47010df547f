// Where pages wait whose request had to leave the KV pool for others: as many page images as fit into what the operator
// set, in this machine's memory or in a file, taken at start-up. Images are what the pool holds, byte for byte, so a
// request goes on from them as if it had never left; each has a CRC32C, and one that comes back otherwise is refused.
// Driven by the pool's thread, which waits for the copies: a page costs its bytes twice, out and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"
#include "model/kv_pool.h"

namespace sluice {

class KvPark;

// Move-only handle of parked pages; gives their images up in its destructor.
class ParkedPages {
 public:
  ParkedPages() = default;
  ParkedPages(ParkedPages&& other) noexcept;
  ParkedPages& operator=(ParkedPages&& other) noexcept;
  ~ParkedPages() { Release(); }

  int pages() const { return static_cast<int>(images_.size()); }
  void Release();

 private:
  friend class KvPark;
  struct Image {
    int32_t index = 0;
    uint32_t crc = 0;
  };
  KvPark* park_ = nullptr;
  std::vector<Image> images_;
};

struct KvParkOptions {
  size_t bytes = 0;    // of whole pages within it
  std::string folder;  // the file is made there, and has no name; empty: memory
};

class KvPark {
 public:
  // InvalidArgument where `bytes` hold no page, the system's words where the folder or its disk refuses.
  static StatusOr<std::unique_ptr<KvPark>> Create(const KvParkOptions& options, size_t page_bytes);

  // Copies pages of `pool`, which the caller may give up then. ResourceExhausted with both numbers where they do not
  // fit; Unavailable where the file cannot be written.
  StatusOr<ParkedPages> Park(const KvPool& pool, absl::Span<const PageIndex> pages);
  // Writes them into pages of `pool`, in the same order. DataLoss where an image is not what was parked, Unavailable
  // where the file cannot be read.
  Status Restore(const ParkedPages& parked, KvPool* pool, absl::Span<const PageIndex> pages);

  int pages_total() const;
  int pages_free() const;
  size_t memory_bytes() const;  // of this process's; those of a file are not

  ~KvPark();

 private:
  friend class ParkedPages;
  struct Impl;
  explicit KvPark(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
