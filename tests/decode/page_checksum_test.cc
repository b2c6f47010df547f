// What prefill's pages held is what decode's pages hold, where KV is kept and sent in one codec.
#include "gtest/gtest.h"
#include "tests/decode/checksum_pair.h"

namespace sluice::decode {
namespace {

using Case = ChecksumCase;

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = absl::StrCat(c.backend, "_", c.layout.kind == KvKind::kMla ? "latents" : "heads", "_",
                                  std::string(Name(c.codec)), "_", c.prefill_page_tokens, "_", c.decode_page_tokens);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

constexpr KvLayout kHeads = KvLayout::Gqa(3, 2, 32);
constexpr KvLayout kLatents = KvLayout::Mla(3, 160, 16);

class PageChecksums : public testing::TestWithParam<Case> {};

TEST_P(PageChecksums, OfEveryLayerAreEqualOnBothSides) {
  ChecksumPair pair(GetParam());
  pair.Run(60);
  EXPECT_EQ(pair.answered(), 60);
  EXPECT_EQ(pair.compared(), 60);
  EXPECT_EQ(pair.bytes_received(), pair.bytes_sent());
  pair.ExpectNothingLost();
}

std::vector<Case> AllPaths() {
  std::vector<Case> cases;
  for (const char* backend : {"loopback", "ucx"}) {
    for (const KvLayout& layout : {kHeads, kLatents}) {
      for (const KvCodec codec : WireCodecs(layout)) cases.push_back({backend, layout, codec});
      const KvCodec narrow = layout.kind == KvKind::kMla ? KvCodec::kMlaFp8 : KvCodec::kInt8;
      cases.push_back({backend, layout, narrow, 16, 24});
      cases.push_back({backend, layout, narrow, 24, 7});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Paths, PageChecksums, testing::ValuesIn(AllPaths()), NameOf);

// Corruption that comes slowly, or of one page in many: so many requests that every page has had many holders, with
// prefixes that are cached and clients that leave while KV is on its way.
class ManyRequests : public testing::TestWithParam<Case> {};

TEST_P(ManyRequests, HaveEveryPageRightAndLoseNone) {
  constexpr int kRequests = 10'000;
  ChecksumPair pair(GetParam());
  pair.Run(kRequests, /*leaves=*/7);
  EXPECT_EQ(pair.answered() + pair.left(), kRequests);
  EXPECT_GT(pair.left(), kRequests / 20);
  EXPECT_GE(pair.compared(), pair.answered());
  EXPECT_GT(pair.late_frames(), 0);
  EXPECT_GT(pair.cached_tokens(), pair.tokens_sent() / 10);
  pair.ExpectNothingLost();
}

// Some messages come late, so that those of who has left find others in their pages' place.
const FaultPolicy kLate = *FaultPolicy::Parse("seed=5,delay=0.05:1ms,reorder=0.05:1ms");
INSTANTIATE_TEST_SUITE_P(Paths, ManyRequests,
                         testing::Values(Case{"faulty-loopback", kHeads, KvCodec::kInt8, 16, 8, 150, kLate},
                                         Case{"faulty-loopback", kLatents, KvCodec::kMlaFp8, 8, 4, 150, kLate}),
                         NameOf);

}  // namespace
}  // namespace sluice::decode
