#include "gateway/router.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::HasSubstr;

WorkerSnapshot Decode(int64_t pages_free) {
  WorkerSnapshot worker;
  worker.address = absl::StrCat("decode with ", pages_free);
  worker.page_tokens = 16;
  worker.wire_codecs = {"bf16"};
  worker.pages_total = 1000;
  worker.pages_free = pages_free;
  return worker;
}

WorkerSnapshot Prefill(int64_t queued, double rate) {
  WorkerSnapshot worker;
  worker.address = absl::StrCat("prefill with ", queued);
  worker.page_tokens = 16;
  worker.wire_codecs = {"bf16"};
  worker.queued_prompt_tokens = queued;
  worker.prefill_tokens_per_s = rate;
  return worker;
}

constexpr RequestShape kShape{.prompt_tokens = 100, .max_tokens = 28, .n = 1};

TEST(Router, CountsPagesThatChoicesCannotShare) {
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 1, .max_tokens = 1, .n = 1}, 16), 1);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 16, .max_tokens = 1, .n = 1}, 16), 1);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 16, .max_tokens = 2, .n = 1}, 16), 2);
  // Each further choice has its own copy of the page that the prompt leaves half full.
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 20, .max_tokens = 10, .n = 4}, 16), 2 + 3 * 1);
  EXPECT_EQ(PagesNeeded({.prompt_tokens = 32, .max_tokens = 17, .n = 2}, 16), 3 + 1);
}

TEST(Router, PicksTheDecodeWithMostFreePages) {
  const FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(50), Decode(90), Decode(70)}};
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 1);
}

TEST(Router, PicksThePrefillThatWouldBeDoneFirst) {
  // 1000 queued at 1000/s are done before 300 at 100/s.
  const FleetSnapshot fleet{{Prefill(300, 100), Prefill(1000, 1000)}, {Decode(50)}};
  EXPECT_EQ(Pick(fleet, kShape, {})->prefill, 1);
}

TEST(Router, TakesAnUnknownRateForTypical) {
  const FleetSnapshot fleet{{Prefill(500, 100), Prefill(0, 0)}, {Decode(50)}};
  EXPECT_EQ(Pick(fleet, kShape, {})->prefill, 1);
}

TEST(Router, LeavesOutUnusableAndExcludedWorkers) {
  FleetSnapshot fleet{{Prefill(0, 100), Prefill(10, 100)}, {Decode(90), Decode(80), Decode(70)}};
  fleet.decode[0].unusable_because = "is draining";
  const StatusOr<Route> route = Pick(fleet, kShape, {.prefill = {0}, .decode = {1}});
  EXPECT_EQ(route->decode, 2);
  EXPECT_EQ(route->prefill, 1);
}

TEST(Router, PrefersWhoHasNotFailedLately) {
  FleetSnapshot fleet{{Prefill(0, 100), Prefill(500, 100)}, {Decode(90), Decode(50)}};
  fleet.prefill[0].suspect = fleet.decode[0].suspect = true;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 1);
  EXPECT_EQ(Pick(fleet, kShape, {})->prefill, 1);
  fleet.prefill[1].suspect = fleet.decode[1].suspect = true;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 0);
}

TEST(Router, ACachedPrefixCountsAsComputed) {
  FleetSnapshot fleet{{Prefill(0, 100), Prefill(40, 100)}, {Decode(50)}};
  fleet.prefill[1].cached_tokens = 48;
  EXPECT_EQ(Pick(fleet, kShape, {})->prefill, 1);  // 40 + 52 against 100
  fleet.prefill[1].queued_prompt_tokens = 60;
  EXPECT_EQ(Pick(fleet, kShape, {})->prefill, 0);
}

TEST(Router, ADecodeThatHasThePrefixSavesItsTransfer) {
  FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(500), Decode(500)}};
  fleet.decode[1].cached_tokens = 80;
  fleet.decode[0].pages_free = 501;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 0);  // nothing is known of the transfer's rate
  fleet.prefill[0].transfer_tokens_per_s = 200;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 1);
}

TEST(Router, TheFullerADecodeIsTheLessItsPrefixDraws) {
  // 1 s of computing and 0.5 s of transfer, of which the prefix saves 0.4 s.
  struct Case {
    int64_t pages_free;
    int decode;
  };
  for (const Case c : {Case{1000, 1}, Case{800, 1}, Case{650, 1}, Case{600, 0}, Case{300, 0}}) {
    FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(1000), Decode(c.pages_free)}};
    fleet.prefill[0].transfer_tokens_per_s = 200;
    fleet.decode[1].cached_tokens = 80;
    EXPECT_EQ(Pick(fleet, kShape, {})->decode, c.decode) << c.pages_free;
  }
}

TEST(Router, PagesThatAreSharedWithOthersNeedNoRoom) {
  FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(6), Decode(7)}};  // the request needs eight
  fleet.decode[0].cached_tokens = 32;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 0);
}

TEST(Router, CachedPagesThatCountAsFreeAreNotCountedAgain) {
  FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(6), Decode(8)}};  // the request needs eight
  fleet.decode[0].cached_tokens = 32;
  fleet.decode[0].pages_cached = 2;
  fleet.prefill[0].transfer_tokens_per_s = 200;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 1) << "of six free pages two are the prompt's own: four are left for six";
  fleet.decode[0].pages_free = 8;
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 0);
}

TEST(Router, PredictsWhatShippingTakes) {
  FleetSnapshot fleet{{Prefill(300, 100)}, {Decode(50)}};
  fleet.prefill[0].cached_tokens = 20;
  fleet.prefill[0].transfer_tokens_per_s = 400;
  const ShipPrediction ship = PredictShip(fleet, {}, kShape);
  EXPECT_DOUBLE_EQ(ship.queue_s, 3.0);
  EXPECT_DOUBLE_EQ(ship.compute_s, 0.8);
  EXPECT_DOUBLE_EQ(ship.transfer_s_per_token, 0.0025);
}

TEST(Router, AFullDecodeIsStillAskedWhenAllAreFull) {
  const FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(1), Decode(2)}};
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 1);
}

TEST(Router, SaysWhyNobodyIsLeft) {
  FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(90), Decode(80)}};
  fleet.decode[0].unusable_because = "does not answer";
  const Status status = Pick(fleet, kShape, {.decode = {1}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("decode with 90: does not answer; decode with 80: tried"));
}

TEST(Router, MatchesPrefillToDecodeByLayout) {
  FleetSnapshot fleet{{Prefill(0, 100), Prefill(900, 100)}, {Decode(90)}};
  fleet.prefill[0].wire_codecs = {"bf16"};
  fleet.prefill[1].wire_codecs = {"bf16", "f32"};
  fleet.decode[0].wire_codecs = {"f32"};
  EXPECT_EQ(Pick(fleet, kShape, {})->prefill, 1);
}

TEST(Router, TakesTheNextDecodeWhereNoPrefillFitsTheBest) {
  FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(90), Decode(10)}};
  fleet.decode[0].layout.set_head_dim(32);
  EXPECT_EQ(Pick(fleet, kShape, {})->decode, 1);
}

TEST(Router, NamesBothValuesWhereNobodyFits) {
  FleetSnapshot fleet{{Prefill(0, 100)}, {Decode(90)}};
  fleet.prefill[0].wire_codecs = {"bf16"};
  fleet.decode[0].wire_codecs = {"f32"};
  fleet.decode[0].layout.set_head_dim(32);
  const Status status = Pick(fleet, kShape, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("wire codecs bf16 and f32"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("head_dim 0 and 32"));
}

}  // namespace
}  // namespace sluice
