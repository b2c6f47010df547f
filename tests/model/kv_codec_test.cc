#include "model/kv_codec.h"

#include <cstring>
#include <vector>

#include "common/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr KvLayout kLayout = {.layers = 3, .kv_heads = 2, .head_dim = 16};
constexpr int kPageTokens = 4;
constexpr int64_t kTokens = 15;

std::unique_ptr<KvPool> Pool(KvCodec codec, const KvLayout& layout = kLayout) {
  return *KvPool::Create({.layout = layout, .codec = codec, .page_tokens = kPageTokens, .pages = 12});
}

// A finite value that says where it belongs.
float Value(bool is_v, int layer, int64_t token, int element) {
  return static_cast<float>(is_v ? -1 : 1) * static_cast<float>(layer * 64 + token * 4 + element % 4 + 1);
}

class KvCodecTest : public ::testing::TestWithParam<KvCodec> {
 protected:
  void SetUp() override {
    pool_ = Pool(GetParam());
    // Pages in neither ascending nor contiguous order.
    auto unused = *pool_->Lease(1);
    lease_ = *pool_->Lease(2);
    auto other = *pool_->Lease(1);
    unused.Release();
    ASSERT_TRUE(lease_.Extend(2).ok());
  }

  size_t ElementBytes() const { return GetParam() == KvCodec::kF32 ? 4 : 2; }
  size_t TokenBytes() const { return ElementBytes() * 32; }

  void StoreElement(std::byte* to, float value) const {
    const uint16_t half = F32ToBf16(value);
    if (GetParam() == KvCodec::kF32) {
      std::memcpy(to, &value, 4);
    } else {
      std::memcpy(to, &half, 2);
    }
  }

  void FillPool() {
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (int64_t t = 0; t < kTokens; ++t) {
        const PageIndex page = lease_.pages()[static_cast<size_t>(t / kPageTokens)];
        const size_t at = static_cast<size_t>(t % kPageTokens) * TokenBytes();
        for (int e = 0; e < 32; ++e) {
          StoreElement(pool_->K(page, layer) + at + static_cast<size_t>(e) * ElementBytes(), Value(false, layer, t, e));
          StoreElement(pool_->V(page, layer) + at + static_cast<size_t>(e) * ElementBytes(), Value(true, layer, t, e));
        }
      }
    }
  }

  std::vector<std::byte> ExpectedBody(const KvRange& range) const {
    std::vector<std::byte> body;
    for (const bool is_v : {false, true}) {
      for (int64_t t = range.first_token; t < range.first_token + range.tokens; ++t) {
        for (int e = 0; e < 32; ++e) {
          body.resize(body.size() + ElementBytes());
          StoreElement(body.data() + body.size() - ElementBytes(), Value(is_v, range.layer, t, e));
        }
      }
    }
    return body;
  }

  std::unique_ptr<KvPool> pool_;
  PageLease lease_;
};

TEST_P(KvCodecTest, ABodyIsTheRowsOfKThenOfVForEveryRange) {
  FillPool();
  for (int64_t first = 0; first < kTokens; ++first) {
    for (int64_t tokens = 1; tokens <= kTokens - first; ++tokens) {
      const KvRange range = {.layer = 1, .first_token = first, .tokens = tokens};
      std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), tokens));
      const auto nonfinite = GatherBody(*pool_, lease_.pages(), range, absl::MakeSpan(body));
      ASSERT_TRUE(nonfinite.ok()) << nonfinite.status();
      EXPECT_EQ(*nonfinite, 0);
      EXPECT_EQ(body, ExpectedBody(range)) << first << " + " << tokens;
    }
  }
}

TEST_P(KvCodecTest, ScatteringWritesExactlyTheRange) {
  FillPool();
  for (const auto& [first, tokens] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {3, 2}, {2, 11}, {4, 4}, {0, 15}}) {
    const KvRange range = {.layer = 2, .first_token = first, .tokens = tokens};
    auto target = Pool(GetParam());
    auto pages = *target->Lease(4);
    ASSERT_TRUE(ScatterBody(*target, pages.pages(), range, ExpectedBody(range)).ok());
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<std::byte> row(BodyBytes(kLayout, GetParam(), 1));
        ASSERT_TRUE(GatherBody(*target, pages.pages(), {layer, t, 1}, absl::MakeSpan(row)).ok());
        const bool inside = layer == 2 && t >= first && t < first + tokens;
        EXPECT_EQ(row, inside ? ExpectedBody({layer, t, 1}) : std::vector<std::byte>(row.size())) << layer << " " << t;
      }
    }
  }
}

TEST_P(KvCodecTest, RowsWithNanOrInfinityAreCounted) {
  FillPool();
  const PageIndex page = lease_.pages()[1];
  StoreElement(pool_->K(page, 0), std::numeric_limits<float>::quiet_NaN());
  StoreElement(pool_->K(page, 0) + 3 * ElementBytes(), std::numeric_limits<float>::quiet_NaN());
  StoreElement(pool_->V(page, 0) + 16 * ElementBytes(), -std::numeric_limits<float>::infinity());
  std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), 3));
  EXPECT_EQ(*GatherBody(*pool_, lease_.pages(), {0, 3, 3}, absl::MakeSpan(body)), 2);
  EXPECT_EQ(*GatherBody(*pool_, lease_.pages(), {0, 5, 3}, absl::MakeSpan(body)), 0);
}

TEST_P(KvCodecTest, WhatDoesNotFitIsRefusedWithBothNumbers) {
  std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), 2));
  const auto error = [&](const KvRange& range, size_t bytes) {
    body.resize(bytes);
    const Status gathered = GatherBody(*pool_, lease_.pages(), range, absl::MakeSpan(body)).status();
    const Status scattered = ScatterBody(*pool_, lease_.pages(), range, body);
    EXPECT_EQ(gathered.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(gathered, scattered);
    return std::string(gathered.message());
  };
  const size_t bytes = body.size();
  EXPECT_THAT(error({3, 0, 2}, bytes), HasSubstr("layer 3 of 3"));
  EXPECT_THAT(error({-1, 0, 2}, bytes), HasSubstr("layer -1 of 3"));
  EXPECT_THAT(error({0, 15, 2}, bytes), HasSubstr("2 tokens from 15 in pages for 16"));
  EXPECT_THAT(error({0, -1, 2}, bytes), HasSubstr("from -1"));
  EXPECT_THAT(error({0, 0, 0}, 0), HasSubstr("0 tokens"));
  EXPECT_THAT(error({0, 1, std::numeric_limits<int64_t>::max()}, bytes), HasSubstr("in pages for 16"));
  EXPECT_THAT(error({0, 0, 2}, bytes - 1), HasSubstr(absl::StrCat(bytes - 1, " bytes, expected ", bytes)));
}

INSTANTIATE_TEST_SUITE_P(Codecs, KvCodecTest, ::testing::Values(KvCodec::kBf16, KvCodec::kF32),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(KvCodec, VBeginsAtAMultipleOfSixteenAfterZeros) {
  const KvLayout narrow = {.layers = 1, .kv_heads = 1, .head_dim = 2};
  EXPECT_EQ(BodyBytes(narrow, KvCodec::kBf16, 3), 16u + 12u);
  auto pool = Pool(KvCodec::kBf16, narrow);
  const auto lease = *pool->Lease(1);
  std::memset(pool->K(lease.pages()[0], 0), 0x11, 16);
  std::memset(pool->V(lease.pages()[0], 0), 0x22, 16);
  std::vector<std::byte> body(28, std::byte{0xFF});
  ASSERT_TRUE(GatherBody(*pool, lease.pages(), {0, 0, 3}, absl::MakeSpan(body)).ok());
  EXPECT_THAT(std::vector<std::byte>(body.begin(), body.begin() + 12), ::testing::Each(std::byte{0x11}));
  EXPECT_THAT(std::vector<std::byte>(body.begin() + 12, body.begin() + 16), ::testing::Each(std::byte{0}));
  EXPECT_THAT(std::vector<std::byte>(body.begin() + 16, body.end()), ::testing::Each(std::byte{0x22}));
}

TEST(KvCodec, HeadersThatTheReceiverDoesNotExpectAreRefusedWithBothValues) {
  const KvFrameHeader good = {.codec = KvCodec::kBf16,
                              .layer = 2,
                              .first_token = 8,
                              .tokens = 4,
                              .payload_bytes = BodyBytes(kLayout, KvCodec::kBf16, 4),
                              .layout_hash = 0xAB};
  const auto check = [](const KvFrameHeader& h) { return CheckKvHeader(h, kLayout, KvCodec::kBf16, 0xAB, 12); };
  EXPECT_TRUE(check(good).ok()) << check(good);
  const auto refused = [&](auto change) {
    KvFrameHeader h = good;
    change(h);
    return std::string(check(h).message());
  };
  EXPECT_THAT(refused([](auto& h) { h.codec = KvCodec::kF32; }), HasSubstr("wire codec f32, expected bf16"));
  EXPECT_THAT(refused([](auto& h) { h.layout_hash = 0xAC; }), HasSubstr("layout hash ac, expected ab"));
  EXPECT_THAT(refused([](auto& h) { h.layer = 3; }), HasSubstr("layer 3 of 3"));
  EXPECT_THAT(refused([](auto& h) { h.first_token = 9; }), HasSubstr("ends at token 13 of a prompt of 12"));
  EXPECT_THAT(refused([](auto& h) { h.first_token = 0xFFFFFFFF; }), HasSubstr("of a prompt of 12"));
  EXPECT_THAT(refused([](auto& h) { ++h.payload_bytes; }), HasSubstr("for 4 tokens"));
}

}  // namespace
}  // namespace sluice
