#include "model/kv_park.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "common/buffer.h"
#include "common/crc32c.h"

namespace sluice {

namespace {

Status Because(int error, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("parked KV: ", what, ": ", std::strerror(error)));
}

// A file without a name, of a size that the disk has promised.
class NamelessFile {
 public:
  static StatusOr<NamelessFile> Create(const std::string& folder, size_t bytes) {
    std::string path = folder + "/sluice-parked-kv.XXXXXX";
    NamelessFile file(mkostemp(path.data(), O_CLOEXEC));
    if (file.descriptor_ < 0) return Because(errno, absl::StrCat("a file in ", folder));
    unlink(path.c_str());
    const int error = posix_fallocate(file.descriptor_, 0, static_cast<off_t>(bytes));
    if (error != 0) return Because(error, absl::StrCat(bytes, " bytes in ", folder));
    return file;
  }
  NamelessFile(NamelessFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~NamelessFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  Status Write(size_t offset, absl::Span<const std::byte> bytes) const { return All(pwrite, "write", offset, bytes); }
  Status Read(size_t offset, absl::Span<std::byte> bytes) const { return All(pread, "read", offset, bytes); }

 private:
  explicit NamelessFile(int descriptor) : descriptor_(descriptor) {}

  template <typename Call, typename Bytes>
  Status All(Call call, absl::string_view name, size_t offset, Bytes bytes) const {
    while (!bytes.empty()) {
      const ssize_t done = call(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return Because(done < 0 ? errno : EIO, name);
      bytes.remove_prefix(static_cast<size_t>(done));
      offset += static_cast<size_t>(done);
    }
    return absl::OkStatus();
  }

  int descriptor_;
};

}  // namespace

struct KvPark::Impl {
  size_t page_bytes = 0;
  int pages = 0;
  Buffer memory;  // of all images; or of one, on its way to or from the file
  std::optional<NamelessFile> file;
  std::vector<int32_t> free_images;

  size_t Offset(int32_t image) const { return static_cast<size_t>(image) * page_bytes; }
  absl::Span<std::byte> Memory(int32_t image) { return memory.span().subspan(file ? 0 : Offset(image), page_bytes); }
};

ParkedPages::ParkedPages(ParkedPages&& other) noexcept
    : park_(std::exchange(other.park_, nullptr)), images_(std::exchange(other.images_, {})) {}

ParkedPages& ParkedPages::operator=(ParkedPages&& other) noexcept {
  if (this != &other) {
    Release();
    park_ = std::exchange(other.park_, nullptr);
    images_ = std::exchange(other.images_, {});
  }
  return *this;
}

void ParkedPages::Release() {
  for (const Image& image : images_) park_->impl_->free_images.push_back(image.index);
  images_.clear();
}

StatusOr<std::unique_ptr<KvPark>> KvPark::Create(const KvParkOptions& options, size_t page_bytes) {
  auto impl = std::make_unique<Impl>();
  impl->page_bytes = page_bytes;
  impl->pages = static_cast<int>(std::min<size_t>(options.bytes / page_bytes, std::numeric_limits<int32_t>::max()));
  if (impl->pages == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for parked KV of ", options.bytes, " bytes holds no page, which takes ", page_bytes));
  }
  const size_t all = static_cast<size_t>(impl->pages) * page_bytes;
  if (!options.folder.empty()) {
    SLUICE_ASSIGN_OR_RETURN(NamelessFile file, NamelessFile::Create(options.folder, all));
    impl->file.emplace(std::move(file));
  }
  SLUICE_ASSIGN_OR_RETURN(impl->memory, Buffer::Create(impl->file ? page_bytes : all, /*touch=*/true));
  for (int32_t image = impl->pages - 1; image >= 0; --image) impl->free_images.push_back(image);
  return std::unique_ptr<KvPark>(new KvPark(std::move(impl)));
}

KvPark::KvPark(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvPark::~KvPark() {
  SLUICE_CHECK(pages_free() == pages_total(), "parked pages outlive their park: ", pages_free(), " of ", pages_total(),
               " are free");
}

StatusOr<ParkedPages> KvPark::Park(const KvPool& pool, absl::Span<const PageIndex> pages) {
  SLUICE_CHECK(pool.page_bytes() == impl_->page_bytes);
  if (pages.size() > impl_->free_images.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("no room to park ", pages.size(), " KV pages, ", pages_free(),
                                                     " of ", pages_total(), " are free"));
  }
  ParkedPages parked;
  parked.park_ = this;
  for (const PageIndex page : pages) {
    const int32_t image = impl_->free_images.back();
    const absl::Span<std::byte> bytes = impl_->Memory(image);
    pool.ReadPage(page, bytes);
    if (impl_->file) SLUICE_RETURN_IF_ERROR(impl_->file->Write(impl_->Offset(image), bytes));
    impl_->free_images.pop_back();
    parked.images_.push_back({image, Crc32c(bytes.data(), bytes.size())});
  }
  return parked;
}

Status KvPark::Restore(const ParkedPages& parked, KvPool* pool, absl::Span<const PageIndex> pages) {
  SLUICE_CHECK(parked.park_ == this && pages.size() == parked.images_.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto [image, crc] = parked.images_[i];
    const absl::Span<std::byte> bytes = impl_->Memory(image);
    if (impl_->file) SLUICE_RETURN_IF_ERROR(impl_->file->Read(impl_->Offset(image), bytes));
    if (const uint32_t now = Crc32c(bytes.data(), bytes.size()); now != crc) {
      return absl::DataLossError(
          absl::StrCat("parked KV: page ", i, " of ", pages.size(), " has CRC32C ", now, ", it was parked with ", crc));
    }
    pool->WritePage(pages[i], bytes);
  }
  return absl::OkStatus();
}

int KvPark::pages_total() const { return impl_->pages; }
int KvPark::pages_free() const { return static_cast<int>(impl_->free_images.size()); }
size_t KvPark::memory_bytes() const { return impl_->memory.size(); }

}  // namespace sluice
