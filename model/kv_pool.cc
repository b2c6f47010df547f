#include "model/kv_pool.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace sluice {

struct KvPool::Impl {
  KvPoolOptions options;
  Buffer memory;
  size_t part_bytes = 0;  // all tensors of one layer of one page
  size_t tensor_bytes = 0;
  size_t codes_bytes = 0;                                 // of a tensor
  std::vector<std::array<int32_t, kLeasePurposes>> held;  // per page: how many leases hold it for what
  std::array<int, kLeasePurposes> pages_for = {};         // pages by the first purpose that they are held for
  std::vector<PageIndex> free_pages;  // the last one given back goes first: it is the likeliest to be in a cache

  void Hold(PageIndex page, LeaseFor purpose) { Change(page, purpose, +1); }
  void Drop(PageIndex page, LeaseFor purpose) {
    Change(page, purpose, -1);
    if (!IsHeld(page)) free_pages.push_back(page);
  }
  bool IsHeld(PageIndex page) const { return FirstPurpose(page) < kLeasePurposes; }

 private:
  size_t FirstPurpose(PageIndex page) const {
    const auto& by_purpose = held[static_cast<size_t>(page)];
    return static_cast<size_t>(
        std::find_if(by_purpose.begin(), by_purpose.end(), [](int32_t leases) { return leases > 0; }) -
        by_purpose.begin());
  }
  void Change(PageIndex page, LeaseFor purpose, int by) {
    if (const size_t before = FirstPurpose(page); before < kLeasePurposes) --pages_for[before];
    held[static_cast<size_t>(page)][static_cast<size_t>(purpose)] += by;
    if (const size_t after = FirstPurpose(page); after < kLeasePurposes) ++pages_for[after];
  }
};

PageLease::PageLease(PageLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), purpose_(other.purpose_), pages_(std::exchange(other.pages_, {})) {}

PageLease& PageLease::operator=(PageLease&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    purpose_ = other.purpose_;
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

PageLease::~PageLease() { Release(); }

void PageLease::Release() {
  for (const PageIndex page : pages_) pool_->impl_->Drop(page, purpose_);
  pages_.clear();
}

Status PageLease::Extend(int pages) {
  SLUICE_CHECK(pool_ != nullptr && pages >= 0, "pages ", pages);
  KvPool::Impl& pool = *pool_->impl_;
  if (static_cast<size_t>(pages) > pool.free_pages.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("no room: ", pages, " KV pages needed, ", pool.free_pages.size(),
                                                     " of ", pool.options.pages, " free"));
  }
  for (int i = 0; i < pages; ++i) {
    const PageIndex page = pool.free_pages.back();
    pool.free_pages.pop_back();
    pool.Hold(page, purpose_);
    pages_.push_back(page);
  }
  return absl::OkStatus();
}

Status PageLease::Exchange(int first, int pages) {
  SLUICE_CHECK(pool_ != nullptr && first >= 0 && pages >= 0 && first + pages <= static_cast<int>(pages_.size()));
  PageLease given;
  given.pool_ = pool_;
  given.purpose_ = purpose_;
  SLUICE_RETURN_IF_ERROR(given.Extend(pages));
  std::swap_ranges(given.pages_.begin(), given.pages_.end(), pages_.begin() + first);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<KvPool>> KvPool::Create(const KvPoolOptions& options) {
  const KvLayout& layout = options.layout;
  if (options.pages <= 0 || options.page_tokens <= 0 || layout.layers <= 0 || layout.rows_per_token() <= 0 ||
      layout.row().channels <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("a KV pool needs positive sizes: ", options.pages, " pages of ",
                                                   options.page_tokens, " tokens, ", ToString(layout)));
  }
  SLUICE_RETURN_IF_ERROR(CheckCodec(layout, options.codec));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->part_bytes = LayerBytes(layout, options.codec, options.page_tokens);
  const PlaneBytes tensor = TensorBytes(layout, options.codec, options.page_tokens);
  impl->tensor_bytes = tensor.total();
  impl->codes_bytes = tensor.codes;
  const size_t bytes = Bytes(layout, options.codec, int64_t{options.page_tokens} * options.pages);
  SLUICE_ASSIGN_OR_RETURN(impl->memory, Buffer::Create(bytes, /*touch=*/true));
  impl->held.assign(static_cast<size_t>(options.pages), {});
  impl->free_pages.reserve(static_cast<size_t>(options.pages));
  for (PageIndex page = options.pages - 1; page >= 0; --page) impl->free_pages.push_back(page);
  return std::unique_ptr<KvPool>(new KvPool(std::move(impl)));
}

KvPool::KvPool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvPool::~KvPool() {
  SLUICE_CHECK(pages_free() == pages_total(), "a lease outlives its pool: ", pages_free(), " of ", pages_total(),
               " pages are back");
}

StatusOr<PageLease> KvPool::Lease(int pages) {
  PageLease lease;
  lease.pool_ = this;
  SLUICE_RETURN_IF_ERROR(lease.Extend(pages));
  return lease;
}

StatusOr<PageLease> KvPool::Fork(const PageLease& from, int64_t tokens) {
  SLUICE_CHECK(from.pool_ == this && PagesFor(tokens) <= static_cast<int>(from.pages_.size()), "tokens ", tokens);
  const size_t whole = static_cast<size_t>(tokens / impl_->options.page_tokens);
  const bool partial = tokens % impl_->options.page_tokens != 0;
  SLUICE_ASSIGN_OR_RETURN(PageLease lease, Lease(partial ? 1 : 0));
  if (partial) CopyPage(from.pages_[whole], lease.pages_[0]);
  lease.pages_.insert(lease.pages_.begin(), from.pages_.begin(), from.pages_.begin() + static_cast<ptrdiff_t>(whole));
  for (size_t i = 0; i < whole; ++i) impl_->Hold(lease.pages_[i], LeaseFor::kUse);
  return lease;
}

StatusOr<PageLease> KvPool::Copy(const PageLease& from, int64_t tokens) {
  const auto pages = static_cast<size_t>(PagesFor(tokens));
  SLUICE_CHECK(from.pool_ == this && pages <= from.pages_.size(), "tokens ", tokens);
  SLUICE_ASSIGN_OR_RETURN(PageLease lease, Lease(static_cast<int>(pages)));
  for (size_t i = 0; i < pages; ++i) CopyPage(from.pages_[i], lease.pages_[i]);
  return lease;
}

void KvPool::CopyPage(PageIndex from, PageIndex to) {
  for (int layer = 0; layer < impl_->options.layout.layers; ++layer) {
    std::memcpy(Part(to, layer), Part(from, layer), impl_->part_bytes);
  }
}

bool KvPool::HeldOnlyForUse(PageIndex page, int leases) const {
  std::array<int32_t, kLeasePurposes> only = {};
  only[static_cast<size_t>(LeaseFor::kUse)] = leases;
  return impl_->held[static_cast<size_t>(page)] == only;
}

size_t KvPool::page_bytes() const { return impl_->part_bytes * static_cast<size_t>(impl_->options.layout.layers); }

void KvPool::ReadPage(PageIndex page, absl::Span<std::byte> image) const {
  SLUICE_CHECK(image.size() == page_bytes(), "image of ", image.size(), " bytes, a page has ", page_bytes());
  for (int layer = 0; layer < impl_->options.layout.layers; ++layer) {
    std::memcpy(image.data() + static_cast<size_t>(layer) * impl_->part_bytes, Part(page, layer), impl_->part_bytes);
  }
}

void KvPool::WritePage(PageIndex page, absl::Span<const std::byte> image) {
  SLUICE_CHECK(image.size() == page_bytes(), "image of ", image.size(), " bytes, a page has ", page_bytes());
  for (int layer = 0; layer < impl_->options.layout.layers; ++layer) {
    std::memcpy(Part(page, layer), image.data() + static_cast<size_t>(layer) * impl_->part_bytes, impl_->part_bytes);
  }
}

PageLease KvPool::Share(absl::Span<const PageIndex> pages, LeaseFor purpose) {
  PageLease lease;
  lease.pool_ = this;
  lease.purpose_ = purpose;
  for (const PageIndex page : pages) {
    SLUICE_CHECK(page >= 0 && page < pages_total() && impl_->IsHeld(page),
                 "a page that nobody holds cannot be shared: ", page);
    impl_->Hold(page, purpose);
    lease.pages_.push_back(page);
  }
  return lease;
}

int KvPool::pages_total() const { return impl_->options.pages; }
int KvPool::pages_free() const { return static_cast<int>(impl_->free_pages.size()); }
int KvPool::pages_leased() const { return impl_->pages_for[static_cast<size_t>(LeaseFor::kUse)]; }
int KvPool::pages_quarantined() const { return impl_->pages_for[static_cast<size_t>(LeaseFor::kQuiet)]; }
int KvPool::pages_cached() const { return impl_->pages_for[static_cast<size_t>(LeaseFor::kCache)]; }

int KvPool::PagesFor(int64_t tokens) const {
  return static_cast<int>((tokens + impl_->options.page_tokens - 1) / impl_->options.page_tokens);
}

const KvPoolOptions& KvPool::options() const { return impl_->options; }
size_t KvPool::bytes() const { return impl_->memory.size(); }

KvPlane KvPool::Plane(PageIndex page, int layer, int tensor) const {
  const auto part = static_cast<size_t>(layer) * static_cast<size_t>(impl_->options.pages) + static_cast<size_t>(page);
  std::byte* const codes =
      impl_->memory.data() + part * impl_->part_bytes + static_cast<size_t>(tensor) * impl_->tensor_bytes;
  return {codes, codes + impl_->codes_bytes};
}

}  // namespace sluice
