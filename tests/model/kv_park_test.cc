#include "model/kv_park.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/parked_file.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr KvLayout kLayout = KvLayout::Gqa(3, 2, 8);

std::unique_ptr<KvPool> MakePool(int pages) {
  return *KvPool::Create({.layout = kLayout, .page_tokens = 4, .pages = pages});
}

void Fill(KvPool& pool, PageIndex page, uint64_t salt) {
  std::vector<std::byte> image(pool.page_bytes());
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>(RandomBits(salt, i));
  pool.WritePage(page, image);
}

std::vector<std::byte> Image(const KvPool& pool, PageIndex page) {
  std::vector<std::byte> image(pool.page_bytes());
  pool.ReadPage(page, absl::MakeSpan(image));
  return image;
}

TEST(KvPoolPages, AnImageIsAllThatThePlanesHold) {
  const auto pool = MakePool(3);
  EXPECT_EQ(pool->page_bytes() * 3, pool->bytes());
  const PageLease lease = *pool->Lease(3);
  for (const PageIndex page : lease.pages()) Fill(*pool, page, static_cast<uint64_t>(page));
  const std::vector<std::byte> before = Image(*pool, 1);
  Fill(*pool, 0, 77);
  Fill(*pool, 2, 78);
  EXPECT_EQ(Image(*pool, 1), before);
  // Whatever a plane's byte is changed to shows in the image.
  for (int layer = 0; layer < kLayout.layers; ++layer) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      const std::vector<std::byte> without = Image(*pool, 1);
      *pool->Plane(1, layer, tensor).codes ^= std::byte{1};
      EXPECT_NE(Image(*pool, 1), without);
    }
  }
}

// In memory and in a file.
class KvParkIn : public testing::TestWithParam<bool> {
 protected:
  KvParkIn() {
    if (GetParam()) {
      folder_ = fs::path(testing::TempDir()) / ("park" + std::to_string(getpid()));
      fs::create_directory(folder_);
    }
  }
  ~KvParkIn() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  std::unique_ptr<KvPark> MakePark(int pages) {
    // Not quite one page more.
    return *KvPark::Create({.bytes = pool_->page_bytes() * static_cast<size_t>(pages + 1) - 1, .folder = folder_},
                           pool_->page_bytes());
  }

  fs::path folder_;
  std::unique_ptr<KvPool> pool_ = MakePool(8);
};

INSTANTIATE_TEST_SUITE_P(Kinds, KvParkIn, testing::Bool(),
                         [](const auto& info) { return info.param ? "AFile" : "Memory"; });

TEST_P(KvParkIn, PagesComeBackByteForByteWhereverTheyAreRestored) {
  const auto park = MakePark(5);
  EXPECT_EQ(park->pages_total(), 5);
  std::vector<std::vector<std::byte>> images;
  ParkedPages parked;
  {
    const PageLease lease = *pool_->Lease(4);
    for (const PageIndex page : lease.pages()) {
      Fill(*pool_, page, 100 + static_cast<uint64_t>(page));
      images.push_back(Image(*pool_, page));
    }
    parked = *park->Park(*pool_, lease.pages());
  }
  EXPECT_EQ(parked.pages(), 4);
  EXPECT_EQ(park->pages_free(), 1);
  const PageLease all = *pool_->Lease(8);
  for (const PageIndex page : all.pages()) Fill(*pool_, page, 7);
  const std::vector<PageIndex> others = {6, 0, 3, 5};
  ASSERT_TRUE(park->Restore(parked, pool_.get(), others).ok());
  for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(Image(*pool_, others[i]), images[i]) << i;
  parked.Release();
  EXPECT_EQ(park->pages_free(), 5);
}

TEST_P(KvParkIn, RefusesMoreThanIsFreeNamingBothNumbersAndChangesNothing) {
  const auto park = MakePark(3);
  const PageLease lease = *pool_->Lease(4);
  const ParkedPages two = *park->Park(*pool_, lease.pages().subspan(0, 2));
  const Status refused = park->Park(*pool_, lease.pages().subspan(2, 2)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("park 2 KV pages, 1 of 3"));
  EXPECT_EQ(park->pages_free(), 1);
  EXPECT_TRUE(park->Park(*pool_, lease.pages().subspan(2, 1)).ok());
}

TEST_P(KvParkIn, AMovedHandleGivesItsImagesUpOnce) {
  const auto park = MakePark(4);
  const PageLease lease = *pool_->Lease(2);
  ParkedPages a = *park->Park(*pool_, lease.pages());
  ParkedPages b = std::move(a);
  EXPECT_EQ(park->pages_free(), 2);
  b = *park->Park(*pool_, lease.pages().subspan(0, 1));
  EXPECT_EQ(park->pages_free(), 3);
  b.Release();
  b.Release();
  EXPECT_EQ(park->pages_free(), 4);
}

TEST_P(KvParkIn, RoomForNoPageIsAnErrorThatNamesBothSizes) {
  const Status refused = KvPark::Create({.bytes = 100, .folder = folder_}, pool_->page_bytes()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("100"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(pool_->page_bytes())));
}

class KvParkFile : public KvParkIn {};

INSTANTIATE_TEST_SUITE_P(Kinds, KvParkFile, testing::Values(true), [](const auto&) { return "AFile"; });

TEST_P(KvParkFile, TakesOnePageOfMemoryAndLeavesNoFile) {
  const auto park = MakePark(5);
  EXPECT_EQ(park->memory_bytes(), pool_->page_bytes());
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_P(KvParkFile, AChangedByteIsDataLossAndNamesThePage) {
  const auto park = MakePark(5);
  const PageLease lease = *pool_->Lease(3);
  for (const PageIndex page : lease.pages()) Fill(*pool_, page, 3);
  const ParkedPages parked = *park->Park(*pool_, lease.pages());
  const int file = ParkedFileDescriptor();
  ASSERT_GE(file, 0);
  const char other = 0x55;
  ASSERT_EQ(pwrite(file, &other, 1, static_cast<off_t>(pool_->page_bytes() + 9)), 1);
  const Status restored = park->Restore(parked, pool_.get(), lease.pages());
  EXPECT_EQ(restored.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(restored.message()), HasSubstr("page 1 of 3"));
}

TEST_P(KvParkFile, AFileThatEndsEarlyIsAnErrorAndNoZeros) {
  const auto park = MakePark(5);
  const PageLease lease = *pool_->Lease(3);
  const ParkedPages parked = *park->Park(*pool_, lease.pages());
  ASSERT_EQ(ftruncate(ParkedFileDescriptor(), static_cast<off_t>(pool_->page_bytes())), 0);
  EXPECT_EQ(park->Restore(parked, pool_.get(), lease.pages()).code(), absl::StatusCode::kUnavailable);
}

TEST_P(KvParkFile, AFolderThatIsNotThereIsNamed) {
  const Status refused =
      KvPark::Create({.bytes = 1 << 20, .folder = folder_ / "nowhere"}, pool_->page_bytes()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace sluice
