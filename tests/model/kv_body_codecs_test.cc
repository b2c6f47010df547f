// One suite for bodies of every codec over every kind of rows, K and V or latents: sizes, bytes, and the way from one
// pool to another.
#include <array>
#include <cmath>
#include <cstring>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/kv_body.h"

namespace sluice {
namespace {

constexpr int64_t kTokens = 21;
constexpr int kPages = 12;

struct Case {
  KvLayout layout;
  KvCodec codec;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const KvLayout& layout : {KvLayout::Gqa(3, 2, 32), KvLayout::Mla(3, 160, 16), KvLayout::Mla(2, 512, 64)}) {
    for (const KvCodec codec : WireCodecs(layout)) cases.push_back({layout, codec});
  }
  return cases;
}

// Of a row, from the table of formats and not from the code.
struct RowBytes {
  size_t codes, scales;
};
RowBytes BytesOfARow(const KvLayout& layout, KvCodec codec) {
  const auto d = static_cast<size_t>(layout.row().width());
  const auto latent = static_cast<size_t>(layout.latent);
  switch (codec) {
    case KvCodec::kF32:
      return {4 * d, 0};
    case KvCodec::kBf16:
    case KvCodec::kF16:
      return {2 * d, 0};
    case KvCodec::kFp8:
    case KvCodec::kInt8:
      return {d, 4};
    case KvCodec::kInt4:
      return {d / 2, d / 32 * 2};
    case KvCodec::kMlaFp8:
      return {latent + 4 * ((latent + 127) / 128) + 2 * static_cast<size_t>(layout.rope_dim), 0};
  }
  return {};
}

size_t RoundedUp(size_t bytes) { return (bytes + 15) / 16 * 16; }

class KvBodyOfCodec : public ::testing::TestWithParam<Case> {
 protected:
  // Every row is that of its place.
  std::vector<float> Row(int layer, int tensor, int64_t token, int row) const {
    Rng rng(static_cast<uint64_t>(((layer * 2 + tensor) * 1000 + token) * 10 + row));
    std::vector<float> x(static_cast<size_t>(layout_.row().width()));
    for (float& v : x) v = static_cast<float>(rng.Uniform() * 8 - 4);
    return x;
  }

  std::unique_ptr<KvPool> Pool(int page_tokens) const {
    return *KvPool::Create({.layout = layout_, .codec = codec_, .page_tokens = page_tokens, .pages = kPages});
  }

  // Writes every row where the pool's own words say that it is: row by row, without bodies.
  void Fill(KvPool& pool, absl::Span<const PageIndex> pages) const {
    ForEachRow(pool, pages, [this](int layer, int tensor, int64_t token, int row, std::byte* codes, std::byte* scales) {
      const std::vector<float> x = Row(layer, tensor, token, row);
      (void)Info(codec_).encode(layout_.row(), x.data(), 1, layout_.row().width(), codes, scales);
    });
  }
  std::vector<std::byte> AllRows(KvPool& pool, absl::Span<const PageIndex> pages) const {
    const RowBytes size = BytesOfARow(layout_, codec_);
    std::vector<std::byte> bytes;
    ForEachRow(pool, pages, [&](int, int, int64_t, int, std::byte* codes, std::byte* scales) {
      bytes.insert(bytes.end(), codes, codes + size.codes);
      bytes.insert(bytes.end(), scales, scales + size.scales);
    });
    return bytes;
  }

  // Codes of all rows, token by token, then their scales; tensor by tensor and layer by layer at multiples of sixteen.
  std::vector<std::byte> ExpectedBody(const KvRange& range) const {
    std::vector<std::byte> body;
    const RowBytes size = BytesOfARow(layout_, codec_);
    for (int layer = range.layer; layer < range.layer + range.layers; ++layer) {
      for (int tensor = 0; tensor < layout_.tensors(); ++tensor) {
        body.resize(RoundedUp(body.size()));
        std::vector<std::byte> scales;
        for (int64_t token = range.first_token; token < range.first_token + range.tokens; ++token) {
          for (int row = 0; row < layout_.rows_per_token(); ++row) {
            std::vector<std::byte> code(size.codes);
            std::array<std::byte, 64> scale;
            const std::vector<float> x = Row(layer, tensor, token, row);
            (void)Info(codec_).encode(layout_.row(), x.data(), 1, layout_.row().width(), code.data(), scale.data());
            body.insert(body.end(), code.begin(), code.end());
            scales.insert(scales.end(), scale.begin(), scale.begin() + static_cast<ptrdiff_t>(size.scales));
          }
        }
        body.insert(body.end(), scales.begin(), scales.end());
      }
    }
    return body;
  }

  const KvLayout layout_ = GetParam().layout;
  const KvCodec codec_ = GetParam().codec;

 private:
  template <typename Visit>
  void ForEachRow(KvPool& pool, absl::Span<const PageIndex> pages, Visit visit) const {
    const RowBytes size = BytesOfARow(layout_, codec_);
    const int page_tokens = pool.options().page_tokens;
    for (int layer = 0; layer < layout_.layers; ++layer) {
      for (int tensor = 0; tensor < layout_.tensors(); ++tensor) {
        for (int64_t token = 0; token < kTokens; ++token) {
          const KvPlane plane = pool.Plane(pages[static_cast<size_t>(token / page_tokens)], layer, tensor);
          for (int row = 0; row < layout_.rows_per_token(); ++row) {
            const auto at = static_cast<size_t>(token % page_tokens * layout_.rows_per_token() + row);
            visit(layer, tensor, token, row, plane.codes + at * size.codes, plane.scales + at * size.scales);
          }
        }
      }
    }
  }
};

TEST_P(KvBodyOfCodec, SizesAreThoseOfTheFormat) {
  const RowBytes row = BytesOfARow(layout_, codec_);
  const auto rows = static_cast<size_t>(layout_.rows_per_token());
  const auto tensors = static_cast<size_t>(layout_.tensors());
  for (const int64_t tokens : {1, 2, 16, 17}) {
    const size_t tensor = static_cast<size_t>(tokens) * rows * (row.codes + row.scales);
    EXPECT_EQ(TensorBytes(layout_, codec_, tokens).codes, static_cast<size_t>(tokens) * rows * row.codes);
    EXPECT_EQ(TensorBytes(layout_, codec_, tokens).total(), tensor);
    EXPECT_EQ(LayerBytes(layout_, codec_, tokens), tensors * tensor);
    EXPECT_EQ(Bytes(layout_, codec_, tokens), static_cast<size_t>(layout_.layers) * tensors * tensor);
    const size_t layer = (tensors - 1) * RoundedUp(tensor) + tensor;
    EXPECT_EQ(BodyBytes(layout_, codec_, 1, tokens), layer);
    EXPECT_EQ(BodyBytes(layout_, codec_, 2, tokens), RoundedUp(layer) + layer);
  }
  EXPECT_EQ(Pool(16)->bytes(), kPages * Bytes(layout_, codec_, 16));
}

TEST_P(KvBodyOfCodec, BytesAreTheRowsInTheOrderOfTheFormat) {
  const auto pool = Pool(4);
  const auto lease = *pool->Lease(6);
  Fill(*pool, lease.pages());
  for (const KvRange range : {KvRange{0, 1, 0, 1}, KvRange{1, 1, 3, 2}, KvRange{0, layout_.layers, 0, kTokens},
                              KvRange{1, layout_.layers - 1, 5, 11}}) {
    std::vector<std::byte> body(BodyBytes(layout_, codec_, range.layers, range.tokens), std::byte{0xA5});
    const auto counts = EncodeBody(*pool, lease.pages(), range, codec_, absl::MakeSpan(body));
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_EQ(counts->nonfinite_rows, 0);
    EXPECT_EQ(body, ExpectedBody(range)) << range.layer << " from token " << range.first_token;
    std::vector<std::byte> gap(kBodyAlignment);
    std::vector<std::byte> joined;
    const auto pieces = BodyPieces(*pool, lease.pages(), range, body.size(), absl::MakeSpan(gap));
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    for (const absl::Span<std::byte> piece : *pieces) joined.insert(joined.end(), piece.begin(), piece.end());
    EXPECT_EQ(joined, body);
  }
}

TEST_P(KvBodyOfCodec, EveryByteComesBackInPagesOfAnotherSize) {
  const auto from = Pool(4);
  const auto to = Pool(7);
  const auto from_pages = *from->Lease(6);
  const auto to_pages = *to->Lease(3);
  Fill(*from, from_pages.pages());
  for (const auto& [first, tokens] : {std::pair{0, 6}, std::pair{6, 1}, std::pair{7, 14}}) {
    for (int layer = 0; layer < layout_.layers; ++layer) {
      const KvRange range = {layer, 1, first, tokens};
      std::vector<std::byte> body(BodyBytes(layout_, codec_, 1, tokens));
      ASSERT_TRUE(EncodeBody(*from, from_pages.pages(), range, codec_, absl::MakeSpan(body)).ok());
      ASSERT_TRUE(DecodeBody(*to, to_pages.pages(), range, codec_, body).ok());
    }
  }
  EXPECT_EQ(AllRows(*to, to_pages.pages()), AllRows(*from, from_pages.pages()));
}

// Rows that were coded once are coded alike again: what goes over f32 and back is not worn out on its way.
TEST_P(KvBodyOfCodec, AWideWireMovesNoRowByMoreThanACode) {
  const auto from = Pool(4);
  const auto to = Pool(16);
  const auto from_pages = *from->Lease(6);
  const auto to_pages = *to->Lease(2);
  Fill(*from, from_pages.pages());
  const KvRange all = {0, layout_.layers, 0, kTokens};
  std::vector<std::byte> body(BodyBytes(layout_, KvCodec::kF32, all.layers, kTokens));
  ASSERT_TRUE(EncodeBody(*from, from_pages.pages(), all, KvCodec::kF32, absl::MakeSpan(body)).ok());
  ASSERT_TRUE(DecodeBody(*to, to_pages.pages(), all, KvCodec::kF32, body).ok());
  std::vector<std::byte> again(body.size());
  ASSERT_TRUE(EncodeBody(*to, to_pages.pages(), all, KvCodec::kF32, absl::MakeSpan(again)).ok());
  // A scale that is computed from decoded values, or a rotation forth and back, moves them by some units in f32's last
  // place, and a code by one at the most: of values to 4 in 3 bits of mantissa, in 8 bits or in 4 of a rotated row.
  const double code = codec_ == KvCodec::kInt4 ? 4.0 / 7 : codec_ == KvCodec::kInt8 ? 12.0 / 127 : 4.0 / 16;
  size_t moved = 0;
  for (size_t i = 0; i < body.size(); i += 4) {
    float a, b;
    std::memcpy(&a, &body[i], 4);
    std::memcpy(&b, &again[i], 4);
    moved += a != b;
    ASSERT_LE(std::abs(a - b), code) << "value " << i / 4;
  }
  const bool exact = !Info(codec_).rotated && codec_ != KvCodec::kFp8;
  if (exact) {
    EXPECT_EQ(moved, 0u);
  }
}

TEST_P(KvBodyOfCodec, RowsThatAreNoNumbersAreCounted) {
  const auto pool = Pool(4);
  const auto lease = *pool->Lease(6);
  Fill(*pool, lease.pages());
  std::vector<float> bad = Row(1, 0, 9, 0);
  bad[3] = std::nanf("");
  const KvPlane plane = pool->Plane(lease.pages()[2], 1, 0);
  const RowBytes size = BytesOfARow(layout_, codec_);
  const auto at = static_cast<size_t>(1 * layout_.rows_per_token());
  (void)Info(codec_).encode(layout_.row(), bad.data(), 1, layout_.row().width(), plane.codes + at * size.codes,
                            plane.scales + at * size.scales);
  std::vector<std::byte> body(BodyBytes(layout_, codec_, 1, kTokens));
  for (const int layer : {0, 1}) {
    const KvRange range = {layer, 1, 0, kTokens};
    EXPECT_EQ(EncodeBody(*pool, lease.pages(), range, codec_, absl::MakeSpan(body))->nonfinite_rows, layer);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, KvBodyOfCodec, ::testing::ValuesIn(Cases()), [](const auto& info) {
  const KvLayout& layout = info.param.layout;
  std::string name = layout.kind == KvKind::kGqa ? absl::StrCat("gqa_", layout.head_dim, "_")
                                                 : absl::StrCat("mla_", layout.latent, "_", layout.rope_dim, "_");
  name += std::string(Name(info.param.codec));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(KvBodyCodecs, EveryCodecIsHeldByTheLayoutsThatItIsFor) {
  using ::testing::ElementsAre;
  EXPECT_THAT(WireCodecs(KvLayout::Gqa(3, 2, 32)),
              ElementsAre(KvCodec::kF32, KvCodec::kBf16, KvCodec::kF16, KvCodec::kFp8, KvCodec::kInt8, KvCodec::kInt4));
  EXPECT_THAT(WireCodecs(KvLayout::Mla(3, 512, 64)),
              ElementsAre(KvCodec::kF32, KvCodec::kBf16, KvCodec::kF16, KvCodec::kMlaFp8));
  EXPECT_EQ(Bytes(KvLayout::Mla(27, 512, 64), KvCodec::kMlaFp8, 1), 27u * 656);
}

}  // namespace
}  // namespace sluice
