#include "prefill/link_rate.h"

#include <queue>

#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

constexpr size_t kFrame = 100'000;

// A link of `bytes_per_s` with `delay` until an acknowledgement is back, a window of frames, and a source that may be
// slower than the link.
class SimulatedLink {
 public:
  SimulatedLink(double bytes_per_s, absl::Duration delay) : bytes_per_s_(bytes_per_s), delay_(delay) {}

  void Send(LinkRate& rate) {
    rate.OnSent(now_, kFrame);
    idle_at_ = std::max(idle_at_, now_) + absl::Seconds(static_cast<double>(kFrame) / bytes_per_s_);
    due_.push(idle_at_ + delay_);
  }
  // Sends `frames` as fast as the window allows.
  void SendBacklog(LinkRate& rate, int frames, size_t window) {
    while (frames > 0 || !due_.empty()) {
      for (; frames > 0 && due_.size() < window; --frames) Send(rate);
      if (frames == 0) rate.OnNothingWaits();
      AwaitOne(rate);
    }
  }
  // Sends a frame every `period`, and nothing waits in between.
  void SendSlowly(LinkRate& rate, int frames, absl::Duration period) {
    for (int i = 0; i < frames; ++i) {
      const absl::Time next = now_ + period;
      Send(rate);
      rate.OnNothingWaits();
      while (!due_.empty() && due_.front() <= next) AwaitOne(rate);
      now_ = next;
    }
  }
  void AwaitOne(LinkRate& rate) {
    now_ = std::max(now_, due_.front());
    due_.pop();
    rate.OnAcknowledged(now_, kFrame);
  }
  void AwaitAll(LinkRate& rate) {
    while (!due_.empty()) AwaitOne(rate);
  }
  void Become(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  void Wait(absl::Duration time) { now_ += time; }
  absl::Time now() const { return now_; }

 private:
  double bytes_per_s_;
  absl::Duration delay_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  absl::Time idle_at_ = now_;
  std::queue<absl::Time> due_;
};

TEST(LinkRate, NothingIsKnownAtFirst) {
  LinkRate rate;
  EXPECT_EQ(rate.bytes_per_s(), 0);
  EXPECT_TRUE(rate.MayBeFaster(absl::FromUnixSeconds(1000)));
}

TEST(LinkRate, ABacklogShowsTheLinksRate) {
  for (const double bytes_per_s : {1e6, 1e8, 1e10}) {
    LinkRate rate;
    SimulatedLink link(bytes_per_s, absl::Microseconds(10));
    link.SendBacklog(rate, 200, 16);
    EXPECT_NEAR(rate.bytes_per_s() / bytes_per_s, 1, 0.1) << bytes_per_s;
    EXPECT_FALSE(rate.MayBeFaster(link.now()));
  }
}

TEST(LinkRate, ASlowSourceIsNotASlowLink) {
  LinkRate rate;
  SimulatedLink link(1e9, absl::Microseconds(100));
  link.SendSlowly(rate, 100, absl::Milliseconds(50));
  EXPECT_TRUE(rate.MayBeFaster(link.now()));
  EXPECT_NEAR(rate.bytes_per_s(), kFrame / 200e-6, 0.05 * kFrame / 200e-6);  // a frame's time and the delay
}

// Where credit comes late, something is always on its way; that the source is slower than the link must still show.
TEST(LinkRate, LateAcknowledgementsAreNotASlowLink) {
  LinkRate rate;
  SimulatedLink link(1e9, absl::Milliseconds(30));
  link.SendSlowly(rate, 200, absl::Milliseconds(10));
  EXPECT_TRUE(rate.MayBeFaster(link.now()));
}

TEST(LinkRate, AcknowledgementsInABunchAreNotAFastLink) {
  LinkRate rate;
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 40; ++i) {
    for (int frame = 0; frame < 10; ++frame) {
      rate.OnSent(now, kFrame);
      now += absl::Milliseconds(10);
    }
    rate.OnAcknowledged(now, 10 * kFrame);
  }
  EXPECT_LT(rate.bytes_per_s(), 1.2 * kFrame / 10e-3);
}

TEST(LinkRate, ALinkThatGetsSlowerOrFasterIsFollowed) {
  LinkRate rate;
  SimulatedLink link(1e8, absl::Microseconds(100));
  link.SendBacklog(rate, 200, 16);
  link.Become(1e7);
  link.SendBacklog(rate, 200, 16);
  EXPECT_NEAR(rate.bytes_per_s(), 1e7, 2e6);
  link.Become(1e9);
  link.SendSlowly(rate, 3000, absl::Milliseconds(5));
  EXPECT_GT(rate.bytes_per_s(), 1e8) << "also where nothing waits";
}

TEST(LinkRate, ALimitThatIsNotMetAgainIsForgotten) {
  LinkRate rate;
  SimulatedLink link(1e7, absl::Microseconds(100));
  link.SendBacklog(rate, 50, 8);
  link.Wait(LinkRate::kLimitMemory - absl::Seconds(1));
  EXPECT_FALSE(rate.MayBeFaster(link.now()));
  link.Wait(absl::Seconds(2));
  EXPECT_TRUE(rate.MayBeFaster(link.now()));
}

TEST(LinkRate, WhatWasForgottenOnItsWayIsNotCounted) {
  LinkRate rate;
  SimulatedLink link(1e7, absl::Microseconds(100));
  link.SendBacklog(rate, 50, 8);
  const double before = rate.bytes_per_s();
  rate.OnSent(link.now(), kFrame);
  rate.Forget();
  rate.OnAcknowledged(link.now() + absl::Nanoseconds(1), kFrame);
  EXPECT_EQ(rate.bytes_per_s(), before);
}

}  // namespace
}  // namespace sluice::prefill
