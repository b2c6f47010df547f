#include "model/kv_body.h"

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

class KvBodyTest : public ::testing::TestWithParam<KvCodec> {
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
          StoreElement(pool_->Plane(page, layer, 0).codes + at + static_cast<size_t>(e) * ElementBytes(),
                       Value(false, layer, t, e));
          StoreElement(pool_->Plane(page, layer, 1).codes + at + static_cast<size_t>(e) * ElementBytes(),
                       Value(true, layer, t, e));
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

TEST_P(KvBodyTest, ABodyIsTheRowsOfKThenOfVForEveryRange) {
  FillPool();
  for (int64_t first = 0; first < kTokens; ++first) {
    for (int64_t tokens = 1; tokens <= kTokens - first; ++tokens) {
      const KvRange range = {.layer = 1, .first_token = first, .tokens = tokens};
      std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), 1, tokens));
      const auto counts = EncodeBody(*pool_, lease_.pages(), range, GetParam(), absl::MakeSpan(body));
      ASSERT_TRUE(counts.ok()) << counts.status();
      EXPECT_EQ(counts->nonfinite_rows, 0);
      EXPECT_EQ(body, ExpectedBody(range)) << first << " + " << tokens;
    }
  }
}

TEST_P(KvBodyTest, ScatteringWritesExactlyTheRange) {
  FillPool();
  for (const auto& [first, tokens] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {3, 2}, {2, 11}, {4, 4}, {0, 15}}) {
    const KvRange range = {.layer = 2, .first_token = first, .tokens = tokens};
    auto target = Pool(GetParam());
    auto pages = *target->Lease(4);
    ASSERT_TRUE(DecodeBody(*target, pages.pages(), range, GetParam(), ExpectedBody(range)).ok());
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<std::byte> row(BodyBytes(kLayout, GetParam(), 1, 1));
        ASSERT_TRUE(EncodeBody(*target, pages.pages(), {layer, 1, t, 1}, GetParam(), absl::MakeSpan(row)).ok());
        const bool inside = layer == 2 && t >= first && t < first + tokens;
        EXPECT_EQ(row, inside ? ExpectedBody({layer, 1, t, 1}) : std::vector<std::byte>(row.size()))
            << layer << " " << t;
      }
    }
  }
}

TEST_P(KvBodyTest, RowsWithNanOrInfinityAreCounted) {
  FillPool();
  const PageIndex page = lease_.pages()[1];
  StoreElement(pool_->Plane(page, 0, 0).codes, std::numeric_limits<float>::quiet_NaN());
  StoreElement(pool_->Plane(page, 0, 0).codes + 3 * ElementBytes(), std::numeric_limits<float>::quiet_NaN());
  StoreElement(pool_->Plane(page, 0, 1).codes + 16 * ElementBytes(), -std::numeric_limits<float>::infinity());
  std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), 1, 3));
  EXPECT_EQ(EncodeBody(*pool_, lease_.pages(), {0, 1, 3, 3}, GetParam(), absl::MakeSpan(body))->nonfinite_rows, 2);
  EXPECT_EQ(EncodeBody(*pool_, lease_.pages(), {0, 1, 5, 3}, GetParam(), absl::MakeSpan(body))->nonfinite_rows, 0);
}

TEST_P(KvBodyTest, WhatDoesNotFitIsRefusedWithBothNumbers) {
  std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), 1, 2));
  const auto error = [&](const KvRange& range, size_t bytes) {
    body.resize(bytes);
    const Status gathered = EncodeBody(*pool_, lease_.pages(), range, GetParam(), absl::MakeSpan(body)).status();
    const Status scattered = DecodeBody(*pool_, lease_.pages(), range, GetParam(), body).status();
    EXPECT_EQ(gathered.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(gathered, scattered);
    return std::string(gathered.message());
  };
  const size_t bytes = body.size();
  EXPECT_THAT(error({3, 1, 0, 2}, bytes), HasSubstr("1 layers from layer 3 of 3"));
  EXPECT_THAT(error({-1, 1, 0, 2}, bytes), HasSubstr("1 layers from layer -1 of 3"));
  EXPECT_THAT(error({0, 1, 15, 2}, bytes), HasSubstr("2 tokens from 15 in pages for 16"));
  EXPECT_THAT(error({0, 1, -1, 2}, bytes), HasSubstr("from -1"));
  EXPECT_THAT(error({0, 1, 0, 0}, 0), HasSubstr("0 tokens"));
  EXPECT_THAT(error({0, 1, 1, std::numeric_limits<int64_t>::max()}, bytes), HasSubstr("in pages for 16"));
  EXPECT_THAT(error({0, 1, 0, 2}, bytes - 1), HasSubstr(absl::StrCat(bytes - 1, " bytes, expected ", bytes)));
}

TEST_P(KvBodyTest, LayersFollowEachOtherAtMultiplesOfSixteen) {
  FillPool();
  const KvRange both = {.layer = 1, .layers = 2, .first_token = 3, .tokens = 5};
  std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), 2, 5));
  ASSERT_TRUE(EncodeBody(*pool_, lease_.pages(), both, GetParam(), absl::MakeSpan(body)).ok());
  const size_t one = BodyBytes(kLayout, GetParam(), 1, 5);
  const size_t second = (one + 15) / 16 * 16;
  ASSERT_EQ(body.size(), second + one);
  EXPECT_EQ(std::vector<std::byte>(body.begin(), body.begin() + static_cast<ptrdiff_t>(one)),
            ExpectedBody({1, 1, 3, 5}));
  EXPECT_EQ(std::vector<std::byte>(body.begin() + static_cast<ptrdiff_t>(second), body.end()),
            ExpectedBody({2, 1, 3, 5}));
}

TEST_P(KvBodyTest, PiecesAreWhereTheBodyLies) {
  FillPool();
  for (const KvRange range : {KvRange{0, 3, 0, 15}, KvRange{1, 1, 3, 2}, KvRange{0, 2, 5, 9}}) {
    std::vector<std::byte> body(BodyBytes(kLayout, GetParam(), range.layers, range.tokens));
    ASSERT_TRUE(EncodeBody(*pool_, lease_.pages(), range, GetParam(), absl::MakeSpan(body)).ok());
    std::vector<std::byte> gap(kBodyAlignment);
    const auto pieces = BodyPieces(*pool_, lease_.pages(), range, body.size(), absl::MakeSpan(gap));
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    std::vector<std::byte> joined;
    for (const absl::Span<std::byte> piece : *pieces) joined.insert(joined.end(), piece.begin(), piece.end());
    EXPECT_EQ(joined, body);
  }
}

TEST_P(KvBodyTest, AnotherWireCodecRecodesEachRow) {
  FillPool();
  const KvCodec wire = GetParam() == KvCodec::kF32 ? KvCodec::kBf16 : KvCodec::kF32;
  const KvRange range = {.layer = 0, .layers = 3, .first_token = 2, .tokens = 11};
  std::vector<std::byte> body(BodyBytes(kLayout, wire, 3, 11));
  ASSERT_TRUE(EncodeBody(*pool_, lease_.pages(), range, wire, absl::MakeSpan(body)).ok());
  auto target = *KvPool::Create({.layout = kLayout, .codec = GetParam(), .page_tokens = 3, .pages = 9});
  const auto pages = *target->Lease(5);
  ASSERT_TRUE(DecodeBody(*target, pages.pages(), range, wire, body).ok());
  // The values are exact in both codecs; another page size does not matter.
  for (int layer = 0; layer < 3; ++layer) {
    const KvRange one = {layer, 1, 2, 11};
    std::vector<std::byte> own(BodyBytes(kLayout, GetParam(), 1, 11));
    ASSERT_TRUE(EncodeBody(*target, pages.pages(), one, GetParam(), absl::MakeSpan(own)).ok());
    EXPECT_EQ(own, ExpectedBody(one));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, KvBodyTest, ::testing::Values(KvCodec::kBf16, KvCodec::kF32),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(KvBody, VBeginsAtAMultipleOfSixteenAfterZeros) {
  const KvLayout narrow = {.layers = 1, .kv_heads = 1, .head_dim = 2};
  EXPECT_EQ(BodyBytes(narrow, KvCodec::kBf16, 1, 3), 16u + 12u);
  auto pool = Pool(KvCodec::kBf16, narrow);
  const auto lease = *pool->Lease(1);
  std::memset(pool->Plane(lease.pages()[0], 0, 0).codes, 0x11, 16);
  std::memset(pool->Plane(lease.pages()[0], 0, 1).codes, 0x22, 16);
  std::vector<std::byte> body(28, std::byte{0xFF});
  ASSERT_TRUE(EncodeBody(*pool, lease.pages(), {0, 1, 0, 3}, KvCodec::kBf16, absl::MakeSpan(body)).ok());
  EXPECT_THAT(std::vector<std::byte>(body.begin(), body.begin() + 12), ::testing::Each(std::byte{0x11}));
  EXPECT_THAT(std::vector<std::byte>(body.begin() + 12, body.begin() + 16), ::testing::Each(std::byte{0}));
  EXPECT_THAT(std::vector<std::byte>(body.begin() + 16, body.end()), ::testing::Each(std::byte{0x22}));
}

TEST(KvBody, HeadersThatTheReceiverDoesNotExpectAreRefusedWithBothValues) {
  const KvFrameHeader good = {.codec = KvCodec::kBf16,
                              .layer = 1,
                              .layers = 2,
                              .first_token = 8,
                              .tokens = 4,
                              .payload_bytes = BodyBytes(kLayout, KvCodec::kBf16, 2, 4),
                              .layout_hash = 0xAB};
  const auto check = [](const KvFrameHeader& h) { return CheckKvHeader(h, kLayout, 0xAB, 4, 12); };
  EXPECT_TRUE(check(good).ok()) << check(good);
  const auto refused = [&](auto change) {
    KvFrameHeader h = good;
    change(h);
    return std::string(check(h).message());
  };
  EXPECT_THAT(refused([](auto& h) { h.codec = KvCodec::kF32; }), HasSubstr("2 layers of 4 tokens in f32"));
  EXPECT_THAT(refused([](auto& h) { h.layout_hash = 0xAC; }), HasSubstr("layout hash ac, expected ab"));
  EXPECT_THAT(refused([](auto& h) { h.layer = 3; }), HasSubstr("2 layers from layer 3 of 3"));
  EXPECT_THAT(refused([](auto& h) { h.first_token = 3; }), HasSubstr("begins at token 3, KV is awaited from token 4"));
  EXPECT_THAT(refused([](auto& h) { h.first_token = 9; }), HasSubstr("ends at token 13 of a prompt of 12"));
  EXPECT_THAT(refused([](auto& h) { h.first_token = 0xFFFFFFFF; }), HasSubstr("of a prompt of 12"));
  EXPECT_THAT(refused([](auto& h) { ++h.payload_bytes; }), HasSubstr("for 2 layers of 4 tokens"));
}

}  // namespace
}  // namespace sluice
