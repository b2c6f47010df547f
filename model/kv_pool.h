// The paged KV pool: all KV memory of a process, taken and touched at start-up, leased in pages of `page_tokens` slots
// over all layers. Pages are counted, so that choices share the pages of their prompt, and prompts those of a prefix.
// Driven by one thread (the worker's); leases may be dropped only there.
//
// The part of a page that belongs to one layer holds, tensor by tensor (K, then V; or the latents), the codes of all
// its rows, [page_tokens, rows_per_token], and then their scales: the planes of a wire frame. Parts lie layer by layer,
// not page by page: attention reads one layer of all pages of a sequence, and pages leased together are neighbours
// there. With whole pages in a row, each part of a layer is in another 4 KiB page of the machine's, and a decode step
// at depth 4096 spent two thirds of its time on translating addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/status.h"
#include "model/kv_layout.h"

namespace sluice {

using PageIndex = int32_t;

class KvPool;

// What a lease is for. A page counts for the first of these purposes that it is held for. Held by caches alone, it may
// be had by whoever needs room; held until it is quiet, by nobody: something remote may still write into it.
enum class LeaseFor : uint8_t { kUse, kQuiet, kCache };
inline constexpr size_t kLeasePurposes = 3;

// Move-only handle of pages in sequence order; gives them back in its destructor.
class PageLease {
 public:
  PageLease() = default;
  PageLease(PageLease&& other) noexcept;
  PageLease& operator=(PageLease&& other) noexcept;
  ~PageLease();

  absl::Span<const PageIndex> pages() const { return pages_; }
  // Adds `pages` pages at the end. ResourceExhausted, with nothing changed, where the pool has fewer.
  Status Extend(int pages);
  // Puts free pages in the place of `pages` pages, which begin at page number `first`. ResourceExhausted, with nothing
  // changed, where the pool has fewer.
  Status Exchange(int first, int pages);
  void Release();

 private:
  friend class KvPool;
  KvPool* pool_ = nullptr;
  LeaseFor purpose_ = LeaseFor::kUse;
  std::vector<PageIndex> pages_;
};

struct KvPoolOptions {
  KvLayout layout;
  KvCodec codec = KvCodec::kBf16;
  int page_tokens = 16;
  int pages = 0;
};

// A tensor of one layer of one page: codes of [page_tokens, rows_per_token] rows in the store codec, and their scales.
struct KvPlane {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
};

class KvPool {
 public:
  static StatusOr<std::unique_ptr<KvPool>> Create(const KvPoolOptions& options);

  StatusOr<PageLease> Lease(int pages);  // ResourceExhausted with both numbers
  // A second lease for the first `tokens` tokens of `from`: whole pages are shared, a last partial page is copied.
  StatusOr<PageLease> Fork(const PageLease& from, int64_t tokens);
  // Pages of their own with the first `tokens` tokens of `from`: for a sequence that writes over slots of its prompt.
  StatusOr<PageLease> Copy(const PageLease& from, int64_t tokens);
  // Another lease of pages that are held already.
  PageLease Share(absl::Span<const PageIndex> pages, LeaseFor purpose);
  // True where the page is held `leases` times for use, and by nobody else.
  bool HeldOnlyForUse(PageIndex page, int leases) const;

  // A page's bytes, [page_bytes()]: every layer's part, one after the other.
  size_t page_bytes() const;
  void ReadPage(PageIndex page, absl::Span<std::byte> image) const;
  void WritePage(PageIndex page, absl::Span<const std::byte> image);

  // Total is free + leased + quarantined + cached, whatever happens.
  int pages_total() const;
  int pages_free() const;
  int pages_leased() const;            // held for use
  int pages_quarantined() const;       // held for nothing but quiet
  int pages_cached() const;            // held by caches alone
  int PagesFor(int64_t tokens) const;  // rounded up
  const KvPoolOptions& options() const;
  size_t bytes() const;

  // Where `layer` of `page` keeps the tensor. Any thread; who may touch the bytes is the callers' affair.
  KvPlane Plane(PageIndex page, int layer, int tensor) const;

  ~KvPool();

 private:
  friend class PageLease;
  struct Impl;
  void CopyPage(PageIndex from, PageIndex to);
  std::byte* Part(PageIndex page, int layer) const { return Plane(page, layer, 0).codes; }
  explicit KvPool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
