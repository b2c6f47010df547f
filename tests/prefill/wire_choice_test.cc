#include "prefill/wire_choice.h"

#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

constexpr KvLayout kGqa = KvLayout::Gqa(30, 3, 64);
constexpr KvLayout kMla = KvLayout::Mla(27, 512, 64);
constexpr double kTokensPerS = 1000;

// A link that carries `codec` at q.
WireSituation At(double q, KvCodec codec, const KvLayout& layout = kGqa, KvCodec store = KvCodec::kBf16) {
  return {.layout = layout,
          .shared = WireCodecs(layout),
          .our_store = store,
          .their_store = store,
          .link_bytes_per_s = q * kTokensPerS * static_cast<double>(Bytes(layout, codec, 1)),
          .link_may_be_faster = false,
          .tokens_per_s = kTokensPerS,
          .current = std::nullopt};
}

TEST(WireChoice, TheMostAccurateCodecThatHidesIsTaken) {
  using C = KvCodec;
  struct Case {
    C carried;
    double q;
    C chosen;
  };
  // Bytes a token: bf16 128, int8 and fp8 68, int4 36 of each row.
  for (const Case& c : {Case{C::kBf16, 20, C::kBf16}, Case{C::kBf16, 1, C::kBf16}, Case{C::kBf16, 0.99, C::kInt8},
                        Case{C::kInt8, 1, C::kInt8}, Case{C::kInt8, 0.99, C::kInt4}, Case{C::kInt4, 1, C::kInt4},
                        Case{C::kInt4, 0.01, C::kInt4}}) {
    const WireChoice choice = ChooseWire(At(c.q, c.carried));
    EXPECT_EQ(Name(choice.codec), Name(c.chosen)) << Name(c.carried) << " at " << c.q;
  }
}

TEST(WireChoice, TheRatioIsThatOfTheChosenCodec) {
  EXPECT_DOUBLE_EQ(ChooseWire(At(0.9, KvCodec::kBf16)).link_ratio, 0.9 * 128 / 68);
  WireSituation unknown = At(0.9, KvCodec::kBf16);
  unknown.link_bytes_per_s = 0;
  EXPECT_EQ(ChooseWire(unknown).link_ratio, 0);
}

TEST(WireChoice, MoreThanDecodeStoresIsSentInVain) {
  WireSituation s = At(100, KvCodec::kF32);
  for (const KvCodec store : {KvCodec::kF32, KvCodec::kBf16, KvCodec::kInt8, KvCodec::kFp8, KvCodec::kInt4}) {
    s.our_store = s.their_store = store;
    EXPECT_EQ(Name(ChooseWire(s).codec), Name(store));
  }
}

TEST(WireChoice, MoreThanWeStoreIsSentInVainWhereOursIsSmaller) {
  WireSituation s = At(100, KvCodec::kF32);
  s.our_store = KvCodec::kInt8;
  s.their_store = KvCodec::kBf16;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kInt8);
  s.our_store = KvCodec::kFp8;  // as large as int8, in which decode need not touch it again
  s.their_store = KvCodec::kInt8;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kInt8);
}

TEST(WireChoice, WhereARateIsNotKnownDecodesStoreIsTaken) {
  WireSituation s = At(0.1, KvCodec::kInt4);
  s.link_may_be_faster = true;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kBf16) << "the link was never at its limit";
  s = At(0.1, KvCodec::kInt4);
  s.tokens_per_s = 0;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kBf16);
}

TEST(WireChoice, OnlyWhatBothNameIsTaken) {
  WireSituation s = At(0.5, KvCodec::kBf16);
  s.shared = {KvCodec::kFp8};
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kFp8);
  s.shared = {KvCodec::kF32};  // more than decode stores, but there is nothing else
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kF32);
}

TEST(WireChoice, AMoreAccurateCodecThanTheCurrentOneMustHideWithAMargin) {
  WireSituation s = At(1.1, KvCodec::kBf16);
  s.current = KvCodec::kInt8;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kInt8);
  s = At(1.3, KvCodec::kBf16);
  s.current = KvCodec::kInt8;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kBf16);
  s = At(1.01, KvCodec::kBf16);
  s.current = KvCodec::kBf16;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kBf16) << "the current one stays as long as it hides";
}

TEST(WireChoice, F16IsBetterThanBf16UntilItCutsValues) {
  WireSituation s = At(1.5, KvCodec::kBf16, kGqa, KvCodec::kF32);
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kF16);
  s.f16_saturates = true;
  EXPECT_EQ(ChooseWire(s).codec, KvCodec::kBf16);
}

TEST(WireChoice, LatentsGoAsBf16OrAsMlaFp8) {
  EXPECT_EQ(ChooseWire(At(1, KvCodec::kBf16, kMla)).codec, KvCodec::kBf16);
  EXPECT_EQ(ChooseWire(At(0.9, KvCodec::kBf16, kMla)).codec, KvCodec::kMlaFp8);
  EXPECT_EQ(ChooseWire(At(0.01, KvCodec::kBf16, kMla)).codec, KvCodec::kMlaFp8);
}

}  // namespace
}  // namespace sluice::prefill
