#include "gateway/prefix_records.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::SizeIs;

constexpr WorkerRef kPrefill0{WorkerRole::kPrefill, 0};
constexpr WorkerRef kPrefill1{WorkerRole::kPrefill, 1};
constexpr WorkerRef kDecode0{WorkerRole::kDecode, 0};

std::vector<TokenId> Tokens(int count, TokenId first = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(HashPages, CoverWholePagesAndAllBeforeThem) {
  const PageHashes hashes = HashPages(Tokens(11), 4);
  EXPECT_THAT(hashes, SizeIs(2));
  EXPECT_EQ(HashPages(Tokens(8), 4), hashes);
  std::vector<TokenId> other = Tokens(8);
  other[0] = 99;
  EXPECT_NE(HashPages(other, 4)[1], hashes[1]) << "the second page is the same, what is before it is not";
  EXPECT_NE(HashPages(Tokens(8), 8)[0], hashes[1]) << "pages of another size";
  EXPECT_THAT(HashPages(Tokens(8), 0), SizeIs(0));
}

TEST(PrefixRecords, KnowWhatEachWorkerHasServed) {
  PrefixRecords records(100);
  records.Add(kPrefill0, HashPages(Tokens(12), 4));
  records.Add(kDecode0, HashPages(Tokens(8), 4));
  const PageHashes longer = HashPages(Tokens(40), 4);
  EXPECT_EQ(records.KnownPages(kPrefill0, longer), 3);
  EXPECT_EQ(records.KnownPages(kDecode0, longer), 2);
  EXPECT_EQ(records.KnownPages(kPrefill1, longer), 0);
  EXPECT_EQ(records.KnownPages(kPrefill0, HashPages(Tokens(12, 1), 4)), 0);
}

TEST(PrefixRecords, ForgetAWorkerThatHasRestarted) {
  PrefixRecords records(100);
  records.Add(kPrefill0, HashPages(Tokens(12), 4));
  records.Add(kPrefill1, HashPages(Tokens(4), 4));
  records.Forget(kPrefill0);
  EXPECT_EQ(records.KnownPages(kPrefill0, HashPages(Tokens(12), 4)), 0);
  EXPECT_EQ(records.KnownPages(kPrefill1, HashPages(Tokens(12), 4)), 1);
  EXPECT_EQ(records.size(), 1u);
}

TEST(PrefixRecords, ForgetWhatWasNotMetForLongestBeginningsLast) {
  PrefixRecords records(4);
  records.Add(kPrefill0, HashPages(Tokens(12), 4));
  records.Add(kPrefill0, HashPages(Tokens(8, 100), 4));
  EXPECT_EQ(records.size(), 4u);
  EXPECT_EQ(records.KnownPages(kPrefill0, HashPages(Tokens(12), 4)), 2);
  records.Add(kPrefill0, HashPages(Tokens(4), 4));
  records.Add(kPrefill0, HashPages(Tokens(8, 200), 4));
  EXPECT_EQ(records.KnownPages(kPrefill0, HashPages(Tokens(12), 4)), 1);
  EXPECT_EQ(records.KnownPages(kPrefill0, HashPages(Tokens(8, 100), 4)), 1);
}

TEST(PrefixRecords, FillInWhatIsKnownOfAPromptButNeverAllOfIt) {
  PrefixRecords records(100);
  records.Add(kPrefill0, HashPages(Tokens(16), 8));
  records.Add(kDecode0, HashPages(Tokens(16), 4));
  FleetSnapshot fleet;
  fleet.prefill.resize(2);
  fleet.decode.resize(1);
  fleet.prefill[0].page_tokens = fleet.prefill[1].page_tokens = 8;
  fleet.decode[0].page_tokens = 4;
  const std::vector<TokenId> tokens = Tokens(16);
  PromptHashes prompt(tokens);
  records.Fill(prompt, &fleet);
  EXPECT_EQ(fleet.prefill[0].cached_tokens, 8);
  EXPECT_EQ(fleet.prefill[1].cached_tokens, 0);
  EXPECT_EQ(fleet.decode[0].cached_tokens, 12);
}

TEST(PrefixRecords, OfNoPagesRememberNothing) {
  PrefixRecords records(0);
  records.Add(kPrefill0, HashPages(Tokens(12), 4));
  EXPECT_EQ(records.size(), 0u);
}

}  // namespace
}  // namespace sluice
