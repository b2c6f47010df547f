// Which codec the KV of a transfer travels in: the most accurate one whose transfer still hides behind the computation.
// Let q = link bytes/s over (bytes a token x tokens produced a second); at q >= 1 the link keeps up. A pure function.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "model/kv_layout.h"

namespace sluice::prefill {

// What is known when a transfer begins.
struct WireSituation {
  KvLayout layout;
  std::vector<KvCodec> shared;  // both sides named them; at least one
  KvCodec our_store = KvCodec::kBf16;
  KvCodec their_store = KvCodec::kBf16;
  double link_bytes_per_s = 0;     // 0: not known
  bool link_may_be_faster = true;  // it was never seen at its limit, so a small q says nothing
  double tokens_per_s = 0;         // that this process produces while at work; 0: not known
  std::optional<KvCodec> current;  // what this peer was sent last
  bool f16_saturates = false;      // it has cut values of this model
};

struct WireChoice {
  KvCodec codec = KvCodec::kBf16;
  double link_ratio = 0;  // q; 0 where a rate is not known
};

// A codec more accurate than a store is sent in vain, so decode's store is the best there is, or ours where that is
// both coarser and smaller. It is also the choice where a rate is not known. Where nothing hides, the smallest.
// A codec more accurate than the current one must hide with a margin, so that the choice does not flap.
// REQUIRES: shared is not empty.
WireChoice ChooseWire(const WireSituation& situation);

// q for `codec`; 0 where a rate is not known.
double LinkRatio(const WireSituation& situation, KvCodec codec);

inline constexpr double kLinkRatioEnough = 1;
inline constexpr double kLinkRatioToImprove = 1.25;

}  // namespace sluice::prefill
